"""The grammar walk: for every node of a draft tree, which tokens its grammar allows there.

A grammar state stands behind the root token. To know what is allowed behind another node the state must have accepted
the tokens on the way there, and must come back afterwards. So the walk goes depth first over the links: accept a node's
token, fill its row of the bitmask, walk its children, roll back one token, go on to its next sibling. All of this is
host work that needs tokens and links alone, not the model: it can run while the device runs the verify forward.

What a row holds in the end:

| row | bits |
| --- | --- |
| of a node that is reached (each token on the way is allowed by the row of its parent) | what the grammar allows |
| of such a node where the grammar allows nothing: a dead end | none |
| of a node whose token ended the grammar (a stop token), and of all below it | all |
| of any other node: an illegal token above it or its own, padding, a request without a grammar | all |

"All" is harmless: such a node is never accepted, since the row above it forbids its token, or the text has ended.

Upstream: `traverse_tree` and `generate_token_bitmask` in `sglang/srt/speculative/spec_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch

from ngram_ref.core.tree import DraftTree, IntArray


class GrammarState(Protocol):
    """A grammar that has read a text; the methods are `xgrammar.GrammarMatcher`'s."""

    def accept_token(self, token_id: int) -> bool:
        """Read one more token; False, and nothing read, if the grammar forbids it."""
        ...

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens."""
        ...

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0) -> Any:
        """Overwrite row `index` of an int32 bitmask with the tokens allowed next."""
        ...

    def is_terminated(self) -> bool:
        """Whether a stop token was read: nothing may follow."""
        ...

    def is_completed(self) -> bool:
        """Whether the text so far is complete, so that a stop token may follow."""
        ...

    def fork(self) -> Self:
        """Copy the state, history included."""
        ...


def fill_tree_bitmask(
    states: Sequence[GrammarState | None],
    tree: DraftTree,
    next_token: IntArray,
    next_sibling: IntArray,
    bitmask: torch.Tensor,
) -> None:
    """Fill the bitmask of a batch of trees, every row of it; the states are left as they were.

    Args:
        states: one per request, standing behind its root token; None for a request without a grammar.
        tree: `bs = len(states)`.
        next_token, next_sibling: int64 `[bs, n]`, the tree's links.
        bitmask: int32 `[bs * n, W]` on the CPU, contiguous; bit v % 32 of word v // 32 of row `b * n + i` is set where
            node i of request b allows token v.

    Raises:
        TypeError, ValueError: the bitmask has another dtype, device, shape or layout.

    >>> class OnlyOnce:  # allows tokens 1 and 2, but neither twice
    ...     def __init__(self): self.read = []
    ...     def accept_token(self, token): self.read.append(token); return True
    ...     def rollback(self, count=1): del self.read[-count:]
    ...     def is_terminated(self): return False
    ...     def fill_next_token_bitmask(self, rows, index=0):
    ...         rows[index, 0] = sum(1 << token for token in (1, 2) if token not in self.read)
    >>> from ngram_ref.core.links import derive_tree_links
    >>> tree = DraftTree.from_parents([[0, 1, 2, 2]], [[-1, 0, 0, 1]])
    >>> rows = torch.zeros(4, 1, dtype=torch.int32)
    >>> fill_tree_bitmask([OnlyOnce()], tree, *derive_tree_links(tree.mask), rows)
    >>> [bin(row) for row in rows[:, 0].tolist()]
    ['0b110', '0b100', '0b10', '0b0']
    """
    n = tree.tokens.shape[1]
    check_bitmask(bitmask, len(states), tree)
    bitmask.numpy().fill(-1)  # torch would wake its threads for this
    # Python reads single words through a memoryview several times faster than through a tensor or an array.
    words = bitmask.numpy().data.cast("B").cast("i")
    width = bitmask.shape[1]
    for b, state in enumerate(states):
        if state is not None and not state.is_terminated():
            links = next_token[b].tolist(), next_sibling[b].tolist()
            _fill_one(state, tree.tokens[b].tolist(), *links, bitmask, words, width, b * n)


def _fill_one(
    state: GrammarState,
    tokens: list[int],
    first_child: list[int],
    sibling: list[int],
    bitmask: torch.Tensor,
    words: memoryview,
    width: int,
    first_row: int,
) -> None:
    """Walk one tree, depth first."""
    state.fill_next_token_bitmask(bitmask, first_row)
    path = [0]  # from the root to the node whose children are being tried
    node = first_child[0]
    try:
        while path:
            if node < 0:  # no more children here: back to the parent, and on with its next sibling
                node = sibling[path.pop()]
                if path:
                    state.rollback(1)
                continue
            token = tokens[node]
            # The row of the parent says whether the token is allowed, so the state is not asked for one that is not.
            word = words[(first_row + path[-1]) * width + (token >> 5)] if 0 <= token < 32 * width else 0
            # It is asked all the same: engines leave bits of the last word set behind the end of the vocabulary.
            if not word >> (token & 31) & 1 or not state.accept_token(token):
                node = sibling[node]
                continue
            path.append(node)
            if state.is_terminated():
                node = -1  # nothing may follow: its row stays as it is, its children are not walked
            else:
                state.fill_next_token_bitmask(bitmask, first_row + node)
                node = first_child[node]
    finally:
        if len(path) > 1:
            state.rollback(len(path) - 1)


def fill_tree_bitmask_recursive(
    states: Sequence[GrammarState | None],
    tree: DraftTree,
    next_token: IntArray,
    next_sibling: IntArray,
    bitmask: torch.Tensor,
) -> None:
    """Do the same as upstream's code reads: a function that visits a node, its children, then its next sibling.

    To be read beside `fill_tree_bitmask`, which is the one to use: this one recurses once per node of a path and
    sibling of a family, and reads tensors element by element. Arguments and errors are the same.

    >>> fill_tree_bitmask_recursive([None], DraftTree.from_parents([[4]], [[-1]]), *2 * [None], torch.zeros(1, 2).int())
    """
    n = tree.tokens.shape[1]
    check_bitmask(bitmask, len(states), tree)
    bitmask.fill_(-1)
    for b, state in enumerate(states):
        if state is None:
            continue
        rows = bitmask[b * n : (b + 1) * n]

        def visit(node: int, parent: int, b: int = b, rows: torch.Tensor = rows, state: GrammarState = state) -> None:
            token = int(tree.tokens[b, node])
            is_root = node == 0
            if is_root or (0 <= token < 32 * rows.shape[1] and rows[parent, token // 32] >> (token % 32) & 1):
                is_read = is_root or state.accept_token(token)
                try:
                    if is_read and not state.is_terminated():
                        state.fill_next_token_bitmask(rows, node)
                        if next_token[b, node] >= 0:
                            visit(int(next_token[b, node]), node)
                finally:
                    if is_read and not is_root:
                        state.rollback(1)
            if not is_root and next_sibling[b, node] >= 0:
                visit(int(next_sibling[b, node]), parent)

        visit(0, -1)


def check_bitmask(bitmask: torch.Tensor, bs: int, tree: DraftTree) -> None:
    """Refuse a bitmask that a grammar engine would fill in the wrong places.

    Raises:
        TypeError: not int32.
        ValueError: not on the CPU, not contiguous (engines ignore strides), not `[bs * n, W]`, or another `bs`.

    >>> check_bitmask(torch.zeros(1, 2).int(), 1, DraftTree.from_parents([[4]], [[-1]]))
    """
    if bitmask.dtype != torch.int32:
        raise TypeError(f"bitmask must be int32, not {bitmask.dtype}")
    if bitmask.device.type != "cpu" or not bitmask.is_contiguous():
        raise ValueError("bitmask must be a contiguous CPU tensor: engines ignore strides; use .contiguous()")
    rows = tree.tokens.size
    if len(tree.tokens) != bs or bitmask.ndim != 2 or len(bitmask) != rows:
        raise ValueError(
            f"bitmask must be [bs * n, W] with {rows} rows for {len(tree.tokens)} trees and {bs} states, "
            f"not {list(bitmask.shape)}"
        )
