"""The grammar walk: three ways to do it against a replay of every path on a fresh state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import grammars
import numpy as np
import pytest
import tiny
import torch
import xgrammar
from grammars import (
    BEYOND,
    EOS,
    GRAMMARS,
    IN_LAST_WORD,
    NO_TEXT,
    TOKENIZER,
    TOY_VOCAB,
    TOY_WIDTH,
    Listed,
    allowed_by,
    encode,
)
from oracles import brute_path

import ngram_ref as nr
from ngram_ref.core.links import derive_tree_links
from ngram_ref.core.tree import DraftTree, IntArray
from ngram_ref.core.walk import check_bitmask, fill_tree_bitmask, fill_tree_bitmask_recursive
from ngram_ref.grammar import native_walk
from ngram_ref.grammar.native_walk import fill_tree_bitmask_native

WALKS = {"lean": fill_tree_bitmask, "recursive": fill_tree_bitmask_recursive, "native": fill_tree_bitmask_native}
every_walk = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
every_grammar = pytest.mark.parametrize("name", GRAMMARS)

State = Any
ALL = [-1] * TOY_WIDTH  # the words of a row that allows everything


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


def started(name: str) -> State:
    return GRAMMARS[name].grammar.compile(TOKENIZER, TOY_VOCAB, EOS).start()


def behind(state: State, tokens: Sequence[int]) -> State:
    """Read tokens that are allowed."""
    for token in tokens:
        assert state.accept_token(token)
    return state


# The oracle


def replayed_row(fresh: Callable[[], State], path: Sequence[int]) -> tuple[str, list[int]]:
    """Read the tokens on the way to a node with a fresh state; say what became of it, and the words of its row."""
    state = fresh()
    for token in path:
        if state.is_terminated():
            return "behind the end", ALL
        allowed = allowed_by(state, TOY_WIDTH)
        if token >= TOY_VOCAB or not allowed[token]:
            return "unreached", ALL
        assert state.accept_token(token)
    if state.is_terminated():
        return "ended", ALL
    row = np.packbits(allowed_by(state, TOY_WIDTH), bitorder="little").view("<i4").tolist()
    return ("reached" if any(row) else "dead end"), row


def replayed_rows(fresh: Callable[[], State] | None, tokens: list[int], parents: list[int]) -> list[Any]:
    if fresh is None:
        return [("no grammar", ALL)] * len(tokens)
    paths = [brute_path(parents, node) for node in range(len(tokens))]
    return [
        replayed_row(fresh, [tokens[node] for node in path[1:]]) if path[0] == 0 else ("padding", ALL) for path in paths
    ]


# Trees that ask for trouble


def draw_tree(
    rng: np.random.Generator, n: int, fresh: Callable[[], State], truth: Sequence[int], limit: int = 2**33
) -> tuple[list[int], list[int]]:
    """Draw a tree: true and other legal continuations, illegal tokens with legal ones below, ends with more behind.

    Ids are below `limit`.
    """
    tree, size, reach = (
        tiny.Grown(int(rng.integers(TOY_VOCAB)), n, n),
        int(rng.integers(1, n + 1)),
        rng.integers(1, n + 1),
    )
    for _ in range(3 * size):
        if len(tree.tokens) == size:
            break
        parent = int(rng.integers(max(0, len(tree.tokens) - reach), len(tree.tokens)))
        depth = tree.depths[parent]
        path = [tree.tokens[node] for node in brute_path(tree.parents, parent)[1:]]
        kind = rng.choice(["true", "legal", "stop", "no text", "any"], p=[0.35, 0.35, 0.1, 0.1, 0.1])
        if kind == "true" and depth < len(truth):
            token = truth[depth]
        elif kind == "legal":
            token = draw_legal(rng, fresh, path)
        elif kind == "stop":
            token = int(rng.choice(EOS))
        else:
            token = int(rng.choice([*NO_TEXT, *IN_LAST_WORD, *BEYOND] if kind == "no text" else TOY_VOCAB))
        if token < limit:
            tree.add(parent, token)
    pads = n - len(tree.tokens)
    return tree.tokens + [0] * pads, tree.parents + [-1] * pads


def draw_legal(rng: np.random.Generator, fresh: Callable[[], State], path: Sequence[int]) -> int:
    """Draw a token that is allowed behind a path, or behind as much of it as can be read."""
    state = fresh()
    for token in path:
        if not state.is_terminated() and token < TOY_VOCAB and allowed_by(state, TOY_WIDTH)[token]:
            state.accept_token(token)
    allowed = [] if state.is_terminated() else np.flatnonzero(allowed_by(state, TOY_WIDTH)[:TOY_VOCAB])
    return int(rng.choice(allowed)) if len(allowed) else 60


Batch = tuple[list[Callable[[], State] | None], DraftTree, list[Any]]


def draw_batch(
    rng: np.random.Generator,
    starts: Sequence[Callable[[], State]],
    texts: Sequence[Sequence[int]],
    bs: int,
    n: int,
    limit: int = 2**33,
) -> Batch:
    """Draw a batch; each request stands somewhere in a text, at its end, or behind its stop token."""
    requests, tokens, parents, expected = [], [], [], []
    for _ in range(bs):
        start, text = starts[rng.integers(len(starts))], [*texts[rng.integers(len(texts))], int(rng.choice(EOS))]
        place = int(rng.choice([0, len(text) - 1, len(text), *rng.integers(len(text), size=5)]))
        fresh = lambda start=start, read=tuple(text[:place]): behind(start(), read)  # noqa: E731
        row_tokens, row_parents = draw_tree(rng, n, fresh, text[place:], limit)
        request = None if rng.random() < 0.15 else fresh
        requests.append(request)
        tokens.append(row_tokens)
        parents.append(row_parents)
        expected += replayed_rows(request, row_tokens, row_parents)
    return requests, DraftTree.from_parents(tokens, parents), expected


def walked(walk: Any, states: Sequence[State], tree: DraftTree) -> IntArray:
    """Walk over a buffer full of another step's bits."""
    bitmask = torch.randint(-(2**31), 2**31, (tree.tokens.size, TOY_WIDTH), dtype=torch.int32)
    assert walk(states, tree, *derive_tree_links(tree.mask), bitmask) is None
    return bitmask.numpy()


BEFORE_LAST_WORD = 32 * (TOY_WIDTH - 1)  # a batch with larger ids is walked in Python, whatever the engine


def check_batches(starts: Sequence[Callable[[], State]], texts: Sequence[Sequence[int]], seed: int) -> Counter[str]:
    """Compare the walks with the replay on random batches; count what rows there were."""
    rng, kinds = np.random.default_rng(seed), Counter[str]()
    sizes = [(1, 1), (2, 2), (1, 40), *((int(rng.integers(1, 5)), int(rng.integers(3, 25))) for _ in range(20))]
    for bs, n, limit in [(*size, limit) for size in sizes for limit in (2**33, BEFORE_LAST_WORD)]:
        requests, tree, expected = draw_batch(rng, starts, texts, bs, n, limit)
        kinds.update(kind for kind, _ in expected)
        for name, walk in WALKS.items():
            states = [None if fresh is None else fresh() for fresh in requests]
            rows = walked(walk, states, tree).tolist()
            wrong = [node for node, row in enumerate(rows) if row != expected[node][1]]
            assert not wrong, (name, [(node, expected[node][0]) for node in wrong], tree.tokens, tree.parents)
    return kinds


@every_grammar
def test_rows_are_those_of_a_replay(name):
    kinds = check_batches([lambda: started(name)], [encode(text) for text in GRAMMARS[name].texts], seed=len(name))
    assert set(kinds) >= {"reached", "unreached", "ended", "behind the end", "padding", "no grammar"}
    assert min(kinds.values()) >= 10, kinds


def test_rows_of_batches_that_mix_grammars_and_engines():
    texts = [encode(GRAMMARS[name].texts[0]) for name in ("date", "json")]
    end = (*texts[0], EOS[0])
    listed = lambda: Listed([[*text[:3], 60, 61] for text in texts], TOY_WIDTH, [end, (*end[:-1], EOS[1])])  # noqa: E731
    check_batches([lambda: started("date"), listed], texts[:1], seed=0)


# States that allow a few listed texts: with dead ends, and with ends that no stop token marks

LISTED = [[5, 6, 7], [5, 6, 8], [5, 9], [10], [11, 12, 13, 14], [11, 12, 15], [16, EOS[0]]]
ENDING = [[5, 6, 7], [10], [11, 12, 13, 14], [16, EOS[0]]]


def listed() -> Listed:
    return Listed(LISTED, TOY_WIDTH, ENDING)


def test_rows_of_states_with_dead_ends_and_ends_without_a_stop_token():
    rng, kinds = np.random.default_rng(0), Counter[str]()
    for _ in range(60):
        place, text = int(rng.integers(0, 5)), LISTED[rng.integers(len(LISTED))]
        fresh = lambda read=tuple(text[:place]): behind(listed(), read)  # noqa: E731
        tokens, parents = draw_tree(rng, int(rng.integers(1, 16)), fresh, text[place:])
        expected = replayed_rows(fresh, tokens, parents)
        kinds.update(kind for kind, _ in expected)
        for name, walk in WALKS.items():
            rows = walked(walk, [fresh()], DraftTree.from_parents([tokens], [parents]))
            assert rows.tolist() == [row for _, row in expected], name
    assert min(kinds[kind] for kind in ("dead end", "ended", "behind the end", "reached", "unreached")) >= 10, kinds


@every_walk
def test_a_dead_end_keeps_its_row_of_zeros(walk):
    """Its children are unreached, since no bit leads to them, and so are those below an illegal token."""
    tree = DraftTree.from_parents([[1, 5, 9, 7, 17, 6, 7, 6]], [[-1, 0, 1, 2, 0, 4, 1, 1]])
    rows = walked(walk, [listed()], tree)
    assert [(row == 0).all() for row in rows] == [False, False, True, False, False, False, False, False]
    assert [(row == -1).all() for row in rows] == [False, False, False, True, True, True, True, False]
    assert np.flatnonzero(np.unpackbits(rows[7].view(np.uint8), bitorder="little")).tolist() == [7, 8]


@every_walk
def test_a_dead_end_of_xgrammar_keeps_its_row_of_zeros(walk):
    """A byte that no token spells: behind `ab` the grammar goes on, the tokenizer cannot."""
    compiled = nr.regex("a(b\x04|cd)*").compile(TOKENIZER, TOY_VOCAB, EOS)
    a, b, c, d = encode("abcd")
    tokens, parents = [1, a, b, b, c, d, b, EOS[0]], [-1, 0, 1, 2, 1, 4, 5, 6]
    rows = walked(walk, [compiled.start()], DraftTree.from_parents([tokens], [parents]))
    assert rows.tolist() == [row for _, row in replayed_rows(compiled.start, tokens, parents)]
    assert [(row == 0).all() for row in rows] == [False, False, True, False, False, False, True, False]


@every_walk
def test_a_terminated_root_is_never_filled(walk):
    for state in (behind(listed(), [10]), behind(started("date"), [*encode("1969-07-20"), EOS[1]])):
        tree = DraftTree.from_parents([[1, 60, 61]], [[-1, 0, 1]])
        assert (walked(walk, [state], tree) == -1).all()
        assert state.is_terminated()


@every_walk
@every_grammar
def test_ids_without_a_logit_are_unreached_also_where_the_row_has_a_bit_for_them(walk, name):
    """Inside a JSON string xgrammar sets all bits of the last word, those behind the vocabulary's end too."""
    text = encode(GRAMMARS[name].texts[0])
    for place in range(min(8, len(text))):
        fresh = lambda read=text[:place]: behind(started(name), read)  # noqa: E731
        tokens, parents = [1, *IN_LAST_WORD, text[place], text[place]], [-1, 0, 0, 1, 0]
        rows = walked(walk, [fresh()], DraftTree.from_parents([tokens], [parents]))
        assert rows.tolist() == [row for _, row in replayed_rows(fresh, tokens, parents)]


@every_walk
def test_a_batch_without_grammar_allows_everything(walk):
    tree = DraftTree.from_parents([[1, 60, 0], [2, 61, 62]], [[-1, 0, -1], [-1, 0, 0]])
    assert (walked(walk, [None, None], tree) == -1).all()


@pytest.mark.parametrize("option", [{"terminate_without_stop_token": True}, {"override_stop_tokens": [1]}])
def test_rows_of_matchers_with_other_ends(option):
    """Matchers of a user's own making: xgrammar has options that `compile.py` never takes."""
    compiled = grammars.toy_compiled("arithmetic")
    fresh = lambda: xgrammar.GrammarMatcher(compiled, **option)  # noqa: E731
    (seven,), (plus, *_) = encode("7"), encode(" + 1")
    tokens, parents = [5, seven, plus, 1, seven, EOS[0]], [-1, 0, 1, 1, 3, 1]
    expected = [row for _, row in replayed_rows(fresh, tokens, parents)]
    for name, walk in WALKS.items():
        rows = walked(walk, [fresh()], DraftTree.from_parents([tokens], [parents]))
        assert rows.tolist() == expected, name


def test_rows_of_the_small_matcher():
    """The same trees over an engine that shares nothing with xgrammar; where the dialects agree, so do the rows."""
    module = pytest.importorskip("ngram_ref.grammar.regex_matcher")
    for name in grammars.REGEXES:
        automaton = module.compile_regex_automaton(GRAMMARS[name].grammar.source)
        masks = module.RegexMasks(automaton, grammars.TOY_PIECES, EOS, TOY_VOCAB)
        texts = [encode(text) for text in GRAMMARS[name].texts]
        check_batches([lambda masks=masks: module.RegexMatcher(masks)], texts, seed=1)
        rng = np.random.default_rng(2)
        for _ in range(5):
            _, tree, _ = draw_batch(rng, [lambda name=name: started(name)], texts, bs=1, n=24)
            small, large = module.RegexMatcher(masks), started(name)
            assert (walked(fill_tree_bitmask, [small], tree) == walked(fill_tree_bitmask_native, [large], tree)).all()


# The states


@every_grammar
@every_walk
def test_states_are_left_as_they_were(walk, name):
    """They allow the same as before, and so does each state that they were in before, on the way back to the start."""
    rng = np.random.default_rng(3)
    text = encode(GRAMMARS[name].texts[-1])[:20]
    for place in {0, 1, len(text) // 2, len(text)}:
        state, read = behind(started(name), text[:place]), text[:place]
        tokens, parents = draw_tree(rng, 20, lambda read=read: behind(started(name), read), text[place:])
        walked(walk, [state], DraftTree.from_parents([tokens], [parents]))
        for size in range(place, -1, -1):
            expected = allowed_by(behind(started(name), text[:size]), TOY_WIDTH)
            assert (allowed_by(state, TOY_WIDTH) == expected).all(), (place, size)
            if size:
                state.rollback(1)
        with pytest.raises(RuntimeError):
            state.rollback(1)


class Lying(Listed):
    """Refuses token 8, which its rows allow."""

    def accept_token(self, token_id: int) -> bool:
        return token_id != 8 and super().accept_token(token_id)


@every_walk
def test_a_node_that_the_state_refuses_is_unreached_though_its_bit_is_set(walk):
    """Nothing was read, so nothing may be taken back: a rollback would take the text before."""
    state = behind(Lying([[5, 6, 8, 9], [5, 8, 9], [5, 7]], TOY_WIDTH), [5])
    tokens, parents = [5, 6, 8, 9, 8, 7, 9], [-1, 0, 1, 2, 0, 0, 4]
    rows = walked(walk, [state], DraftTree.from_parents([tokens], [parents]))
    assert [(row == -1).all() for row in rows] == [False, False, True, True, True, False, True]
    assert [(row == 0).all() for row in rows] == [False, False, False, False, False, True, False]
    assert state.read == [5]


class Failing(Listed):
    """Fails when it is asked for a row behind 11, 12."""

    def fill_next_token_bitmask(self, bitmask: torch.Tensor, index: int = 0) -> None:
        if self.read[-2:] == [11, 12]:
            raise KeyError("no row")
        super().fill_next_token_bitmask(bitmask, index)


@every_walk
def test_a_failing_fill_leaves_the_state_as_it_was(walk):
    other, state = listed(), Failing(LISTED, TOY_WIDTH, ENDING)
    tree = DraftTree.from_parents([[1, 5, 6], [1, 11, 12]], [[-1, 0, 1], [-1, 0, 1]])
    with pytest.raises(KeyError, match="no row"):
        walked(walk, [other, state], tree)
    assert (other.read, state.read) == ([], [])


def test_xgrammar_walks_for_its_own_matchers(monkeypatch):
    """Else the tests here would compare the walk in Python with itself."""
    monkeypatch.setattr(native_walk, "fill_tree_bitmask", None)
    tokens = [1, *encode("[19]"), EOS[0]]
    tree = DraftTree.from_parents([tokens] * 2, [[*range(-1, len(tokens) - 1)]] * 2)
    assert tree.tokens.max() < BEFORE_LAST_WORD
    rows = walked(fill_tree_bitmask_native, [started("json"), None], tree)
    is_filled = [True] * (len(tokens) - 1) + [False] * (len(tokens) + 1)
    assert (rows != -1).any(axis=1).tolist() == is_filled


# Sizes and layouts


@pytest.mark.parametrize("walk", [fill_tree_bitmask, fill_tree_bitmask_native])
def test_a_chain_of_a_thousand_nodes(walk):
    """Deeper than Python recurses."""
    (opening, *pair) = encode("[19, 19, ")[:3]
    tokens = [opening, *pair * 500]
    state, expected = started("json"), []
    for token in tokens:
        assert state.accept_token(token)
        expected.append(replayed_row(state.fork, [])[1])
    tree = DraftTree.from_parents([tokens], [[*range(-1, len(tokens) - 1)]])
    assert walked(walk, [behind(started("json"), [opening])], tree).tolist() == expected


@every_walk
def test_a_family_of_two_hundred_siblings(walk):
    tree = DraftTree.from_parents([[1, *range(3, 203)]], [[-1, *[0] * 200]])
    expected = [row for _, row in replayed_rows(lambda: started("json"), tree.tokens[0].tolist(), [-1, *[0] * 200])]
    assert walked(walk, [started("json")], tree).tolist() == expected


@every_walk
def test_links_of_any_memory_layout(walk):
    """A native walk that reads a column as if it were a row would make a wrong mask without a word."""
    (seven,), (plus, *_) = encode("7"), encode(" + 1")
    tokens, parents = [5, seven, plus, seven + 1, seven], [-1, 0, 1, 1, 2]
    tree = DraftTree.from_parents([tokens] * 3, [parents] * 3)
    next_token, next_sibling = map(np.asfortranarray, derive_tree_links(tree.mask))
    assert not next_token[0].flags.c_contiguous
    bitmask = torch.zeros(15, TOY_WIDTH, dtype=torch.int32)
    walk([started("arithmetic") for _ in range(3)], tree, next_token, next_sibling, bitmask)
    expected = [row for _, row in replayed_rows(lambda: started("arithmetic"), tokens, parents)]
    assert bitmask.tolist() == expected * 3


REFUSED = {
    "int64": (lambda rows: torch.zeros(rows, TOY_WIDTH, dtype=torch.int64), TypeError, "int32, not torch.int64"),
    "bool": (lambda rows: torch.zeros(rows, 32 * TOY_WIDTH, dtype=torch.bool), TypeError, "int32, not torch.bool"),
    "a row too few": (lambda rows: torch.zeros(rows - 1, TOY_WIDTH).int(), ValueError, "6 rows"),
    "a row too many": (lambda rows: torch.zeros(rows + 1, TOY_WIDTH).int(), ValueError, "6 rows"),
    "three dimensions": (lambda rows: torch.zeros(2, rows // 2, TOY_WIDTH).int(), ValueError, r"\[bs \* n, W\]"),
    "one dimension": (lambda rows: torch.zeros(rows).int(), ValueError, r"\[bs \* n, W\]"),
    "every second row": (lambda rows: torch.zeros(2 * rows, TOY_WIDTH).int()[::2], ValueError, "contiguous"),
    "half of the columns": (
        lambda rows: torch.zeros(rows, 2 * TOY_WIDTH).int()[:, :TOY_WIDTH],
        ValueError,
        "contiguous",
    ),
    "transposed": (lambda rows: torch.zeros(TOY_WIDTH, rows).int().T, ValueError, "contiguous"),
    "another device": (lambda rows: torch.zeros(rows, TOY_WIDTH, device="meta").int(), ValueError, "CPU"),
}


@every_walk
@pytest.mark.parametrize("case", REFUSED)
def test_bitmasks_that_would_be_filled_in_the_wrong_places_are_refused(walk, case):
    make, error, message = REFUSED[case]
    tree = DraftTree.from_parents([[1, 60, 61]] * 2, [[-1, 0, 1]] * 2)
    for states in ([None, None], [started("json"), None], [listed(), listed()]):
        bitmask = make(6)
        with pytest.raises(error, match=message):
            walk(states, tree, *derive_tree_links(tree.mask), bitmask)
        with pytest.raises(error, match=message):
            check_bitmask(bitmask, 2, tree)
        assert bitmask.is_meta or not bitmask.any()


@every_walk
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_number_of_states_other_than_that_of_trees_is_refused(walk, count):
    tree = DraftTree.from_parents([[1, 60, 61]] * 2, [[-1, 0, 1]] * 2)
    with pytest.raises(ValueError, match=f"2 trees and {count} states"):
        walked(walk, [None] * count, tree)


@every_walk
@pytest.mark.parametrize("width", [TOY_WIDTH - 1, TOY_WIDTH + 1])
def test_a_bitmask_of_another_width_is_refused_by_the_engine(walk, width):
    state, tree = started("date"), DraftTree.from_parents([[1, 20]], [[-1, 0]])
    with pytest.raises(RuntimeError, match="shape"):
        walk([state], tree, *derive_tree_links(tree.mask), torch.zeros(2, width, dtype=torch.int32))
