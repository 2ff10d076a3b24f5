"""Acceptance: which drafted nodes agree with the target model, and which tokens a step emits.

The verify forward gives one row of logits per node: the target model's word on what follows that node's path. From it
each node gets its *target token*. A node is *chosen* iff it is the root, or its token is the target token of its
parent; it is *accepted* iff it and all its ancestors are chosen. Siblings carry different tokens, so at most one child
of a node is chosen, and the accepted nodes form one path from the root. The target token of the last one is the *bonus*
token: it comes for free, since the model has already said it.

"It and all its ancestors" is a row of the ancestor mask, so acceptance is one expression over the mask: no walk, no
loop, no synchronisation. Upstream walks the links instead (`VerifyTreeGreedy` in `eagle.cuh`): `accept_by_links` does
the same, to be read beside it and to test it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ngram_ref.core.links import device_parents
from ngram_ref.core.tree import IntArray


class AcceptResult(NamedTuple):
    """The outcome of a verify step; int64 tensors on the logits' device, −1 behind the end of each row.

    Attributes:
        accept_index: `[bs, n]`, the accepted nodes along the path, the root first.
        accept_length: `[bs]`, how many tokens the step emits: the correct drafts, plus 1 for the bonus token.
        tokens: `[bs, n]`, those tokens: the correct drafts, then the bonus token.
    """

    accept_index: torch.Tensor
    accept_length: torch.Tensor
    tokens: torch.Tensor


def accept_greedy(
    logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor, bitmask: torch.Tensor | None = None
) -> AcceptResult:
    """Accept what greedy decoding would have emitted: a node's target token is the argmax of its masked logits.

    Args:
        logits: floating point `[bs, n, V]`.
        tokens: int64 `[bs, n]`, the tree's tokens.
        mask: bool `[bs, n, n]`, the ancestor mask of a valid tree.
        bitmask: int32 `[bs * n, ceil(V / 32)]`, bit v % 32 of word v // 32 set where a node allows token v; or None.

    Returns:
        An `AcceptResult`. A node that allows nothing has no target token: it chooses no child and gives no bonus, and
        `accept_length` then counts the correct drafts only.

    Raises:
        TypeError, ValueError: a dtype or a shape does not fit.

    >>> logits = torch.tensor([[[0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]]])
    >>> tree_mask = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
    >>> accept_greedy(logits, torch.tensor([[0, 1, 2]]), tree_mask)  # 1 follows the root, 2 follows 1
    AcceptResult(accept_index=tensor([[ 0,  1, -1]]), accept_length=tensor([2]), tokens=tensor([[ 1,  2, -1]]))
    """
    _check_arguments(logits, tokens, mask)
    return accept_targets(target_tokens(logits, bitmask), tokens, mask)


def target_tokens(logits: torch.Tensor, bitmask: torch.Tensor | None = None) -> torch.Tensor:
    """Take each node's target token: the argmax of its logits among the tokens that its bitmask row allows.

    Args:
        logits: floating point `[bs, n, V]`.
        bitmask: int32 `[bs * n, ceil(V / 32)]`, or None.

    Returns:
        int64 `[bs, n]`; −1 at a node that allows nothing.

    Raises:
        TypeError, ValueError: the bitmask has another dtype or shape.

    >>> target_tokens(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[0b101]], dtype=torch.int32))
    tensor([[2]])
    """
    if bitmask is None:
        return logits.argmax(dim=-1)
    best = mask_logits(logits, bitmask).argmax(dim=-1, keepdim=True)
    word = bitmask.view(*logits.shape[:2], -1).gather(-1, best >> 5)
    # Where every allowed logit is −inf itself, the argmax may have fallen on a forbidden token.
    is_allowed = (word >> (best & 31) & 1).bool().squeeze(-1)
    return torch.where(is_allowed, best.squeeze(-1), first_allowed(bitmask, logits.shape[2]).view(is_allowed.shape))


def first_allowed(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Find the smallest token id that each row allows: int32 `[rows, W]` to int64 `[rows]`, −1 where it allows nothing.

    >>> first_allowed(torch.tensor([[0, 0b100], [0, 0]], dtype=torch.int32), 64)
    tensor([34, -1])
    """
    place = (bitmask != 0).byte().argmax(dim=1, keepdim=True)
    bits = bitmask.gather(1, place) >> torch.arange(32, dtype=torch.int32, device=bitmask.device) & 1
    token = 32 * place.squeeze(1) + bits.byte().argmax(dim=1)
    return torch.where(bits.any(dim=1) & (token < vocab_size), token, -1)


def mask_logits(logits: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """Set the logits of forbidden tokens to −inf, and NaN wherever it is.

    Each byte of the bitmask is looked up as eight limits, +inf or −inf, and the smaller of logit and limit is taken:
    on a CPU this is faster than unpacking to booleans. (Little-endian, as all of torch's platforms.)

    Args:
        logits: floating point `[bs, n, V]`.
        bitmask: int32 `[bs * n, ceil(V / 32)]`, on the logits' device.

    Raises:
        TypeError, ValueError: the bitmask has another dtype or shape.

    >>> mask_logits(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[0b101]], dtype=torch.int32))
    tensor([[[1., -inf, 2.]]])
    """
    bs, n, vocab_size = logits.shape
    words = (vocab_size + 31) // 32
    if bitmask.dtype != torch.int32:
        raise TypeError(f"bitmask must be int32, not {bitmask.dtype}")
    if bitmask.shape != (bs * n, words):
        raise ValueError(f"bitmask must be [bs * n, ceil(V / 32)] = {[bs * n, words]}, not {list(bitmask.shape)}")
    byte, bit = torch.arange(256, device=logits.device)[:, None], torch.arange(8, device=logits.device)
    limit_of_byte = torch.where((byte >> bit & 1).bool(), float("inf"), float("-inf")).to(logits.dtype)
    limits = limit_of_byte.index_select(0, bitmask.view(torch.uint8).flatten().int())
    limits = limits.view(bs, n, 32 * words)[:, :, :vocab_size]
    # A logit may be NaN, which `minimum` keeps, a forbidden one, too. (`fmin` does not, but is slow on a CPU.)
    inf = float("inf")
    return torch.minimum(logits.nan_to_num(nan=-inf, posinf=inf, neginf=-inf), limits, out=limits)


def accept_targets(targets: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> AcceptResult:
    """Accept by given target tokens, in closed form. Greedy and sampled decoding differ only in the target tokens.

    Args:
        targets: int64 `[bs, n]`, the target token of each node, −1 for none.
        tokens: int64 `[bs, n]`.
        mask: bool `[bs, n, n]`.

    >>> chain = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    >>> accept_targets(torch.tensor([[5, 8, 9]]), torch.tensor([[4, 5, 6]]), chain).tokens
    tensor([[ 5,  8, -1]])
    """
    bs, n = tokens.shape
    node = torch.arange(n, device=tokens.device)
    parent = device_parents(mask)
    # A gather at parent -1 would read the last node: a node without a parent is never chosen, except for the root.
    parents_target = targets.gather(1, parent.clamp(min=0))
    chosen = (node == 0) | ((parent >= 0) & (parents_target >= 0) & (tokens == parents_target))
    accepted = (chosen[:, None, :] | ~mask).all(dim=2)
    # The accepted nodes form a path, so each has a depth of its own: that is its column. Column n takes the others.
    column = torch.where(accepted, mask.sum(dim=2) - 1, n)
    accept_index = torch.full((bs, n + 1), -1, device=tokens.device).scatter_(1, column, node.expand(bs, n))[:, :n]
    emitted = torch.where(accept_index >= 0, targets.gather(1, accept_index.clamp(min=0)), -1)
    # Only the last accepted node can be without a target token: one before it has chosen its child.
    return AcceptResult(accept_index, (emitted >= 0).sum(dim=1), emitted)


def accept_by_links(
    targets: IntArray, tokens: IntArray, next_token: IntArray, next_sibling: IntArray
) -> list[list[int]]:
    """Accept as upstream does, on the host: from the root, look through the children for the target token.

    Args:
        targets: int64 `[bs, n]`, the target token of each node, −1 for none.
        tokens: int64 `[bs, n]`.
        next_token, next_sibling: int64 `[bs, n]`, as `derive_tree_links` gives them.

    Returns:
        For each request the accepted nodes, the root first.

    >>> import numpy as np
    >>> accept_by_links(np.array([[5, 8]]), np.array([[4, 5]]), np.array([[1, -1]]), np.array([[-1, -1]]))
    [[0, 1]]
    """
    paths = []
    for b in range(len(tokens)):
        path, child = [0], next_token[b, 0]
        while child >= 0:
            if tokens[b, child] == targets[b, path[-1]]:
                path.append(int(child))
                child = next_token[b, child]
            else:
                child = next_sibling[b, child]
        paths.append(path)
    return paths


def _check_arguments(logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> None:
    """Refuse dtypes and shapes that `accept_greedy` does not take."""
    if not logits.is_floating_point() or tokens.dtype != torch.int64 or mask.dtype != torch.bool:
        raise TypeError(
            f"logits must be floating point, tokens int64 and mask bool, not {logits.dtype}, {tokens.dtype} and "
            f"{mask.dtype}"
        )
    bs, n = logits.shape[:2] if logits.ndim == 3 else (-1, -1)
    if tokens.shape != (bs, n) or mask.shape != (bs, n, n):
        raise ValueError(
            f"logits [bs, n, V], tokens [bs, n] and mask [bs, n, n] do not fit: {list(logits.shape)}, "
            f"{list(tokens.shape)}, {list(mask.shape)}"
        )
