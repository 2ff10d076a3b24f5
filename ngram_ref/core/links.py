"""Links of a draft tree: first child and next sibling of every node, derived from the ancestor mask.

The grammar walk (`walk.py`) goes through a tree by two index arrays: `next_token[b, i]` is the first child of node i,
`next_sibling[b, i]` the next child of i's parent, −1 where there is none. Upstream computed them on the device and read
them back, which made the host wait before it could launch the verify forward. But the host built the mask, so the host
can derive the links itself: that is `derive_tree_links`, the function this project is about (upstream:
`_derive_tree_links` in `sglang/srt/speculative/ngram_worker.py`, pull request #32380).

The device needs the same arrays for its own work: `reconstruct_indices_from_tree_mask` (upstream: the kernel of that
name in `ngram.cuh`). On every valid tree both sides agree. On a mask that is not closed they may not: the host refuses
it, the device cannot look at it without a synchronisation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ngram_ref.core.tree import BoolArray, IntArray, parents_from_mask


class TreeIndices(NamedTuple):
    """What the device derives from the mask; all int64 `[bs, n]`.

    Attributes:
        positions: position id of each node, its request's committed length plus its depth.
        retrieve_index: row of each node among all `bs * n` rows of the batch.
        next_token: first child, −1 where none.
        next_sibling: next sibling, −1 where none.
    """

    positions: torch.Tensor
    retrieve_index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor


def derive_tree_links(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """Derive first-child and next-sibling links from an ancestor mask, by one scan from the last node to the first.

    `next_token[parent]` holds the child of `parent` that was met last. A node finds there its next sibling, since the
    scan comes from the right, and puts itself in that place. What stays there at the end is the first child.

    Args:
        mask: bool `[bs, n, n]`, host.

    Returns:
        `(next_token, next_sibling)`, each int64 `[bs, n]`, −1 where there is none.

    Raises:
        TypeError, ValueError: the mask is not boolean, not square, not topological or not closed.

    >>> mask = np.array([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]], dtype=bool)
    >>> derive_tree_links(mask)
    (array([[ 1,  3, -1, -1]]), array([[-1,  2, -1, -1]]))
    """
    parents = parents_from_mask(mask)
    bs, n = parents.shape
    next_token = np.full((bs, n), -1, dtype=np.int64)
    next_sibling = np.full((bs, n), -1, dtype=np.int64)
    for b in range(bs):
        for node in range(n - 1, 0, -1):
            parent = parents[b, node]
            if parent < 0:
                continue  # padding has no parent: it is nobody's child and nobody's sibling
            next_sibling[b, node] = next_token[b, parent]
            next_token[b, parent] = node
    return next_token, next_sibling


def derive_tree_links_vectorized(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """Derive the same links without a loop over nodes; the engine calls this one.

    Args:
        mask: bool `[bs, n, n]`, host.

    Returns:
        `(next_token, next_sibling)`, each int64 `[bs, n]`, equal to those of `derive_tree_links`.

    Raises:
        TypeError, ValueError: the mask is not boolean, not square, not topological or not closed.

    >>> derive_tree_links_vectorized(np.array([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=bool))
    (array([[ 1, -1, -1]]), array([[-1,  2, -1]]))
    """
    parents = parents_from_mask(mask)
    bs, n = parents.shape
    # One key per node, its parent's place in the flattened batch; a stable sort puts siblings side by side, in order.
    flat_parents = (parents + n * np.arange(bs)[:, None]).ravel()
    child = np.flatnonzero(parents.ravel() >= 0)
    key = flat_parents[child].astype(np.uint16 if bs * n <= 1 << 16 else np.int64)  # 16 bits: numpy sorts by radix
    order = np.argsort(key, kind="stable")
    child, key = child[order], key[order]
    same_parent = key[1:] == key[:-1]
    next_token = np.full(bs * n, -1, dtype=np.int64)
    next_sibling = np.full(bs * n, -1, dtype=np.int64)
    next_sibling[child[:-1][same_parent]] = child[1:][same_parent] % n
    is_first = np.ones(len(key), dtype=np.bool_)
    is_first[1:] = ~same_parent
    next_token[key[is_first]] = child[is_first] % n
    return next_token.reshape(bs, n), next_sibling.reshape(bs, n)


def reconstruct_indices_from_tree_mask(mask: torch.Tensor, seq_lens: torch.Tensor) -> TreeIndices:
    """Derive positions and links on the device: a fixed number of tensor operations, no synchronisation.

    The rules are upstream's kernel's: the parent is the last ancestor, the first child the first *descendant*, the next
    sibling the next node with the same parent. A CUDA graph can capture the call.

    Args:
        mask: bool `[bs, n, n]`, topological and closed; its values are not checked, since that would synchronise.
        seq_lens: int64 `[bs]`, tokens committed in the cache, on the mask's device.

    Raises:
        TypeError: the mask is not boolean, or `seq_lens` is not int64. (Upstream's kernel reads int32 as int64
            without a word.)
        ValueError: the shapes do not fit, or the devices differ.

    >>> mask = torch.tensor([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]], dtype=torch.bool)
    >>> indices = reconstruct_indices_from_tree_mask(mask, torch.tensor([12]))
    >>> indices.positions.tolist(), indices.next_token.tolist(), indices.next_sibling.tolist()
    ([[12, 13, 13, 14]], [[1, -1, 3, -1]], [[-1, 2, -1, -1]])
    """
    _check_device_arguments(mask, seq_lens)
    bs, n, _ = mask.shape
    node = torch.arange(n, device=mask.device)
    ancestors = mask.tril(-1)
    parent = device_parents(mask)
    # At [b, i, k]: k is a descendant of i; k is a later child of i's parent. Of these the smallest k, n where none.
    descendants = ancestors.transpose(1, 2)
    later_siblings = (parent[:, :, None] == parent[:, None, :]) & (parent >= 0)[:, :, None] & (node > node[:, None])
    first_child = torch.where(descendants, node, n).amin(dim=2)
    sibling = torch.where(later_siblings, node, n).amin(dim=2)
    return TreeIndices(
        positions=seq_lens[:, None] + ancestors.sum(dim=2),
        retrieve_index=torch.arange(bs * n, device=mask.device).view(bs, n),
        next_token=torch.where(first_child < n, first_child, -1),
        next_sibling=torch.where(sibling < n, sibling, -1),
    )


def device_parents(mask: torch.Tensor) -> torch.Tensor:
    """Find each node's parent on the device: bool `[bs, n, n]` to int64 `[bs, n]`, −1 for the root and for padding.

    >>> device_parents(torch.tensor([[[1, 0], [1, 1]]], dtype=torch.bool))
    tensor([[-1,  0]])
    """
    number = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask.tril(-1) * number).amax(dim=2) - 1


def _check_device_arguments(mask: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Refuse wrong dtypes, shapes and devices, as `reconstruct_indices_from_tree_mask` states them."""
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be a bool tensor, not {mask.dtype}: use mask.bool()")
    if mask.ndim != 3 or mask.shape[1] != mask.shape[2] or 0 in mask.shape:
        raise ValueError(f"mask must be square, [bs, n, n], not {tuple(mask.shape)}")
    if seq_lens.dtype != torch.int64:
        raise TypeError(f"seq_lens must be int64, not {seq_lens.dtype}: use seq_lens.long()")
    if seq_lens.shape != mask.shape[:1] or seq_lens.device != mask.device:
        raise ValueError(
            f"seq_lens must be [{mask.shape[0]}] on {mask.device}, not {list(seq_lens.shape)} on {seq_lens.device}"
        )
