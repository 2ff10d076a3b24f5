"""Draft trees: the tokens a step verifies, and who is whose ancestor.

A step verifies `n = num_draft_tokens` nodes per request in one forward pass. Node 0 is the *root*: the last token
that was emitted, whose keys and values are not in the cache yet. It is no guess. Every other node guesses the token
that follows its parent. The shape of the tree is kept as its *ancestor mask*: `mask[b, i, j]` is true iff node j is
node i itself or one of its ancestors. It is what attention needs, and the links of `links.py` follow from it.

Upstream: `sglang/srt/speculative/ngram_worker.py` keeps the same two arrays, flattened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A batch of draft trees, one row per request.

    Attributes:
        tokens: int64 `[bs, n]`, the token id of each node.
        mask: bool `[bs, n, n]`, the ancestor mask; the prefix in the cache is not part of it.

    Nodes stand in topological order (an ancestor has the smaller index) and siblings carry different tokens. *Padding*
    fills a row up to n, at its end only: token 0 and a mask row that holds nothing but the node itself. A pad has no
    parent and no links, so that it is never walked and never chosen. (Upstream's pads are children of the root, all
    with token 0; equal siblings then bias its sampling.)

    Construction checks shapes and dtypes, `check()` checks everything.

    Raises:
        TypeError: `tokens` is not int64, or `mask` is not boolean.
        ValueError: the shapes do not fit each other, or there is no root.

    >>> tree = DraftTree.from_parents([[7, 20, 10, 21]], [[-1, 0, 0, 1]])
    >>> tree.mask[0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 1, 0],
           [1, 1, 0, 1]])
    >>> tree.depths
    array([[0, 1, 1, 2]])
    """

    tokens: IntArray
    mask: BoolArray

    def __post_init__(self) -> None:
        check_mask_form(self.mask)
        if not isinstance(self.tokens, np.ndarray) or self.tokens.dtype != np.int64:
            raise TypeError(f"tokens must be an int64 numpy array, not {_kind(self.tokens)}: use astype(np.int64)")
        if self.tokens.shape != self.mask.shape[:2]:
            raise ValueError(f"tokens {self.tokens.shape} and mask {self.mask.shape} differ in [bs, n]")
        object.__setattr__(self, "tokens", np.ascontiguousarray(self.tokens))
        object.__setattr__(self, "mask", np.ascontiguousarray(self.mask))

    @classmethod
    def from_parents(cls, tokens: npt.ArrayLike, parents: npt.ArrayLike) -> DraftTree:
        """Build trees from parent pointers.

        Args:
            tokens: integers `[bs, n]`, or `[n]` for a single tree.
            parents: the same shape; −1 for node 0 (the root) and for padding, else an index smaller than the node's.

        Raises:
            TypeError: not integers.
            ValueError: the shapes differ, a parent does not come before its child, a pad is not at the end, or what
                `check()` refuses.

        >>> DraftTree.from_parents([5, 6, 0], [-1, 0, -1]).is_padding
        array([[False, False,  True]])
        """
        token_rows, parent_rows = _integer_rows("tokens", tokens), _integer_rows("parents", parents)
        if token_rows.shape != parent_rows.shape:
            raise ValueError(f"tokens {token_rows.shape} and parents {parent_rows.shape} differ in shape")
        if (parent_rows >= np.arange(parent_rows.shape[1])).any() or (parent_rows < -1).any():
            raise ValueError("each entry of parents must be -1 or the index of an earlier node")
        tree = cls(token_rows, ancestor_mask(parent_rows.tolist()))
        tree.check()
        return tree

    @classmethod
    def from_sglang(cls, tokens: npt.ArrayLike, mask: npt.ArrayLike, bs: int) -> DraftTree:
        """Take the flat integer arrays of upstream's `NgramCorpus.batch_get`, for the link functions only.

        Upstream's padding consists of real children of the root that share token 0. The links of such a tree are well
        defined; its siblings are not distinct, so `check()` refuses it and nothing here decodes with it.

        Args:
            tokens: `[bs * n]`.
            mask: `[bs * n * n]`, nonzero where true.
            bs: number of requests, at least 1.

        Raises:
            ValueError: the sizes do not fit `bs`.

        >>> DraftTree.from_sglang([7, 0], [1, 0, 1, 1], bs=1).parents
        array([[-1,  0]])
        """
        flat = np.asarray(tokens, dtype=np.int64).reshape(-1)
        n, rest = divmod(flat.size, bs) if bs >= 1 else (0, 1)
        bits = np.asarray(mask).reshape(-1) != 0
        if n == 0 or rest or bits.size != bs * n * n:
            raise ValueError(f"{flat.size} tokens and {bits.size} mask entries do not make bs={bs} trees of one size")
        return cls(flat.reshape(bs, n), bits.reshape(bs, n, n))

    @cached_property
    def parents(self) -> IntArray:
        """int64 `[bs, n]`: the parent of each node, −1 for the root and for padding."""
        return parents_from_mask(self.mask)

    @cached_property
    def depths(self) -> IntArray:
        """int64 `[bs, n]`: the number of ancestors of each node; 0 for the root and for padding."""
        depths: IntArray = self.mask.sum(axis=2) - 1
        return depths

    @cached_property
    def is_padding(self) -> BoolArray:
        """bool `[bs, n]`: true where a node is padding."""
        pads = self.parents < 0
        pads[:, 0] = False
        return pads

    def check(self) -> None:
        """Check the whole contract of the class.

        Raises:
            ValueError: the mask is not topological or not closed, a pad is not at the end or carries another token
                than 0, a negative token, or siblings that carry the same token.
        """
        pads = self.is_padding  # finding the parents checks the mask
        if (pads[:, :-1] & ~pads[:, 1:]).any():
            raise ValueError("padding must stand at the end of a row: move the real nodes to the front")
        if (self.tokens[pads] != 0).any():
            raise ValueError("padding must carry token 0 (a node that is no pad needs a parent)")
        for row, node in np.argwhere(self.tokens < 0):
            raise ValueError(f"tokens must not be negative, but row {row}, node {node} is {self.tokens[row, node]}")
        for row, (tokens, parents) in enumerate(zip(self.tokens.tolist(), self.parents.tolist(), strict=True)):
            seen: dict[tuple[int, int], int] = {}
            for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
                first = seen.setdefault((parent, token), node)
                if parent >= 0 and first != node:
                    raise ValueError(f"row {row}: siblings {first} and {node} both carry token {token}: merge them")


def ancestor_mask(parents: Sequence[Sequence[int]]) -> BoolArray:
    """Turn parent pointers into ancestor masks, each row of a mask kept as the bits of one integer.

    Args:
        parents: `[bs][n]`; −1 for the root and for padding, else an earlier index.

    Returns:
        bool `[bs, n, n]`.

    >>> ancestor_mask([[-1, 0, 1]])[0, 2].tolist()
    [True, True, True]
    """
    n = len(parents[0])
    width = (n + 7) // 8
    rows: list[bytes] = []
    for row_parents in parents:
        bits: list[int] = []
        for node, parent in enumerate(row_parents):
            # A node sees itself and what its parent sees; the parent's row is complete since it comes first.
            bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
        rows.extend(row.to_bytes(width, "little") for row in bits)
    packed = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(parents), n, width)
    return np.unpackbits(packed, axis=2, count=n, bitorder="little").view(np.bool_)


def parents_from_mask(mask: BoolArray) -> IntArray:
    """Find each node's parent (its ancestor with the largest index), and refuse what is no mask of trees.

    A row of the mask is handled as bits of 64-bit words, so that the work is a dozen numpy calls for any batch.

    Args:
        mask: bool `[bs, n, n]`.

    Returns:
        int64 `[bs, n]`; −1 for the root and for padding.

    Raises:
        TypeError, ValueError: see `check_mask_form`.
        ValueError: the mask is not topological (a node misses itself or sees a later one), or not closed (a node does
            not see exactly its parent's ancestors, its parent and itself).

    >>> parents_from_mask(np.array([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=bool))
    array([[-1,  0,  0]])
    """
    check_mask_form(mask)
    bs, n, _ = mask.shape
    bits = _pack_rows(mask)
    own, lower = _bit_tables(n)
    ancestors = bits & lower
    stray = bits ^ (ancestors | own)
    if stray.any():
        row, node = np.argwhere(stray)[0, :2]
        raise ValueError(f"mask is not topological: row {row}, node {node} must see itself and no later node")
    parents = _highest_bit(ancestors)
    # A gather at parent -1 takes some other row; a node without ancestors has nothing that could be wrong.
    inherited = bits.reshape(bs * n, -1)[parents + n * np.arange(bs)[:, None]]
    wrong = (ancestors != inherited) & (parents >= 0)[:, :, None]
    if wrong.any():
        row, node = np.argwhere(wrong)[0, :2]
        raise ValueError(
            f"mask is not closed: row {row}, node {node} must see its parent {parents[row, node]} and exactly what "
            "that one sees"
        )
    return parents


def check_mask_form(mask: BoolArray) -> None:
    """Check dtype and shape of a host mask, not its content.

    Raises:
        TypeError: not a boolean numpy array.
        ValueError: not `[bs, n, n]` with at least one request and one node.

    >>> check_mask_form(np.ones((1, 2, 3), dtype=bool))
    Traceback (most recent call last):
    ValueError: mask must be square, [bs, n, n] with bs >= 1 and n >= 1, not (1, 2, 3)
    """
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"mask must be a boolean numpy array, not {_kind(mask)}: use mask != 0")
    if mask.ndim != 3 or mask.shape[1] != mask.shape[2] or 0 in mask.shape:
        raise ValueError(f"mask must be square, [bs, n, n] with bs >= 1 and n >= 1, not {mask.shape}")


def _pack_rows(mask: BoolArray) -> npt.NDArray[np.uint64]:
    """Pack each mask row into 64-bit words: bool `[bs, n, n]` to uint64 `[bs, n, ceil(n / 64)]`, bit j = node j."""
    bs, n, _ = mask.shape
    packed = np.packbits(mask, axis=2, bitorder="little")
    padded = np.zeros((bs, n, 8 * ((n + 63) // 64)), dtype=np.uint8)
    padded[:, :, : packed.shape[2]] = packed
    return padded.view("<u8")


@lru_cache(maxsize=64)
def _bit_tables(n: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """For each node, the bit of its own and the bits of all earlier nodes: two uint64 arrays `[n, words]`."""
    own = _pack_rows(np.eye(n, dtype=np.bool_)[None])[0]
    lower = _pack_rows(np.tri(n, k=-1, dtype=np.bool_)[None])[0]
    return own, lower


def _highest_bit(bits: npt.NDArray[np.uint64]) -> IntArray:
    """Index of the highest bit set in words `[..., words]`, −1 where none is."""
    # A float64 has 53 bits, so that a long run of ones (0b111…1) would round up to the next power of two. A bit whose
    # upper neighbour is set is not the highest: with all of those cleared (0b100…0) nothing can carry.
    exponents = np.frexp((bits & ~(bits >> np.uint64(1))).astype(np.float64))[1]
    if bits.shape[-1] == 1:
        return exponents[..., 0].astype(np.int64) - 1
    indices = np.where(bits != 0, exponents + 64 * np.arange(bits.shape[-1]), 0)
    highest: IntArray = indices.max(axis=-1).astype(np.int64) - 1
    return highest


def _integer_rows(name: str, values: npt.ArrayLike) -> IntArray:
    """Take integers `[bs, n]` or `[n]` as int64 `[bs, n]`; fractions are refused rather than cut off."""
    array = np.atleast_2d(np.asarray(values))
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {_kind(array)}")
    return array.astype(np.int64)


def _kind(value: Any) -> str:
    """Name a value's type, with its dtype where it has one, for an error message."""
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"{type(value).__name__} of {dtype}"
