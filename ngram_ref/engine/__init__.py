"""Decoding with a Hugging Face model: loading, the KV cache, the target program, batches, `generate`, `audit`."""
