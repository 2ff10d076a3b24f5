"""The corpus: learns n-grams from what was said, and drafts trees of what may be said next.

Drafting asks: where did the last few tokens occur before, and what followed? Every suffix of the context, up to
`max_trie_depth - 1` tokens, that the trie knows is an *anchor*. What follows the anchors is merged into one tree, the
longest anchor first, since a longer match is the better guess. Upstream's two rules for choosing are both here:

* `"BFS"`, by recency: below a node of depth d its most recent `breadth(d)` children. A long match is followed
  narrowly, a short one widely.
* `"PROB"`, by frequency: always the most probable node next, probabilities multiplied along the path.

Learning extends what is already counted: a request keeps the nodes that spell the last suffixes it learned, and
each new token adds one to the children of all of them. So every n-gram of a text is counted exactly once. (Upstream
inserts the last 18 tokens again in every step and counts an n-gram as often as it stays in that window.)

Upstream: `sglang/srt/speculative/cpp_ngram/ngram_corpus.py` and the C++ beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from operator import index
from threading import Lock

import numpy as np

from ngram_ref.core.config import DraftConfig
from ngram_ref.core.tree import DraftTree, ancestor_mask
from ngram_ref.core.trie import ROOT, Trie

_ROOT_ANCHOR = (ROOT, 0)  # (node, born): the empty suffix, where every n-gram begins
_NO_ANCHOR = (ROOT, -1)  # keeps the place of an evicted anchor: no node was born then


class CorpusRequest:
    """One text as the corpus follows it.

    Attributes:
        ids: all tokens of the text so far, prompt and emitted tokens.
    """

    def __init__(self, corpus: NgramCorpus, ids: list[int]) -> None:
        self.ids = ids
        self._corpus = corpus
        # Where the next token to learn is counted: the nodes that spell the last learned suffixes, the longest first.
        self._anchors: list[tuple[int, int]] = [_ROOT_ANCHOR]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens: drafts match them from now on; they are learned with the next `NgramCorpus.learn`."""
        checked = _checked(tokens)
        self.ids.extend(checked)
        self._corpus._queue.append((self, checked))


class NgramCorpus:
    """Drafts trees from n-grams, learns n-grams from texts.

    One corpus may serve many requests and many calls, but one thread at a time.

    Args:
        config: see `DraftConfig`.

    >>> corpus = NgramCorpus(DraftConfig(num_draft_tokens=6, max_trie_depth=8, max_bfs_breadth=4))
    >>> for text in ([7, 10, 11, 12], [7, 20, 21], [7, 10, 30]):
    ...     corpus.insert(text)
    >>> tree = corpus.draft([[7]], 6)
    >>> tree.tokens, tree.parents
    (array([[ 7, 10, 20, 30, 11, 21]]), array([[-1,  0,  0,  1,  1,  2]]))
    """

    def __init__(self, config: DraftConfig | None = None) -> None:
        self.config = config or DraftConfig()
        self.trie = Trie(self.config.capacity, self.config.match_type)
        self._queue: list[tuple[CorpusRequest, list[int]]] = []
        self._busy = Lock()
        least, most, deepest = self.config.min_bfs_breadth, self.config.max_bfs_breadth, self.config.max_trie_depth - 1
        # How many children to follow, by depth of the trie node: falls from `most` to `least` at the deepest match.
        self._breadth = [least + (deepest - depth) * (most - least) // deepest for depth in range(deepest + 1)]
        self._breadth.append(least)  # nodes of full depth are leaves; they are asked all the same

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the corpus for one run of calls.

        Raises:
            RuntimeError: another thread holds it.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this NgramCorpus is in use already: wait, or give each thread its own")
        try:
            yield
        finally:
            self._busy.release()

    def start(self, prompt_ids: Sequence[int]) -> CorpusRequest:
        """Begin a request; with `learn_prompt` its prompt is learned at once.

        Args:
            prompt_ids: token ids, at least one. An end-of-sequence id among them is a token like any other.
        """
        request = CorpusRequest(self, _checked(prompt_ids))
        if self.config.learn_prompt:
            self._count(request, request.ids)
        return request

    def insert(self, ids: Sequence[int]) -> None:
        """Learn a text at once. Its n-grams do not run on into another text's."""
        self._count(CorpusRequest(self, []), _checked(ids))

    def learn(self) -> None:
        """Work off what `CorpusRequest.extend` has queued, in that order."""
        queue, self._queue = self._queue, []
        for request, tokens in queue:
            self._count(request, tokens)

    def match(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Find the anchors: trie nodes that spell a suffix of `ids` and have children.

        Returns:
            `(length, node)` pairs, the longest suffix first.

        >>> corpus = NgramCorpus()
        >>> corpus.insert([1, 2, 3])
        >>> [length for length, node in corpus.match([9, 1, 2])]
        [2, 1]
        """
        tail = list(ids[-(self.config.max_trie_depth - 1) :])
        found = ((len(tail) - start, self.trie.find(tail[start:])) for start in range(len(tail)))
        return [(length, node) for length, node in found if node is not None and self.trie.children(node, 1)]

    def draft(
        self,
        contexts: Sequence[CorpusRequest | Sequence[int]],
        n: int | None = None,
        max_depth: Sequence[int] | None = None,
    ) -> DraftTree:
        """Draft one tree per context, with the context's last token as the root.

        Drafting from a request equals drafting from its ids, whatever was learned in between.

        Args:
            contexts: requests of this corpus, or lists of token ids; none empty.
            n: nodes of each tree, the root included; `config.num_draft_tokens` by default.
            max_depth: for each context the largest depth of a node, the room left along a path; by default n − 1.

        Returns:
            A `DraftTree` with `bs = len(contexts)`, nodes in BFS order, siblings by preference, padded to n.

        Raises:
            TypeError, ValueError: no context, an empty one, one that holds no token ids, another corpus's request,
                `n < 1`, or `max_depth` of another length.
        """
        n = self.config.num_draft_tokens if n is None else n
        rooms = [n - 1] * len(contexts) if max_depth is None else list(max_depth)
        if index(n) < 1 or len(contexts) == 0 or len(rooms) != len(contexts):
            raise ValueError(
                f"cannot draft n={n} nodes for {len(contexts)} contexts with {len(rooms)} max_depth values"
            )
        tokens, parents = [], []
        for context, room in zip(contexts, rooms, strict=True):
            grown = self._grow(self._tail(context), n, room)
            row_tokens, row_parents = grown.in_bfs_order()
            tokens.append(row_tokens)
            parents.append(row_parents)
        return DraftTree(np.array(tokens, dtype=np.int64), ancestor_mask(parents))

    def _tail(self, context: CorpusRequest | Sequence[int]) -> list[int]:
        """Take the end of a context, as much as can match."""
        if not isinstance(context, CorpusRequest):
            return _checked(context[-self.config.max_trie_depth :])
        if context._corpus is not self:
            raise ValueError("a context is another corpus's request: pass its ids instead")
        return context.ids[-self.config.max_trie_depth :]

    def _count(self, request: CorpusRequest, tokens: Sequence[int]) -> None:
        """Count every n-gram that ends at one of `tokens`."""
        trie = self.trie
        for token in tokens:
            longer = []
            for node, born in request._anchors:
                # The stamp tells whether the anchor is still the node it was: eviction may have given its number away.
                child = trie.count_ngram(node, token) if trie.born[node] == born else -1
                longer.append((child, trie.born[child]) if child >= 0 else _NO_ANCHOR)
            # An n-gram of full length has no children, so it is no anchor.
            request._anchors = [*longer[1 - self.config.max_trie_depth :], _ROOT_ANCHOR]

    def _grow(self, ids: Sequence[int], n: int, max_depth: int) -> _Sprout:
        """Grow the tree of one context from its anchors, until n nodes are there or nothing is left to add."""
        if len(ids) == 0:
            raise ValueError("a context must hold at least one token: its last one is the root of the tree")
        sprout = _Sprout(ids[-1], n, max_depth)
        grow = self._grow_by_recency if self.config.match_type == "BFS" else self._grow_by_frequency
        for length, anchor in self.match(ids):
            if sprout.is_full():
                break
            grow(sprout, anchor, length)
        return sprout

    def _grow_by_recency(self, sprout: _Sprout, anchor: int, length: int) -> None:
        """Add what follows `anchor`, level by level, the most recent first."""
        trie = self.trie
        queue = deque([(anchor, 0, length)])
        while queue:
            node, place, depth = queue.popleft()
            for child in trie.children(node, self._breadth[depth]) if sprout.has_room(place) else ():
                queue.append((child, sprout.add(place, trie.token[child]), depth + 1))
                if sprout.is_full():
                    return

    def _grow_by_frequency(self, sprout: _Sprout, anchor: int, length: int) -> None:
        """Add what follows `anchor`, the most probable node first."""
        trie = self.trie
        heap: list[tuple[float, int, int, int]] = []  # (−probability, arrival, trie node, place of its parent)
        arrival = 0
        node, place, probability = anchor, 0, 1.0
        while not sprout.is_full():
            children = trie.children(node, self.config.max_bfs_breadth) if sprout.has_room(place) else []
            total = sum(trie.count[child] for child in children)
            for child in children:
                arrival += 1
                heappush(heap, (-probability * trie.count[child] / total, arrival, child, place))
            if not heap:
                return
            negative, _, node, parent = heappop(heap)
            probability, place = -negative, sprout.add(parent, trie.token[node])


def _checked(tokens: Sequence[int]) -> list[int]:
    """Copy token ids to a list of Python integers, which the trie packs with node numbers.

    Raises:
        TypeError, ValueError: an id that is no integer, is negative, or takes more than 32 bits.
    """
    ids = list(map(index, tokens))
    if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
        raise ValueError(f"token ids must lie between 0 and 2**32 - 1, found {min(ids)} and {max(ids)}")
    return ids


class _Sprout:
    """A tree while it grows; equal tokens below one parent are one node."""

    def __init__(self, root_token: int, n: int, max_depth: int) -> None:
        self._n = n
        self._max_depth = max_depth
        self._tokens, self._parents, self._depths = [root_token], [-1], [0]
        self._places: dict[tuple[int, int], int] = {}

    def is_full(self) -> bool:
        return len(self._tokens) == self._n

    def has_room(self, place: int) -> bool:
        """Tell whether a child of the node at `place` may exist."""
        return self._depths[place] < self._max_depth

    def add(self, parent: int, token: int) -> int:
        """Add a child, or find it, and return its place."""
        place = self._places.setdefault((parent, token), len(self._tokens))
        if place == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
            self._depths.append(self._depths[parent] + 1)
        return place

    def in_bfs_order(self) -> tuple[list[int], list[int]]:
        """Number the nodes in BFS order, siblings as they came, and pad: tokens and parents, each of length n."""
        children: list[list[int]] = [[] for _ in self._tokens]
        for place, parent in enumerate(self._parents[1:], start=1):
            children[parent].append(place)
        order, parents = [0], [-1]
        for number, place in enumerate(order):  # grows while it is walked: that is the breadth-first queue
            order += children[place]
            parents += [number] * len(children[place])
        padding = self._n - len(order)
        return [self._tokens[place] for place in order] + [0] * padding, parents + [-1] * padding
