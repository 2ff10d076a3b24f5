"""A tokenizer as grammars see it: the bytes of each token id, which ids are no text, which end a text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import xgrammar


@dataclass(frozen=True)
class TokenTable:
    """A tokenizer as grammars see it.

    Attributes:
        vocab_size: V, the width of the model's logits and of the bitmask.
        stop_token_ids: ids that end a text.
        info: xgrammar's object.
        fingerprint: of all tokens' bytes, to tell tokenizers apart.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]
    info: xgrammar.TokenizerInfo
    fingerprint: str

    def check(self, tokenizer: Any, vocab_size: int, stop_token_ids: tuple[int, ...]) -> None:
        """Check that a grammar compiled for these tokens fits a model.

        Args:
            tokenizer: the model's; None where it is not known.
            vocab_size, stop_token_ids: the model's.

        Raises:
            ValueError: they differ.
        """
        same = (vocab_size, stop_token_ids) == (self.vocab_size, self.stop_token_ids)
        if same and tokenizer is not None:
            same = token_table(tokenizer, vocab_size, stop_token_ids).fingerprint == self.fingerprint
        if not same:
            raise ValueError(
                "grammar was compiled for another tokenizer, vocabulary size or set of stop tokens than the model's: "
                "pass its description instead, which is compiled once per tokenizer"
            )


def token_table(tokenizer: Any, vocab_size: int, stop_token_ids: tuple[int, ...]) -> TokenTable:
    """Read a tokenizer's tokens as bytes, special tokens being no text.

    Args:
        tokenizer: of `transformers`, or an `xgrammar.TokenizerInfo`, whose special tokens are taken as they are.
        vocab_size: V.
        stop_token_ids: at least one id.

    Raises:
        ValueError: no stop token (a grammar could not end a text), or one outside the vocabulary.
    """
    if not stop_token_ids:
        raise ValueError(
            "the model's generation config names no end-of-sequence id, so a grammar could not end a text: set "
            "model.generation_config.eos_token_id"
        )
    wrong = [token_id for token_id in stop_token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise ValueError(
            f"end-of-sequence id {wrong[0]} of the model is outside its vocabulary (0 to {vocab_size - 1})"
        )
    is_info = isinstance(tokenizer, xgrammar.TokenizerInfo)
    info = tokenizer if is_info else xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    tokens = list(info.decoded_vocab)[:vocab_size]
    tokens += [b""] * (vocab_size - len(tokens))
    # xgrammar takes special tokens for text, so that `<|endoftext|>` would be allowed inside every JSON string; and a
    # stop token whose bytes fit, for the end of a text that is not complete.
    added_tokens = {} if is_info else getattr(tokenizer, "added_tokens_decoder", {})
    special = [token_id for token_id, added in added_tokens.items() if added.special]
    for token_id in {*special, *stop_token_ids} & set(range(vocab_size)):
        tokens[token_id] = b""
    return _make_table(tokens, stop_token_ids, info.add_prefix_space)


def without_control_characters(table: TokenTable) -> TokenTable:
    """Take the tokens that hold a control character (below U+0020) out of a table: they are no text any more.

    Compact JSON holds none, since in strings they are escaped; but xgrammar's rule for strings of bounded length would
    let them through.
    """
    tokens = [b"" if token and min(token) < 0x20 else token for token in table.info.decoded_vocab]
    return _make_table(tokens, table.stop_token_ids, table.info.add_prefix_space)


def _make_table(tokens: list[bytes], stop_token_ids: tuple[int, ...], add_prefix_space: bool) -> TokenTable:
    """Make a table of tokens given as bytes; those without bytes are no text."""
    info = xgrammar.TokenizerInfo(
        tokens,
        xgrammar.VocabType.RAW,
        vocab_size=len(tokens),
        stop_token_ids=list(stop_token_ids),
        add_prefix_space=add_prefix_space,
    )
    digest = hashlib.sha256(b"".join(len(token).to_bytes(4, "little") + token for token in tokens))
    return TokenTable(len(tokens), stop_token_ids, info, digest.hexdigest())
