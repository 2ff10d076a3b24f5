"""The target model as a device program: prefill, verify a tree, accept, commit.

`Target` wraps a causal language model of `transformers` and holds what outlives a call: the KV cache, and what a probe
of the model has found out about it (`probe.py`). The model runs as it is: the tree reaches it as a 4-D attention mask
and as position ids.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ngram_ref.core.accept import AcceptResult, accept_greedy
from ngram_ref.core.links import reconstruct_indices_from_tree_mask
from ngram_ref.core.tree import DraftTree
from ngram_ref.engine.kv_cache import WindowedCache, bucket_length
from ngram_ref.engine.probe import ModelFacts, check_tree_logits, probe_model, refuse_training
from ngram_ref.kept import kept_with

PREFILL_CHUNK = 512  # tokens a forward; bounds the memory of a long prompt's attention


@dataclass(frozen=True)
class VerifyInputs:
    """A drafted batch on the device.

    Attributes:
        tokens: int64 `[bs, n]`.
        mask: bool `[bs, n, n]`.
        seq_lens: int64 `[bs]`, committed tokens.
        length: slots of the cache that attention sees, a bucket (host number, since it is a shape).
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    seq_lens: torch.Tensor
    length: int


class Target:
    """A model, prepared for tree verification; `generate()` takes it in place of the model.

    The first use checks the model: one small branching tree is verified in one forward, its paths in plain forwards,
    and both must give the same logits.

    Args:
        model: a causal language model of `transformers` with full attention, loaded with sdpa or eager attention.

    Raises:
        ValueError: the model cannot be verified as a tree, with the reason.

    Attributes:
        model: the model.
        facts: what its probe found: vocabulary, context, stop tokens, cache shapes.
        cache: the KV cache; row b belongs to the request in place b of the running batch.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.facts: ModelFacts = probe_model(model)
        self.cache = WindowedCache(self.facts.layers, self.facts.dtype, self.facts.device)
        self._busy = threading.Lock()
        check_tree_logits(model, self.facts, self.score_trees)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the target for one decoding run; its cache cannot serve two.

        Raises:
            RuntimeError: another thread is decoding with it.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this Target is decoding already: wait for it, or make another nr.Target(model)")
        try:
            yield
        finally:
            self._busy.release()

    @torch.no_grad()
    def prefill(self, row: int, ids: Sequence[int]) -> None:
        """Clear a row and commit tokens to it: a prompt without its last token, which is the first root.

        Args:
            row: cache row, reserved.
            ids: token ids; may be empty.
        """
        self.cache.clear_row(row)
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = torch.tensor([ids[start : start + PREFILL_CHUNK]], device=self.facts.device)
            slots = torch.arange(start, start + chunk.shape[1], device=self.facts.device)[None]
            length = min(bucket_length(start + chunk.shape[1]), self.cache.num_slots)
            visible = torch.arange(length, device=self.facts.device) <= slots[:, :, None]
            self.cache.open(row, slots, length)
            # The trunk alone: nobody asks for the logits of a prompt.
            self._forward(self.model.base_model, chunk, visible, slots)

    def upload(self, tree: DraftTree, seq_lens: Sequence[int]) -> VerifyInputs:
        """Bring a drafted batch to the device, for rows `0 … bs - 1`, and reserve the room of its windows.

        Args:
            tree: a valid tree.
            seq_lens: committed tokens of each row.
        """
        bs, n = tree.tokens.shape
        length = bucket_length(max(seq_lens) + n)
        self.cache.reserve(bs, length)
        return VerifyInputs(
            torch.from_numpy(tree.tokens).to(self.facts.device),
            torch.from_numpy(tree.mask).to(self.facts.device),
            torch.tensor(seq_lens, dtype=torch.int64).to(self.facts.device),
            length,
        )

    @torch.no_grad()
    def verify(self, inputs: VerifyInputs) -> torch.Tensor:
        """Run the model over all nodes at once: logits `[bs, n, V]`, floating point. Nodes fill the draft windows."""
        indices = reconstruct_indices_from_tree_mask(inputs.mask, inputs.seq_lens)
        node = torch.arange(inputs.mask.shape[1], device=inputs.mask.device)
        self.cache.open(0, inputs.seq_lens[:, None] + node, inputs.length)
        # No such token can ever be a target token, so what stands in for it is never accepted.
        tokens = torch.where(inputs.tokens < self.facts.embedding_size, inputs.tokens, 0)
        visible = tree_attention_mask(inputs.mask, inputs.seq_lens, inputs.length)
        logits: torch.Tensor = self._forward(self.model, tokens, visible, indices.positions).logits
        return logits

    @torch.no_grad()
    def accept(self, inputs: VerifyInputs, logits: torch.Tensor, bitmask: torch.Tensor | None = None) -> AcceptResult:
        """Accept greedily among the tokens that a host bitmask allows, and commit the accepted path's keys and values.

        Args:
            inputs: the batch.
            logits: `[bs, n, V]`, of `verify`.
            bitmask: int32 `[bs * n, ceil(V / 32)]` on the CPU, or None.
        """
        if bitmask is not None:
            bitmask = bitmask.to(self.facts.device)
        result = accept_greedy(logits, inputs.tokens, inputs.mask, bitmask)
        self.cache.commit(inputs.seq_lens, result.accept_index)
        return result

    def score_tree(self, prompt_ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """Verify one tree behind a prompt, to look at its logits; nothing is committed.

        Args:
            prompt_ids: token ids; the last one is the tree's root.
            tree: one valid tree (`bs = 1`).

        Returns:
            Logits `[n, V]` on the CPU: row i says what follows the prompt and the path to node i.

        Raises:
            ValueError: the tree's root is not the prompt's last token, or the tree is a batch.
            RuntimeError: the target is decoding.
        """
        if len(tree.tokens) != 1 or len(prompt_ids) == 0 or int(tree.tokens[0, 0]) != prompt_ids[-1]:
            raise ValueError("tree must be a single tree whose root is the last of prompt_ids")
        return self.score_trees([prompt_ids], tree)[0]

    def score_trees(self, prompts: Sequence[Sequence[int]], tree: DraftTree, length: int = 0) -> torch.Tensor:
        """Verify a batch of trees, each behind a prompt; nothing is committed.

        Args:
            prompts: token ids, one list per row of `tree`; the last id of each is its tree's root.
            tree: valid trees.
            length: slots that attention sees, at least.

        Returns:
            Logits `[bs, n, V]` on the CPU.

        Raises:
            RuntimeError: the target is decoding.
        """
        with self.exclusive():
            seq_lens = [len(prompt) - 1 for prompt in prompts]
            self.cache.reserve(len(prompts), bucket_length(max(length, max(seq_lens) + tree.tokens.shape[1])))
            for row, prompt in enumerate(prompts):
                self.prefill(row, prompt[:-1])
            inputs = self.upload(tree, seq_lens)
            return self.verify(replace(inputs, length=max(length, inputs.length))).cpu()

    def _forward(self, module: Any, tokens: torch.Tensor, visible: torch.Tensor, positions: torch.Tensor) -> Any:
        """Call the model or its trunk on the open window. `visible`: bool `[bs, q, length]`."""
        attention_mask = visible[:, None]
        if self.facts.additive_mask:
            # Eager attention adds its mask to the scores: a boolean one would silently mask nothing.
            zero = torch.zeros((), dtype=self.facts.dtype, device=self.facts.device)
            attention_mask = torch.where(attention_mask, zero, float("-inf"))
        cache = {self.facts.cache_argument: self.cache}
        return module(input_ids=tokens, attention_mask=attention_mask, position_ids=positions, use_cache=True, **cache)


def tree_attention_mask(mask: torch.Tensor, seq_lens: torch.Tensor, length: int) -> torch.Tensor:
    """Extend ancestor masks to the cache: a node sees all committed slots, and in the window its ancestors and itself.

    Args:
        mask: bool `[bs, n, n]`.
        seq_lens: int64 `[bs]`, committed tokens: the window's first slot.
        length: slots that attention sees.

    Returns:
        bool `[bs, n, length]`.

    >>> tree_attention_mask(torch.tensor([[[1, 0], [1, 1]]], dtype=torch.bool), torch.tensor([2]), 5).int()
    tensor([[[1, 1, 1, 0, 0],
             [1, 1, 1, 1, 0]]], dtype=torch.int32)
    """
    bs, n, _ = mask.shape
    place = torch.arange(length, device=mask.device) - seq_lens[:, None]  # [bs, length]: slot within the window
    in_window = (place >= 0) & (place < n)
    node = place.clamp(0, n - 1)[:, None, :].expand(bs, n, length)
    return (place < 0)[:, None, :] | (mask.gather(2, node) & in_window[:, None, :])


def _form(model: Any) -> tuple[Any, ...]:
    """What a target relies on in a model; in another form the model is probed anew."""
    width = model.get_input_embeddings().weight.shape[0]
    return model.dtype, model.device, getattr(model.config, "_attn_implementation", None), width


def as_target(model: Any) -> Target:
    """Take a target as it is, or the one that is kept with a model as long as the model lives.

    Args:
        model: a `Target`, or a causal language model.

    Raises:
        TypeError: neither.
        ValueError: the model cannot be verified as a tree, or is in training mode.
    """
    if isinstance(model, Target):
        target = model
    elif isinstance(model, torch.nn.Module) and hasattr(model, "generation_config"):
        target = kept_with(model, ("target", *_form(model)), lambda: Target(model))
    else:
        raise TypeError(
            f"model must be a causal language model of transformers or an nr.Target, not {type(model).__name__}"
        )
    refuse_training(target.model)
    return target
