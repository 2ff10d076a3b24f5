"""The grammar side of a step: keep the drafted trees on the host, walk the grammars over them, fill the bitmask.

The host drafted the trees, so it has tokens and mask at hand: `keep_grammar_tree` keeps them when a step is launched
(upstream: `grammar_tree_host`), `fill_bitmask` walks over them while the device verifies. Both ask the same question,
`has_grammar`, so a batch without a grammar costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ngram_ref.core.links import derive_tree_links_vectorized
from ngram_ref.core.tree import DraftTree, IntArray
from ngram_ref.engine.batch import Row
from ngram_ref.grammar.native_walk import fill_tree_bitmask_native


@dataclass(frozen=True)
class GrammarTree:
    """What the host keeps of a launched batch for the grammar walk.

    Attributes:
        tree: tokens and mask.
        stamps: of each row, which prompt it decodes and how many tokens were committed; the latter grows with every
            step, so together they date the tree.
    """

    tree: DraftTree
    stamps: tuple[tuple[int, int], ...]


def has_grammar(rows: Sequence[Row]) -> bool:
    """Whether some request of the batch has a grammar."""
    return any(row.state is not None for row in rows)


def keep_grammar_tree(tree: DraftTree, rows: Sequence[Row]) -> GrammarTree | None:
    """Keep a drafted batch for the walk; None where no request has a grammar."""
    return GrammarTree(tree, _stamps(rows)) if has_grammar(rows) else None


def _stamps(rows: Sequence[Row]) -> tuple[tuple[int, int], ...]:
    return tuple((row.job.index, row.seq_len) for row in rows)


def fill_bitmask(kept: GrammarTree | None, rows: Sequence[Row], vocab_size: int) -> torch.Tensor | None:
    """Walk the grammars of a batch over the tree kept at its launch.

    Args:
        kept: what `keep_grammar_tree` gave for this step.
        rows: the same rows.
        vocab_size: V.

    Returns:
        int32 `[bs * n, ceil(V / 32)]` on the CPU, None where no request has a grammar.

    Raises:
        RuntimeError: the tree is another step's, which would make a wrong mask, or is kept without need or missing.
    """
    if (kept is not None) != has_grammar(rows):
        raise RuntimeError("a grammar tree must be kept if, and only if, some request of the batch has a grammar")
    if kept is None:
        return None
    if kept.stamps != _stamps(rows):
        raise RuntimeError("the grammar tree is stale: it was kept for another step than the one that is verified")
    bitmask = torch.empty((kept.tree.tokens.size, (vocab_size + 31) // 32), dtype=torch.int32)
    links = derive_tree_links_vectorized(kept.tree.mask)
    try:
        fill_tree_bitmask_native([row.state for row in rows], kept.tree, *links, bitmask)
    except Exception:
        _fill_each(kept.tree, links, rows, bitmask)
    return bitmask


def _fill_each(tree: DraftTree, links: tuple[IntArray, IntArray], rows: Sequence[Row], bitmask: torch.Tensor) -> None:
    """Walk row by row, so that a grammar that fails ends its own request and no other."""
    n = tree.tokens.shape[1]
    for b, row in enumerate(rows):
        one, own = slice(b, b + 1), bitmask[b * n : (b + 1) * n]
        single = DraftTree(tree.tokens[one], tree.mask[one])
        try:
            fill_tree_bitmask_native([row.state], single, links[0][one], links[1][one], own)
        except Exception as error:
            own.fill_(-1)
            row.fail(error)
