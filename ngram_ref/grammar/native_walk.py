"""xgrammar's own tree walk, brought to the row policy of `core/walk.py`.

`GrammarMatcher.traverse_draft_tree` does in C++ what `fill_tree_bitmask` does in Python, and without the interpreter's
lock. Its rows differ in one respect: the row of a node whose token the parent's row forbids, and of one whose token
ends the grammar, it sets to zero. A row of zeros means a dead end here, so these are set back to ones afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xgrammar

from ngram_ref.core.tree import DraftTree, IntArray
from ngram_ref.core.walk import GrammarState, check_bitmask, fill_tree_bitmask


def fill_tree_bitmask_native(
    states: Sequence[GrammarState | None],
    tree: DraftTree,
    next_token: IntArray,
    next_sibling: IntArray,
    bitmask: torch.Tensor,
) -> None:
    """Fill the bitmask of a batch of trees; arguments, result and errors are those of `fill_tree_bitmask`.

    States that are no xgrammar matchers are walked in Python, and so are trees with a token in the last word of the
    bitmask: xgrammar leaves bits set there for ids behind the vocabulary's end, which this module cannot tell.

    >>> fill_tree_bitmask_native([None], DraftTree.from_parents([[4]], [[-1]]), *2 * [None], torch.zeros(1, 2).int())
    """
    n = tree.tokens.shape[1]
    check_bitmask(bitmask, len(states), tree)
    matchers = [state for state in states if state is None or isinstance(state, xgrammar.GrammarMatcher)]
    if len(matchers) < len(states) or (tree.tokens >= 32 * (bitmask.shape[1] - 1)).any():
        fill_tree_bitmask(states, tree, next_token, next_sibling, bitmask)
        return
    bitmask.numpy().fill(-1)  # torch would wake its threads for this
    for b, state in enumerate(matchers):
        if state is not None and not state.is_terminated():
            rows = bitmask[b * n : (b + 1) * n]
            # The walk reads memory and ignores strides, so every array must be contiguous.
            first_child, sibling = (
                torch.from_numpy(np.ascontiguousarray(links[b])) for links in (next_token, next_sibling)
            )
            state.traverse_draft_tree(first_child, sibling, torch.from_numpy(tree.tokens[b]), rows)
            _restore_rows(state, tree.tokens[b].tolist(), tree.parents[b].tolist(), rows)


def _restore_rows(state: GrammarState, tokens: list[int], parents: list[int], rows: torch.Tensor) -> None:
    """Set the rows of refused nodes, and of nodes that ended the grammar, back to ones."""
    words = rows.numpy()
    data, size = words.data.cast("B"), 4 * words.shape[1]
    zeros = bytes(size)
    for node in range(1, len(tokens)):
        # The walk was at every node with a row of zeros, so the row of its parent is real. Comparing bytes is fast.
        if bytes(data[node * size : (node + 1) * size]) == zeros:
            token = tokens[node]
            is_allowed = words[parents[node], token >> 5] >> (token & 31) & 1 if 0 <= token < 8 * size else 0
            if not is_allowed or _is_end(state, tokens, parents, node):
                words[node] = -1


def _is_end(state: GrammarState, tokens: list[int], parents: list[int], node: int) -> bool:
    """Tell a node that ended the grammar from a dead end, both rows of zeros: a copy of the state reads the path."""
    path = []
    while node > 0:
        path.append(tokens[node])
        node = parents[node]
    copy = state.fork()
    for token in reversed(path):
        copy.accept_token(token)
    return copy.is_terminated()
