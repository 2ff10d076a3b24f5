"""Brute-force answers that tests compare with: trees as parent lists, everything found by following parents.

A parent list has one entry per node: −1 for the root (node 0) and for padding, else the index of an earlier node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from ngram_ref.core.tree import BoolArray, IntArray


def all_parent_vectors(n: int) -> Iterator[list[int]]:
    """Yield every valid tree of n nodes: 1 to n real ones in every topological arrangement, pads behind them."""
    for real in range(1, n + 1):
        for parents in product(*(range(node) for node in range(1, real))):
            yield [-1, *parents, *[-1] * (n - real)]


def random_parents(rng: np.random.Generator, n: int, pads: int = 0) -> list[int]:
    """Draw a tree of n nodes, the last `pads` of them padding; from chains to stars, by how far back parents may be."""
    reach = rng.integers(1, n + 1)
    real = [int(rng.integers(max(0, node - reach), node)) for node in range(1, n - pads)]
    return [-1, *real, *[-1] * (n - 1 - len(real))]


def brute_path(parents: Sequence[int], node: int) -> list[int]:
    """List the nodes from the root (or from the pad itself) down to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def brute_mask(parents: Sequence[int]) -> BoolArray:
    """Build the ancestor mask, bool `[n, n]`."""
    mask = np.zeros((len(parents), len(parents)), dtype=np.bool_)
    for node in range(len(parents)):
        mask[node, brute_path(parents, node)] = True
    return mask


def brute_masks(batch: Sequence[Sequence[int]]) -> BoolArray:
    """Build the ancestor masks of a batch, bool `[bs, n, n]`."""
    return np.stack([brute_mask(parents) for parents in batch])


def brute_children(parents: Sequence[int]) -> list[list[int]]:
    """List the children of every node, in order."""
    return [[child for child, its in enumerate(parents) if its == node] for node in range(len(parents))]


def brute_links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Read first children and next siblings off the lists of children."""
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node, children in enumerate(brute_children(parents)):
        next_token[node] = children[0] if children else -1
        for child, following in pairwise(children):
            next_sibling[child] = following
    return next_token, next_sibling


def parents_from_links(next_token: Sequence[int], next_sibling: Sequence[int]) -> list[int]:
    """Find the parents again by going through every node's children along the links."""
    parents = [-1] * len(next_token)
    for node, first in enumerate(next_token):
        child = first
        while child >= 0:
            parents[child], child = node, next_sibling[child]
    return parents


def sglang_pads(parents: Sequence[int]) -> list[int]:
    """Turn pads into upstream's: children of the root (with token 0, as all pads)."""
    return [-1, *(max(parent, 0) for parent in parents[1:])]


def distinct_tokens(rng: np.random.Generator, parents: Sequence[int], vocab_size: int) -> list[int]:
    """Draw a token for each node, siblings distinct, pads 0."""
    tokens = [0] * len(parents)
    tokens[0] = int(rng.integers(vocab_size))
    for children in brute_children(parents):
        for child, token in zip(children, rng.permutation(vocab_size)[: len(children)], strict=True):
            tokens[child] = int(token)
    return tokens


def brute_accept(targets: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Walk down from the root along the children that carry their parent's target token (−1: none).

    Returns:
        The accepted nodes, and the tokens emitted: the target token of each, as far as there is one.
    """
    path = [0]
    while following := [c for c in brute_children(parents)[path[-1]] if tokens[c] == targets[path[-1]]]:
        path.append(following[0])
    return path, [targets[node] for node in path if targets[node] >= 0]


def padded(values: Sequence[int], n: int) -> list[int]:
    """Fill a row up to n with −1."""
    return [*values, *[-1] * (n - len(values))]


def token_paths(tokens: Sequence[int], parents: Sequence[int]) -> set[tuple[int, ...]]:
    """Spell the path from below the root to each leaf, as a set: a tree up to the order of its nodes."""
    leaves = [node for node, parent in enumerate(parents) if parent >= 0 and node not in parents]
    return {tuple(tokens[node] for node in brute_path(parents, leaf)[1:]) for leaf in leaves}


def allows(words: IntArray, token: int) -> bool:
    """Ask one row of a bitmask, int32 words, about one token."""
    return bool((int(words[token // 32]) % 2**32) >> (token % 32) & 1)
