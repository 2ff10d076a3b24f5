"""Drawings by hand: SVG, HTML and text, each a pure function of plain data.

Read `view.py` (what a drawing needs to know), then `layout.py` and `tree.py`, `mask.py`, `links.py`, `tokens.py`, and
`figure.py` (what a notebook shows). `twins.py` has the same in plain text.
"""

from ngram_ref.lab.viz.figure import (
    Figure,
    TokenFigure,
    linked_tree_figure,
    mask_figure,
    same_nodes_figure,
    tree_figure,
)
from ngram_ref.lab.viz.theme import DARK, LIGHT, LIVE, Theme
from ngram_ref.lab.viz.tokens import StepTokens, token_texts
from ngram_ref.lab.viz.view import NodeState, TreeView

__all__ = [
    "DARK",
    "LIGHT",
    "LIVE",
    "Figure",
    "NodeState",
    "StepTokens",
    "Theme",
    "TokenFigure",
    "TreeView",
    "linked_tree_figure",
    "mask_figure",
    "same_nodes_figure",
    "token_texts",
    "tree_figure",
]
