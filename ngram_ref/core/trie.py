"""A trie of n-grams over token ids: what followed what, how often, how recently.

A node stands for the n-gram spelled on the way to it from the root. It keeps how often that n-gram was counted and when
it was last counted; its children stand in order of preference, by one of the two. When the trie is full, the least
recently used leaf makes room.

Nodes are numbers and their attributes stand in flat lists, edges in one dict, instead of an object with a dict per
node: less memory, and nothing for the garbage collector to visit. A number is used again after its node was evicted, so
whoever keeps one keeps `born[node]` beside it and compares.

After the text 7 10 7 20, for n-grams of two tokens:

    root 0 ── 7 (node 1, counted twice) ── 10 (node 2)      edges: (0, 7) → 1, (1, 10) → 2, (1, 20) → 5, …
           │                            └─ 20 (node 5)      ranked: 1 → ranks of 5 and 2, as 20 is more recent
           ├─ 10 (node 3) ── 7 (node 4)                     child: 3 → 4, as an only child needs no rank
           └─ 20 (node 6)

Upstream: `kernels/jit/csrc/ngram_corpus/trie.cpp`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal

MatchType = Literal["BFS", "PROB"]

ROOT = 0
_SHIFT = 32  # packs two numbers into one: an edge is `node << 32 | token`, token ids being below 2**32
_LOW = (1 << _SHIFT) - 1


class Trie:
    """The n-grams of a corpus.

    Attributes:
        capacity: the largest number of nodes, the root included.
        token, parent, count, last_use, born: per node its token id, its parent, how often it was counted, and the
            times (numbers of counts so far) when that happened last and when the node came into being.

    >>> trie = Trie(capacity=100, match_type="PROB")
    >>> seven = trie.count_ngram(ROOT, 7)
    >>> for token in (20, 10, 10):
    ...     _ = trie.count_ngram(seven, token)
    >>> [trie.token[child] for child in trie.children(trie.find([7]), limit=2)]
    [10, 20]
    """

    def __init__(self, capacity: int, match_type: MatchType) -> None:
        self.capacity = capacity
        self.token, self.parent, self.count, self.last_use, self.born = [-1], [-1], [0], [0], [0]
        self._rank_by = self.last_use if match_type == "BFS" else self.count
        self._edges: dict[int, int] = {}  # (node, token) -> child
        self._child = [-1]  # some child of the node, −1 at a leaf; most nodes have one child
        self._ranked: dict[int, list[int]] = {}  # node with several children -> their ranks, the preferred one first
        self._leaves: list[int] = []  # heap of (last use, node); entries that no longer hold are passed over
        self._free: list[int] = []
        self._clock = 0

    def __len__(self) -> int:
        """Count the nodes, the root included."""
        return len(self._edges) + 1

    def find(self, ngram: Sequence[int]) -> int | None:
        """Find the node that spells `ngram`, None where there is none."""
        node = ROOT
        for token in ngram:
            child = self._edges.get(node << _SHIFT | token)
            if child is None:
                return None
            node = child
        return node

    def children(self, node: int, limit: int) -> list[int]:
        """List the first `limit` children of a node in order of preference; costs nothing for those behind."""
        ranked = self._ranked.get(node)
        if ranked is None:
            child = self._child[node]
            return [child][:limit] if child >= 0 else []
        first_edge = node << _SHIFT
        return [self._edges[first_edge | (rank & _LOW)] for rank in ranked[:limit]]

    def count_ngram(self, node: int, token: int) -> int:
        """Count the n-gram of `node` followed by `token` once more.

        Returns:
            The node of the longer n-gram, created where it is new; −1 if making room for it evicted `node` itself.
        """
        self._clock += 1
        child = self._edges.get(node << _SHIFT | token)
        if child is None:
            return self._create(node, token)
        ranked = self._ranked.get(node)
        if ranked is not None:
            del ranked[bisect_left(ranked, self._rank(child))]
        self.count[child] += 1
        self.last_use[child] = self._clock
        if ranked is not None:
            insort(ranked, self._rank(child))
        return child

    def _rank(self, node: int) -> int:
        """Make a number that sorts by preference: the most recent or most frequent first, then the smaller token."""
        return -self._rank_by[node] << _SHIFT | self.token[node]

    def _create(self, parent: int, token: int) -> int:
        """Add a leaf below `parent`."""
        if len(self) == self.capacity and self._evict() == parent:
            return -1
        node = self._take_number()
        self.token[node], self.parent[node], self.count[node] = token, parent, 1
        self.last_use[node] = self.born[node] = self._clock
        self._edges[parent << _SHIFT | token] = node
        sibling = self._child[parent]
        if sibling < 0:
            self._child[parent] = node
        elif parent in self._ranked:
            insort(self._ranked[parent], self._rank(node))
        else:
            self._ranked[parent] = sorted((self._rank(sibling), self._rank(node)))
        heappush(self._leaves, self._clock << _SHIFT | node)
        return node

    def _take_number(self) -> int:
        """Give out the number of an evicted node, or a new one."""
        if self._free:
            return self._free.pop()
        for column in (self.token, self.parent, self.count, self.last_use, self.born, self._child):
            column.append(-1)
        return len(self.token) - 1

    def _evict(self) -> int:
        """Remove the least recently used leaf and return the number that it had."""
        while True:
            entry = heappop(self._leaves)
            node, last_use = entry & _LOW, self.last_use[entry & _LOW]
            if last_use < 0 or self._child[node] >= 0:
                continue  # gone already, or a leaf no longer: it gets a new entry when it loses its last child
            if last_use == entry >> _SHIFT:
                break
            heappush(self._leaves, last_use << _SHIFT | node)  # used since
        self._detach(node)
        self.last_use[node] = self.born[node] = -1
        self._free.append(node)
        return node

    def _detach(self, node: int) -> None:
        """Take a leaf out of its parent's children."""
        parent, token = self.parent[node], self.token[node]
        del self._edges[parent << _SHIFT | token]
        ranked = self._ranked.get(parent)
        if ranked is None:
            self._child[parent] = -1
            if parent != ROOT:
                heappush(self._leaves, self.last_use[parent] << _SHIFT | parent)
            return
        del ranked[bisect_left(ranked, self._rank(node))]
        self._child[parent] = self._edges[parent << _SHIFT | (ranked[0] & _LOW)]
        if len(ranked) == 1:
            del self._ranked[parent]
