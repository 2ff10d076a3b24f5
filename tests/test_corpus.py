"""NgramCorpus against two models of the same rules: one recounts its texts, one keeps n-grams and evicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import brute_path, token_paths

from ngram_ref.core.corpus import CorpusRequest, DraftConfig, NgramCorpus
from ngram_ref.core.tree import DraftTree
from ngram_ref.core.trie import ROOT, Trie

Ngram = tuple[int, ...]


class Model(ABC):
    """Drafting by the rules of `corpus.py`, on top of "which tokens followed this n-gram, how often, how recently"."""

    def __init__(self, config: DraftConfig) -> None:
        self.config = config

    @abstractmethod
    def learn(self, text: int, tokens: Sequence[int]) -> None:
        """Append tokens to the text of that number; n-grams do not run from one text into another."""

    @abstractmethod
    def followers(self, ngram: Ngram) -> dict[int, tuple[int, int]]:
        """Give for each token that followed `ngram` how often it did, and when last."""

    def children(self, ngram: Ngram) -> list[int]:
        """List what followed in order of preference."""
        found = self.followers(ngram)
        if self.config.match_type == "BFS":
            return sorted(found, key=lambda token: -found[token][1])
        return sorted(found, key=lambda token: (-found[token][0], token))

    def draft(self, ids: Sequence[int], n: int, max_depth: int) -> tuple[list[int], list[int]]:
        """Draft one tree, kept as the paths of its nodes below the root, in the order in which they came."""
        paths: list[Ngram] = []
        grow = self._by_recency if self.config.match_type == "BFS" else self._by_frequency
        for length in range(min(len(ids), self.config.max_trie_depth - 1), 0, -1):
            for path in grow(tuple(ids[-length:])):
                if len(paths) == n - 1:
                    break
                # A path that is too deep is skipped, and so is all that lies below it.
                fits = len(path) <= max_depth and path[:-1] in {(), *paths}
                if fits and path not in paths:
                    paths.append(path)
        order: list[Ngram] = [()]
        for path in order:
            order += [below for below in paths if below[:-1] == path]
        tokens, parents = [ids[-1]], [-1]
        for path in order[1:]:
            tokens.append(path[-1])
            parents.append(order.index(path[:-1]))
        pads = n - len(order)
        return tokens + [0] * pads, parents + [-1] * pads

    def _by_recency(self, anchor: Ngram) -> Iterator[Ngram]:
        """Yield all that follows `anchor` within the breadth, level by level."""
        least, most, longest = self.config.min_bfs_breadth, self.config.max_bfs_breadth, self.config.max_trie_depth - 1
        level: list[Ngram] = [()]
        while level:
            below = []
            for path in level:
                depth = len(anchor) + len(path)
                breadth = int(least + (most - least) * (longest - depth) / longest + 1e-9) if depth <= longest else 0
                below += [(*path, token) for token in self.children(anchor + path)[:breadth]]
            yield from below
            level = below

    def _by_frequency(self, anchor: Ngram) -> Iterator[Ngram]:
        """Yield what follows `anchor`, the most probable first, of equally probable ones the one seen first."""
        candidates: list[tuple[float, Ngram]] = []
        path: Ngram = ()
        probability = 1.0
        while True:
            found = self.followers(anchor + path)
            top = self.children(anchor + path)[: self.config.max_bfs_breadth]
            total = sum(found[token][0] for token in top)
            # Floats on purpose: two products that are equal as fractions may differ in the last bit, and so the order.
            candidates += [(probability * found[token][0] / total, (*path, token)) for token in top]
            if not candidates:
                return
            probability, path = best = max(candidates, key=lambda candidate: candidate[0])
            candidates.remove(best)
            yield path


class RecountingModel(Model):
    """Keeps all texts and counts n-grams anew whenever asked."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self.texts: dict[int, list[tuple[int, int]]] = {}  # per text its (token, time of learning)
        self.time = 0

    def learn(self, text: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.time += 1
            self.texts.setdefault(text, []).append((token, self.time))

    def followers(self, ngram: Ngram) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        if len(ngram) >= self.config.max_trie_depth:
            return found
        for text in self.texts.values():
            for end in range(len(ngram), len(text)):
                if tuple(token for token, _ in text[end - len(ngram) : end]) == ngram:
                    token, time = text[end]
                    count, last = found.get(token, (0, 0))
                    found[token] = count + 1, max(last, time)
        return found

    def counts(self) -> Counter[Ngram]:
        """Count every n-gram up to `max_trie_depth`."""
        texts = [[token for token, _ in text] for text in self.texts.values()]
        lengths = range(1, self.config.max_trie_depth + 1)
        return Counter(tuple(t[end - k : end]) for t in texts for k in lengths for end in range(k, len(t) + 1))


class EvictingModel(Model):
    """Keeps n-grams in a dict, and evicts by looking at all of them.

    A clock ticks with every n-gram counted; those ending at one token are counted longest first. A new n-gram that
    finds no room evicts the leaf counted longest ago; where that is the very n-gram it extends, it stays away. A text
    goes on counting below an n-gram only while that is there without a break.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self.clock = 0
        self.kept: dict[Ngram, list[int]] = {}  # n-gram -> [count, last use, born]
        self.open: dict[int, list[tuple[Ngram, int]]] = {}  # per text the (n-gram, born) to extend, the longest first

    def learn(self, text: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            extended = [self._count(prefix, born, token) for prefix, born in [*self.open.get(text, []), ((), 0)]]
            self.open[text] = [e for e in extended if e is not None and len(e[0]) < self.config.max_trie_depth]

    def _count(self, prefix: Ngram, born: int, token: int) -> tuple[Ngram, int] | None:
        if prefix and (prefix not in self.kept or self.kept[prefix][2] != born):
            return None
        self.clock += 1
        ngram = (*prefix, token)
        if ngram not in self.kept:
            if len(self.kept) + 1 == self.config.capacity:
                inner = {kept[:-1] for kept in self.kept}
                evicted = min((kept for kept in self.kept if kept not in inner), key=lambda kept: self.kept[kept][1])
                del self.kept[evicted]
                if evicted == prefix:
                    return None
            self.kept[ngram] = [0, 0, self.clock]
        self.kept[ngram][0] += 1
        self.kept[ngram][1] = self.clock
        return ngram, self.kept[ngram][2]

    def followers(self, ngram: Ngram) -> dict[int, tuple[int, int]]:
        return {kept[-1]: (use[0], use[1]) for kept, use in self.kept.items() if kept[:-1] == ngram}


def stored(trie: Trie) -> dict[Ngram, int]:
    """Walk the whole trie: n-gram -> node, in depth-first order of preference."""
    found: dict[Ngram, int] = {}
    stack: list[tuple[Ngram, int]] = [((), ROOT)]
    while stack:
        ngram, node = stack.pop()
        found[ngram] = node
        stack += [((*ngram, trie.token[c]), c) for c in reversed(trie.children(node, trie.capacity))]
    return found


def ranking(trie: Trie) -> list[tuple[Ngram, int]]:
    """List n-grams and counts in depth-first order of preference: two tries with equal lists draft alike."""
    return [(ngram, trie.count[node]) for ngram, node in stored(trie).items()]


def check_structure(trie: Trie, match_type: str) -> None:
    """Check that the trie hangs together: every node reachable, linked both ways, ranked, counted plausibly."""
    nodes = stored(trie)
    assert len(set(nodes.values())) == len(nodes) == len(trie) <= trie.capacity  # all reached, so no orphan
    for ngram, node in nodes.items():
        assert trie.find(ngram) == node
        children = trie.children(node, trie.capacity)
        assert {trie.parent[child] for child in children} <= {node}
        assert len({trie.token[child] for child in children}) == len(children)
        keys = [(-trie.last_use[c] if match_type == "BFS" else -trie.count[c], trie.token[c]) for c in children]
        assert keys == sorted(keys)
        assert [trie.children(node, limit) for limit in (1, 2)] == [children[:1], children[:2]]
        if ngram:
            assert 0 < trie.born[node] <= trie.last_use[node]
            assert max(sum(trie.count[c] for c in children), 1) <= trie.count[node]
    assert len({trie.last_use[node] for node in nodes.values()}) == len(nodes)


def row(tree: DraftTree, b: int = 0) -> tuple[list[int], list[int]]:
    return tree.tokens[b].tolist(), tree.parents[b].tolist()


TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=14)
OPERATION = st.one_of(
    st.tuples(st.just("insert"), TEXT),
    st.tuples(st.just("start"), TEXT),
    st.tuples(st.just("extend"), st.integers(0, 5), TEXT),
    st.tuples(st.just("learn")),
)


@st.composite
def configs(draw: st.DrawFn) -> DraftConfig:
    breadths = sorted(draw(st.tuples(st.integers(1, 4), st.integers(1, 4))))
    return DraftConfig(
        num_draft_tokens=draw(st.integers(1, 12)),
        max_trie_depth=draw(st.integers(2, 6)),
        min_bfs_breadth=breadths[0],
        max_bfs_breadth=breadths[1],
        match_type=draw(st.sampled_from(["BFS", "PROB"])),
        learn_prompt=draw(st.booleans()),
    )


def follow(corpus: NgramCorpus, model: Model, operations: Sequence[tuple[Any, ...]]) -> Iterator[list[CorpusRequest]]:
    """Do the operations on both, and yield the requests after each."""
    requests: list[CorpusRequest] = []
    queue: list[tuple[int, list[int]]] = []
    for number, (name, *arguments) in enumerate(operations):
        if name == "insert":
            corpus.insert(arguments[0])
            model.learn(-1 - number, arguments[0])
        elif name == "start":
            if corpus.config.learn_prompt:
                model.learn(len(requests), arguments[0])
            requests.append(corpus.start(arguments[0]))
        elif name == "extend" and requests:
            which = arguments[0] % len(requests)
            requests[which].extend(arguments[1])
            queue.append((which, arguments[1]))
        elif name == "learn":
            corpus.learn()
            for which, tokens in queue:
                model.learn(which, tokens)
            queue.clear()
        yield requests


def check_drafts(corpus: NgramCorpus, model: Model, contexts: list[CorpusRequest], query: list[int], room: int) -> None:
    """Compare the drafts of all requests and of one list of ids with the model's; request and ids draft alike."""
    n = corpus.config.num_draft_tokens
    rooms = [room + k for k in range(len(contexts) + 1)]
    tree = corpus.draft([*contexts, query], max_depth=rooms)
    tree.check()
    for b, (ids, depth) in enumerate(zip([*(c.ids for c in contexts), query], rooms, strict=True)):
        matching = [k for k in range(len(ids), 0, -1) if model.followers(tuple(ids[-k:]))]
        assert corpus.match(ids) == [(k, corpus.trie.find(ids[-k:])) for k in matching]
        assert row(tree, b) == model.draft(ids, n, depth)
        assert row(tree, b) == row(corpus.draft([list(ids)], n, [depth]))


@settings(deadline=None, max_examples=300)
@given(configs(), st.lists(OPERATION, max_size=10), TEXT, st.integers(-1, 12))
def test_drafts_and_counts_equal_those_of_a_recount(
    config: DraftConfig, operations: list[tuple[Any, ...]], query: list[int], room: int
) -> None:
    corpus, model = NgramCorpus(config), RecountingModel(config)
    for requests in follow(corpus, model, operations):
        check_drafts(corpus, model, requests, query, room)
    counts = {ngram: corpus.trie.count[node] for ngram, node in stored(corpus.trie).items() if ngram}
    assert counts == model.counts()
    check_structure(corpus.trie, config.match_type)


@settings(deadline=None, max_examples=300)
@given(configs(), st.integers(1, 12), st.lists(OPERATION, min_size=3, max_size=14), TEXT)
def test_with_eviction_everything_equals_a_trie_of_paths(
    config: DraftConfig, spare: int, operations: list[tuple[Any, ...]], query: list[int]
) -> None:
    config = replace(config, capacity=config.max_trie_depth + spare)
    corpus, model = NgramCorpus(config), EvictingModel(config)
    for requests in follow(corpus, model, operations):
        check_structure(corpus.trie, config.match_type)
        nodes = stored(corpus.trie)
        kept = {ngram: [corpus.trie.count[x], corpus.trie.last_use[x]] for ngram, x in nodes.items() if ngram}
        assert kept == {ngram: use[:2] for ngram, use in model.kept.items()}
        check_drafts(corpus, model, requests, query, config.num_draft_tokens)


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
@pytest.mark.parametrize("capacity", [6, 7, 12, 100])
def test_long_use_of_a_full_trie_keeps_it_whole_and_its_bookkeeping_bounded(capacity: int, match_type: str) -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=5, capacity=capacity, match_type=match_type))  # type: ignore[arg-type]
    rng = np.random.default_rng(capacity)
    requests = [corpus.start([1]) for _ in range(3)]
    for step in range(1500):
        requests[int(rng.integers(3))].extend(rng.geometric(0.3, size=int(rng.integers(1, 6))).tolist())
        corpus.learn()
        if step % 50 == 0:
            check_structure(corpus.trie, match_type)
            corpus.draft(requests).check()
    assert len(corpus.trie) == capacity
    assert max(len(part) for part in vars(corpus.trie).values() if hasattr(part, "__len__")) <= 2 * capacity


@settings(deadline=None, max_examples=200)
@given(configs(), st.lists(TEXT, min_size=1, max_size=6), TEXT)
def test_learning_in_pieces_equals_learning_at_once(
    config: DraftConfig, pieces: list[list[int]], more: list[int]
) -> None:
    config = replace(config, learn_prompt=True)
    corpus, at_once = NgramCorpus(config), NgramCorpus(config)
    request = corpus.start(pieces[0])
    for piece in pieces[1:]:
        request.extend(piece)
        if len(piece) % 2:
            corpus.learn()
    corpus.learn()
    text = [token for piece in pieces for token in piece]
    at_once.insert(text)
    assert request.ids == text
    assert ranking(corpus.trie) == ranking(at_once.trie)
    assert row(corpus.draft([text + more])) == row(at_once.draft([text + more]))


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_upstreams_worked_example(match_type: str) -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=8, max_bfs_breadth=4, match_type=match_type))  # type: ignore[arg-type]
    for text in ([7, 10, 11, 12], [7, 20, 21], [7, 10, 30]):
        corpus.insert(text)
    tokens, parents = row(corpus.draft([[7]], 6))
    assert tokens[0] == 7
    assert token_paths(tokens, parents) == {(20, 21), (10, 11), (10, 30)}


@pytest.mark.parametrize(
    ("match_type", "query", "paths"),
    [
        ("BFS", [1, 2, 3], {(4, 5, 6), (44, 55, 66, 77)}),
        ("PROB", [1, 2, 3], {(44, 55, 66), (4, 5, 6, 7)}),
        ("BFS", [3, 44], {(55, 66, 77, 88, 99, 100)}),
        ("PROB", [3, 44], {(55, 66, 77, 88, 99, 100)}),
        ("BFS", [3, 6, 999], set()),
        ("PROB", [3, 6, 999], set()),
    ],
)
def test_upstreams_golden_trees(match_type: str, query: list[int], paths: set[Ngram]) -> None:
    corpus = NgramCorpus(
        DraftConfig(num_draft_tokens=8, max_trie_depth=12, max_bfs_breadth=8, match_type=match_type)  # type: ignore[arg-type]
    )
    corpus.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    corpus.insert([1, 2, 3, 44, 55, 66, 77, 88, 99, 100])
    tree = corpus.draft([query])
    tokens, parents = row(tree)
    assert tokens[0] == query[-1]
    assert token_paths(tokens, parents) == paths
    assert int((~tree.is_padding).sum()) == 1 + len({path[:k] for path in paths for k in range(1, len(path) + 1)})


def corpus_of(*texts: list[int], **settings: Any) -> NgramCorpus:
    corpus = NgramCorpus(DraftConfig(**settings))
    for text in texts:
        corpus.insert(text)
    return corpus


def first_level(corpus: NgramCorpus, ids: list[int]) -> list[int]:
    tokens, parents = row(corpus.draft([ids]))
    return [token for token, parent in zip(tokens, parents, strict=True) if parent == 0]


def test_siblings_stand_in_order_of_preference_the_longest_match_first() -> None:
    texts = [[5, 1], [5, 1], [5, 1], [5, 2], [5, 2], [5, 3], [9, 5, 4]]
    assert first_level(corpus_of(*texts, match_type="BFS"), [5]) == [4, 3, 2, 1]
    assert first_level(corpus_of(*texts, match_type="PROB"), [5]) == [1, 2, 3, 4]
    assert first_level(corpus_of(*texts, [5, 1], match_type="BFS"), [9, 5]) == [4, 1, 3, 2]
    assert first_level(corpus_of(*texts, match_type="PROB"), [9, 5]) == [4, 1, 2, 3]


def test_learning_is_one_step_late_matching_is_not() -> None:
    corpus = corpus_of([7, 8, 9])
    request = corpus.start([1, 2])
    request.extend([7, 8])
    assert first_level(corpus, request.ids) == [9]  # matched at once
    assert first_level(corpus, [2]) == []  # 2 → 7 is queued, not learned
    corpus.learn()
    assert first_level(corpus, [2]) == [7]
    before = ranking(corpus.trie)
    corpus.learn()
    assert ranking(corpus.trie) == before  # the queue was emptied


def test_the_prompt_is_learned_at_once_or_not_at_all() -> None:
    assert first_level(NgramCorpus(), [1]) == []
    for learn_prompt, expected in ((True, [2]), (False, [])):
        corpus = NgramCorpus(DraftConfig(learn_prompt=learn_prompt))
        request = corpus.start([1, 2])
        assert first_level(corpus, [1]) == expected
        request.extend([3, 4])
        corpus.learn()
        assert first_level(corpus, [1]) == expected
        assert first_level(corpus, [3]) == [4]
        assert first_level(corpus, [2]) == ([3] if learn_prompt else [])  # the prompt is no context to learn from


def test_texts_do_not_run_into_each_other() -> None:
    corpus = corpus_of([1, 2], [3, 4])
    first, second = corpus.start([5]), corpus.start([6])
    first.extend([1])
    second.extend([3])
    first.extend([9])
    corpus.learn()
    assert {ngram for ngram in stored(corpus.trie) if len(ngram) > 1} == {
        (1, 2), (3, 4), (5, 1), (5, 1, 9), (1, 9), (6, 3)
    }  # fmt: skip


def test_what_was_queued_is_what_was_said_though_the_callers_list_changes() -> None:
    corpus = NgramCorpus()
    request = corpus.start([1])
    emitted = [2, 3]
    request.extend(emitted)
    emitted[:] = [8]
    corpus.learn()
    assert request.ids == [1, 2, 3]
    assert first_level(corpus, [1]) == [2]


def test_a_request_keeps_its_own_copy_of_the_prompt() -> None:
    prompt = [1, 2]
    request = NgramCorpus().start(prompt)
    request.extend([3])
    assert prompt == [1, 2]


def test_drafting_changes_nothing() -> None:
    for match_type in ("BFS", "PROB"):
        corpus = corpus_of([5, 1, 6], [5, 2, 7], [5, 1, 8], match_type=match_type)
        before = ranking(corpus.trie)
        assert row(corpus.draft([[5]])) == row(corpus.draft([[5]]))
        assert ranking(corpus.trie) == before


def test_an_end_of_sequence_id_is_a_token_like_any_other() -> None:
    corpus = corpus_of([5, 2, 6, 0, 7])  # 2 and 0 are usual ends of sequence; 0 is also what pads carry
    tree = corpus.draft([[5]], 7)
    assert row(tree) == ([5, 2, 6, 0, 7, 0, 0], [-1, 0, 1, 2, 3, -1, -1])
    tree.check()


def test_an_evicted_anchor_is_dropped_and_its_number_never_misused() -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=3, capacity=8))
    request = corpus.start([1, 2])  # to be extended: [1, 2] and [2]
    numbers = {corpus.trie.find(ngram) for ngram in ([1, 2], [2])}
    corpus.insert([11, 12, 13, 14])
    assert corpus.trie.find([1, 2]) is corpus.trie.find([2]) is None
    assert numbers <= set(stored(corpus.trie).values())  # other n-grams have these numbers now
    request.extend([5])
    corpus.learn()
    assert {ngram for ngram in stored(corpus.trie) if 5 in ngram} == {(5,)}
    request.extend([6])
    corpus.learn()
    assert {ngram for ngram in stored(corpus.trie) if 6 in ngram} == {(5, 6), (6,)}
    check_structure(corpus.trie, "BFS")


def test_an_anchor_that_came_back_after_eviction_is_not_the_same() -> None:
    """[2] is evicted and learned anew elsewhere: what the request says next did not follow that occurrence."""
    corpus = NgramCorpus(DraftConfig(max_trie_depth=2, capacity=4))
    request = corpus.start([1, 2])
    corpus.insert([7, 8])
    assert corpus.trie.find([2]) is None
    corpus.insert([2])
    request.extend([3])
    corpus.learn()
    assert corpus.trie.find([2, 3]) is None


@pytest.mark.parametrize("max_trie_depth", [2, 3, 18])
def test_the_smallest_capacity_holds_the_longest_ngram(max_trie_depth: int) -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=max_trie_depth, capacity=max_trie_depth + 1))
    for _ in range(5):
        corpus.insert(range(100))
        check_structure(corpus.trie, "BFS")
        corpus.draft([[98]]).check()
    assert len(corpus.trie) == max_trie_depth + 1


def test_eviction_keeps_what_was_used_last() -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=2, capacity=31))
    for token in range(100):
        corpus.insert([token])
        corpus.insert([0])
    kept = {ngram[0] for ngram in stored(corpus.trie) if ngram}
    assert kept == {0, *range(71, 100)}


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_max_depth_is_kept_per_context_and_the_budget_goes_elsewhere(match_type: str) -> None:
    corpus = corpus_of([5, 1, 2, 3, 4], [5, 6, 7, 8, 9], match_type=match_type)
    tree = corpus.draft([[5]] * 5, 7, max_depth=[0, 1, 2, 3, 100])
    assert tree.depths.max(axis=1).tolist() == [0, 1, 2, 3, 3]
    assert (~tree.is_padding).sum(axis=1).tolist() == [1, 3, 5, 7, 7]
    for b in range(5):
        tokens, parents = row(tree, b)
        spelled = {tuple(tokens[x] for x in brute_path(parents, node)[1:]) for node in range(7)}
        assert spelled - {()} <= {text[:k] for text in ((1, 2, 3, 4), (6, 7, 8, 9)) for k in range(1, 5)}


def test_one_node_is_plain_decoding_and_default_depth_is_what_the_nodes_allow() -> None:
    corpus = corpus_of(list(range(10)))
    assert row(corpus.draft([[0]], 1)) == ([0], [-1])
    assert row(corpus.draft([[0]], 4)) == ([0, 1, 2, 3], [-1, 0, 1, 2])
    assert corpus.draft([[0], [5]]).tokens.shape == (2, DraftConfig().num_draft_tokens)


@pytest.mark.parametrize(
    ("contexts", "n", "max_depth", "message"),
    [
        ([], 4, None, "0 contexts"),
        ([[1], []], 4, None, "at least one token"),
        ([[1]], 0, None, "n=0"),
        ([[1]], -1, None, "n=-1"),
        ([[1]], 4, [1, 2], "2 max_depth"),
        ([[1], [2]], 4, [1], "1 max_depth"),
    ],
)
def test_draft_refuses(contexts: list[list[int]], n: int, max_depth: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corpus_of([1, 2]).draft(contexts, n, max_depth)


def test_an_empty_request_cannot_draft() -> None:
    corpus = NgramCorpus()
    with pytest.raises(ValueError, match="at least one token"):
        corpus.draft([corpus.start([])])


SIZES = ["num_draft_tokens", "max_trie_depth", "min_bfs_breadth", "max_bfs_breadth", "capacity"]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [2.0, "2", True, None])
def test_config_refuses_what_is_no_int_by_name(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} "):
        DraftConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("num_draft_tokens", {"num_draft_tokens": 0}),
        ("num_draft_tokens", {"num_draft_tokens": -3}),
        ("max_trie_depth", {"max_trie_depth": 1}),
        ("min_bfs_breadth", {"min_bfs_breadth": 0}),
        ("max_bfs_breadth", {"max_bfs_breadth": 0}),
        ("max_bfs_breadth", {"min_bfs_breadth": 5, "max_bfs_breadth": 4}),
        ("capacity", {"capacity": 18}),
        ("capacity", {"capacity": 5, "max_trie_depth": 5}),
        ("capacity", {"capacity": -1}),
        ("match_type", {"match_type": "bfs"}),
        ("match_type", {"match_type": None}),
        ("match_type", {"match_type": ["BFS"]}),
    ],
)
def test_config_refuses_values_that_cannot_work_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        DraftConfig(**settings)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_config_refuses_a_learn_prompt_that_is_no_bool(value: object) -> None:
    with pytest.raises(TypeError, match=r"^learn_prompt "):
        DraftConfig(learn_prompt=value)  # type: ignore[arg-type]


def test_config_takes_its_limits() -> None:
    DraftConfig(num_draft_tokens=1, max_trie_depth=2, min_bfs_breadth=3, max_bfs_breadth=3, capacity=3)


@pytest.mark.parametrize("wrong", [-1, 1 << 32])
def test_a_token_id_that_the_trie_cannot_pack_is_refused_everywhere(wrong: int) -> None:
    corpus = NgramCorpus()
    request = corpus.start([1, 2])
    for learn in (corpus.start, corpus.insert, request.extend):
        with pytest.raises(ValueError, match="token ids"):
            learn([5, wrong])
    assert request.ids == [1, 2]


def test_contexts_of_every_integer_kind_draft_alike() -> None:
    corpus = NgramCorpus()
    corpus.insert([1, 2, 3, 1, 2, 4])
    expected = corpus.draft([[1, 2]], 5).tokens.tolist()
    for context in (np.array([1, 2], np.int32), torch.tensor([1, 2]), (1, 2)):
        assert corpus.draft([context], 5).tokens.tolist() == expected
    for wrong, error in (([-1, 2], ValueError), ([1.0, 2.0], TypeError), ([], ValueError)):
        with pytest.raises(error):
            corpus.draft([wrong], 5)


def test_the_request_of_another_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="another corpus"):
        NgramCorpus().draft([NgramCorpus().start([1, 2])], 5)


def test_the_example_drawn_in_the_trie_module() -> None:
    corpus = NgramCorpus(DraftConfig(max_trie_depth=2, capacity=100))
    corpus.insert([7, 10, 7, 20])
    trie = corpus.trie
    nodes = {(7,): 1, (7, 10): 2, (10,): 3, (10, 7): 4, (7, 20): 5, (20,): 6}
    assert {ngram: trie.find(ngram) for ngram in nodes} == nodes
    assert (len(trie), trie.count[1], trie.children(1, 9), trie.children(3, 9)) == (7, 2, [5, 2], [4])
