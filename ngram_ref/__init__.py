"""N-gram speculative decoding over token trees, to be read, run and changed.

>>> import ngram_ref as nr
>>> tree = nr.DraftTree.from_parents([[7, 20, 10, 21]], [[-1, 0, 0, 1]])
>>> nr.derive_tree_links(tree.mask)
(array([[ 1,  3, -1, -1]]), array([[-1,  2, -1, -1]]))
"""

from ngram_ref.core.accept import AcceptResult, accept_by_links, accept_greedy
from ngram_ref.core.config import DraftConfig
from ngram_ref.core.corpus import NgramCorpus
from ngram_ref.core.links import (
    TreeIndices,
    derive_tree_links,
    derive_tree_links_vectorized,
    reconstruct_indices_from_tree_mask,
)
from ngram_ref.core.tree import DraftTree
from ngram_ref.core.walk import fill_tree_bitmask
from ngram_ref.engine.audit import audit
from ngram_ref.engine.batch import Result, StepRecord
from ngram_ref.engine.generate import generate
from ngram_ref.engine.models import load_model
from ngram_ref.engine.target import Target
from ngram_ref.grammar.compile import any_json, ebnf, json_schema, regex

__all__ = [
    "AcceptResult",
    "DraftConfig",
    "DraftTree",
    "NgramCorpus",
    "Result",
    "StepRecord",
    "Target",
    "TreeIndices",
    "accept_by_links",
    "accept_greedy",
    "any_json",
    "audit",
    "derive_tree_links",
    "derive_tree_links_vectorized",
    "ebnf",
    "fill_tree_bitmask",
    "generate",
    "json_schema",
    "load_model",
    "reconstruct_indices_from_tree_mask",
    "regex",
]
