"""What a drawing of one tree needs to know, as plain data: the seam between the engine's arrays and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise

from ngram_ref.core.tree import DraftTree, ancestor_mask


class NodeState(Enum):
    """What became of a node; the value is the word that the text twins use."""

    ROOT = "root"
    DRAFTED = "drafted"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    PADDING = "padding"


@dataclass(frozen=True)
class TreeView:
    """One tree of a batch, ready to be drawn.

    Attributes:
        texts: the token of each node as text, as the tokenizer gives it (nothing escaped).
        parents: the parent of each node, −1 for the root and for padding.
        prefix_length: tokens committed in the cache; a node's position is this plus its depth.
        accepted: the accepted nodes, the root first; None before the tree is verified.
        bonus: the bonus token's text; None where there is none.

    Raises:
        ValueError: texts and parents differ in length, a parent does not come before its child, or `accepted` is no
            path from the root.

    >>> view = TreeView(("the", " cat", " dog"), (-1, 0, 0), prefix_length=4, accepted=(0, 2), bonus=" ran")
    >>> view.depths, view.positions, [state.value for state in view.states]
    ((0, 1, 1), (4, 5, 5), ['root', 'rejected', 'accepted'])
    """

    texts: tuple[str, ...]
    parents: tuple[int, ...]
    prefix_length: int = 0
    accepted: tuple[int, ...] | None = None
    bonus: str | None = None

    def __post_init__(self) -> None:
        if not self.texts or len(self.texts) != len(self.parents):
            raise ValueError(f"{len(self.texts)} texts and {len(self.parents)} parents do not make a tree")
        if any(not -1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("each entry of parents must be -1 or the index of an earlier node")
        path = self.accepted if self.accepted is not None else (0,)
        if path[:1] != (0,) or any(self.parents[b] != a for a, b in pairwise(path)):
            raise ValueError(f"accepted must be a path that starts at the root, not {path}")

    @classmethod
    def from_tree(
        cls,
        tree: DraftTree,
        texts: Sequence[str],
        prefix_length: int = 0,
        accepted: Sequence[int] | None = None,
        bonus: str | None = None,
        row: int = 0,
    ) -> TreeView:
        """Take one row of a batch of trees.

        Args:
            tree: the batch.
            texts: `[n]`, that row's tokens as texts.
            prefix_length, accepted, bonus: as the attributes; −1 in `accepted` is left out (as `accept_index` has it).
            row: which request.

        >>> TreeView.from_tree(DraftTree.from_parents([7, 20], [-1, 0]), ["a", "b"]).parents
        (-1, 0)
        """
        path = None if accepted is None else tuple(int(node) for node in accepted if node >= 0)
        return cls(tuple(texts), tuple(tree.parents[row].tolist()), prefix_length, path, bonus)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of ancestors of each node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position id of each node."""
        return tuple(self.prefix_length + depth for depth in self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, ascending."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def states(self) -> tuple[NodeState, ...]:
        """The state of each node."""
        return tuple(self._state(node) for node in range(len(self.parents)))

    def _state(self, node: int) -> NodeState:
        if node == 0:
            return NodeState.ROOT
        if self.parents[node] < 0:
            return NodeState.PADDING
        if self.accepted is None:
            return NodeState.DRAFTED
        return NodeState.ACCEPTED if node in self.accepted else NodeState.REJECTED

    def seen_by(self, node: int) -> list[int]:
        """The nodes that a node attends to, ascending: its ancestors and itself."""
        return [int(seen) for seen in ancestor_mask([self.parents])[0, node].nonzero()[0]]

    def summary(self) -> str:
        """What the drawing shows, in one sentence for those who do not see it.

        >>> TreeView(("a", "b"), (-1, 0), accepted=(0, 1), bonus="c").summary()
        "2 nodes, depth 1; drafts accepted: 1 of 1; bonus token 'c'"
        """
        pads = self.states.count(NodeState.PADDING)
        parts = [f"{len(self.texts) - pads} nodes, depth {max(self.depths)}" + (f", {pads} padding" if pads else "")]
        if self.accepted is not None:
            parts.append(f"drafts accepted: {len(self.accepted) - 1} of {len(self.texts) - pads - 1}")
        if self.bonus is not None:
            parts.append(f"bonus token {self.bonus!r}")
        return "; ".join(parts)
