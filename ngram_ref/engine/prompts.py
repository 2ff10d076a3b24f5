"""Prompts in, token ids out: strings, chats and id lists, each checked before any work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def encode_prompts(tokenizer: Any, prompts: Any, vocab_size: int, context_length: int | None) -> list[list[int]]:
    """Turn prompts into token ids.

    Args:
        tokenizer: of `transformers`; None if all prompts are token ids.
        prompts: one prompt or a sequence of prompts. A prompt is a string (encoded as it is, without a chat template),
            a chat (a sequence of `{"role": …, "content": …}`), or token ids (a sequence, array or tensor of integers).
        vocab_size: ids must be below it.
        context_length: prompts must not be longer; None for no limit.

    Returns:
        One list of ids per prompt.

    Raises:
        TypeError, ValueError: a prompt that cannot be used, by its index.

    >>> encode_prompts(None, [5, 6], vocab_size=10, context_length=None)
    [[5, 6]]
    >>> encode_prompts(None, [[5], [6, 11]], vocab_size=10, context_length=None)
    Traceback (most recent call last):
    ValueError: prompt 1: token id 11 is outside the vocabulary (0 to 9)
    """
    many = [prompts] if _is_single(prompts) else list(prompts)
    return [_encode(tokenizer, index, prompt, vocab_size, context_length) for index, prompt in enumerate(many)]


def _is_single(prompts: Any) -> bool:
    """Tell one prompt from a sequence of prompts."""
    if isinstance(prompts, (np.ndarray, torch.Tensor)):
        return prompts.ndim < 2
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Sequence):
        return True  # what is no prompt at all is refused, by name, when it is encoded
    return len(prompts) > 0 and (_is_id(prompts[0]) or isinstance(prompts[0], Mapping))


def _is_id(value: Any) -> bool:
    """Tell whether a value is an integer, of Python, numpy or torch; True and False are none."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0 and not value.is_floating_point() and value.dtype != torch.bool
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _encode(tokenizer: Any, index: int, prompt: Any, vocab_size: int, context_length: int | None) -> list[int]:
    """Encode and check one prompt."""
    ids = _to_ids(tokenizer, index, prompt)
    if not ids:
        raise ValueError(f"prompt {index} is empty: give it at least one token, the root of the first tree")
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ValueError(f"prompt {index}: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})")
    if context_length is not None and len(ids) > context_length:
        raise ValueError(f"prompt {index} has {len(ids)} tokens, the model's context {context_length}: shorten it")
    return ids


def _to_ids(tokenizer: Any, index: int, prompt: Any) -> list[int]:
    """Encode one prompt, whatever its form."""
    if isinstance(prompt, (np.ndarray, torch.Tensor)) and prompt.ndim == 1:
        prompt = prompt.tolist()
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(_is_id(token) for token in prompt):
        return [int(token) for token in prompt]
    is_chat = isinstance(prompt, Sequence) and not isinstance(prompt, str) and _is_chat(prompt)
    if not isinstance(prompt, str) and not is_chat:
        raise TypeError(
            f"prompt {index} must be a string, a list of chat messages or a list of token ids, not {prompt!r:.80}"
        )
    if tokenizer is None:
        raise ValueError(f"prompt {index} is text, but tokenizer is None: pass a tokenizer, or token ids")
    try:
        if not is_chat:
            return list(tokenizer(prompt)["input_ids"])
        return list(tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=False))
    except Exception as error:  # no template, roles that it does not know, …
        kind = "a chat that the tokenizer cannot render" if is_chat else "a text that the tokenizer cannot encode"
        raise ValueError(f"prompt {index} is {kind}: {error}") from error


def _is_chat(prompt: Sequence[Any]) -> bool:
    """Tell whether a prompt is a list of chat messages."""
    return all(isinstance(message, Mapping) and "role" in message for message in prompt)
