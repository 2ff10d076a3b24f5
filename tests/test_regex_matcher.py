"""The small matcher: its language against Python's `re`, its masks against xgrammar, its methods against both."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from ngram_ref.core.links import derive_tree_links
from ngram_ref.core.tree import DraftTree
from ngram_ref.core.walk import GrammarState, fill_tree_bitmask
from ngram_ref.grammar.byte_automaton import utf8_byte_ranges
from ngram_ref.grammar.regex_matcher import (
    RegexAutomaton,
    RegexMasks,
    RegexMatcher,
    byte_label,
    compile_regex_automaton,
)

# The first and last character of each length of UTF-8, and of each side of the surrogates.
BORDERS = "\x00\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"
ALPHABET = "ab0_ \n-é€😀" + BORDERS


def matches(automaton: RegexAutomaton, text: str | bytes) -> bool:
    state = automaton.advance(automaton.start, text.encode() if isinstance(text, str) else text)
    return state >= 0 and bool(automaton.accepting[state])


def check_against_re(pattern: str, texts: list[str]) -> None:
    automaton, expected = compile_regex_automaton(pattern), re.compile(pattern, re.ASCII)
    for text in texts:
        assert matches(automaton, text) == (expected.fullmatch(text) is not None), (pattern, text)


# --- the language

FORMS = r"a b 0 _ é € 😀 . \d \w \s \D \W \S \n \x61 \u00e9 \U0001f600 \. \\ [a-c] [^a] [^é-€] [€-😀] [\d_-] [^\W\d]"
FORMS += r" [^\S\n] [-a] [\]^] [^\x80-\uffff]"
ATOMS = st.sampled_from(FORMS.split())
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,}", "{0,2}", "{1,3}", "*?", "+?", "??", "{1,2}?"])


def _larger(patterns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.builds("{}{}{}".format, st.sampled_from(["(", "(?:"]), patterns, st.just(")"))
    return st.one_of(
        st.builds("{}{}".format, patterns, patterns),
        st.builds("{}|{}".format, patterns, patterns),
        st.builds("{}{}".format, groups | ATOMS, QUANTIFIERS),
        groups,
        st.builds("({}|)".format, patterns),
    )


PATTERNS = st.recursive(ATOMS | st.just(""), _larger, max_leaves=8)


@settings(max_examples=1000, deadline=None)
@given(PATTERNS, st.lists(st.text(ALPHABET, max_size=6), min_size=20, max_size=40))
def test_language_is_that_of_re(pattern: str, texts: list[str]) -> None:
    check_against_re(pattern, [*texts, *ALPHABET, ""])
    check_against_re(f"^{pattern}$", texts)


@settings(max_examples=200, deadline=None)
@given(PATTERNS)
def test_every_state_reaches_the_end(pattern: str) -> None:
    automaton = compile_regex_automaton(pattern)
    reaches = automaton.accepting.copy()
    for _ in range(len(reaches)):
        reaches |= (reaches[automaton.transitions] & (automaton.transitions >= 0)).any(axis=1)
    assert reaches.all()


SHORT = r"a*b|b+ (a|ab)(b|) ((a*)*b?)* (a?){3} (ab|ba){2,} [^a]* a{2}|b{1,3} .?.? \s*a |a () a$|^b ^(?:a|b)*$ (\n|.)+"
SHORT += " (a|b)*a(a|b){3} (a{0,2}b){0,2} (|a)+b (a*?|b)??b a{0}b (a{2}){1,2} b??a+?"


@pytest.mark.parametrize("pattern", ["", *SHORT.split()])
def test_language_on_every_short_text(pattern: str) -> None:
    check_against_re(pattern, ["".join(text) for size in range(7) for text in product("ab\n", repeat=size)])


@pytest.mark.parametrize("pattern", [".", "[^a]", r"\W", r"\S", "[\u0800-\U00010000]", "[^\u07ff-\ue000]", "[é-😀]"])
def test_one_character(pattern: str) -> None:
    near = {chr(ord(char) + step) for char in ALPHABET + "a" for step in (-1, 0, 1) if 0 <= ord(char) + step < 0x110000}
    check_against_re(pattern, [char for char in sorted(near) if not "\ud800" <= char <= "\udfff"])


@pytest.mark.parametrize(
    "data", [b"\xc3", b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff"]
)
def test_what_is_no_utf8_matches_nothing(data: bytes) -> None:
    assert not matches(compile_regex_automaton(r"[\s\S]*"), data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.lists(st.integers(0, 0x10FFFF)))
def test_utf8_byte_ranges(one: int, other: int, probes: list[int]) -> None:
    first, last = sorted((one, other))
    sequences = list(utf8_byte_ranges(first, last))
    for code in {*probes, first, last, *map(ord, BORDERS)} - set(range(0xD800, 0xE000)):
        data = chr(code).encode()
        hits = [len(s) == len(data) and all(a <= x <= b for (a, b), x in zip(s, data, strict=True)) for s in sequences]
        assert sum(hits) == (first <= code <= last)


def test_edges_are_the_transitions() -> None:
    automaton = compile_regex_automaton(r'"[^"\\]*"|[a-zé ]+')
    table = np.full_like(automaton.transitions, -1)
    for edge in automaton.edges():
        for first, last in edge.byte_ranges:
            assert (table[edge.source, first : last + 1] == -1).all()
            table[edge.source, first : last + 1] = edge.target
    assert (table == automaton.transitions).all()
    labels = {edge.label for edge in automaton.edges()}
    assert {'"', 'ASCII except " \\', r"\x80-\xBF", "␠ a-z"} <= labels
    assert [byte_label(r) for r in (((0, 127),), ((9, 10), (65, 66)))] == ["ASCII", r"\x09-\x0A A-B"]


REFUSED = {
    "lookahead": [("ab(?=c)", 2), ("(?!a)b", 0)],
    "lookbehind": [("a(?<=a)", 1), ("a(?<!b)", 1)],
    "word boundary": [(r"\ba", 0), (r"a\B", 1), (r"[a\b]", 2)],
    "backreference": [(r"(a)\1", 3), ("(?P=n)", 0)],
    "inline flags": [("a(?i)b", 1), ("(?s:a)", 0)],
    "Unicode property": [(r"a\p{L}", 1)],
    "possessive": [("a++", 2), ("a{2}+", 4)],
    "atomic group": [("(?>a)", 0)],
    "named group": [("(?P<n>a)", 0), ("(?<n>a)", 0)],
    "empty class": [("a[]b", 1), ("[^]", 0)],
    "stray quantifier": [("*a", 0), ("a|+", 2), ("(?:?a)", 3), ("a**", 2), ("a{2}{3}", 4), ("^*", 1)],
    "unbalanced '('": [("(a", 0)],
    "unbalanced ')'": [("a)b", 1)],
    "unbalanced '['": [("[a-", 0), ("[a", 0)],
    "anchor": [("a^b", 1), ("a$b", 1), ("(a$)", 2), (r"a\Z", 1)],
    "'{'": [("a{,2}", 1), ("a{x}", 1)],
    "reversed bounds": [("a{3,2}", 1)],
    "bad range": [("[b-a]", 1), (r"[a-\d]", 1), (r"[x\w-z]", 2)],
    "hexadecimal": [(r"a\x4", 1), (r"\U00110000", 0)],
    "backslash": [("a\\", 1)],
    "no character": [(r"\ud800", 0), ("a\ud800", 1), (r"a[^\d\D]", 1)],
    "escape": [(r"\e", 0), (r"\0", 0)],
    "more than 50 groups": [("(" * 51 + ")" * 51, 50)],
}


@pytest.mark.parametrize(
    ("what", "pattern", "position"), [(what, *case) for what, cases in REFUSED.items() for case in cases]
)
def test_refusals_say_what_and_where(what: str, pattern: str, position: int) -> None:
    with pytest.raises(ValueError, match=re.escape(what) + rf".* at position {position} of the regex"):
        compile_regex_automaton(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){12}", "(){1000000000}", "(|){0,1000000000}", "(a{1000}){1000}", "((a*){99}){99}"]
)
def test_too_many_states(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"needs more than \d+ .*states"):
        compile_regex_automaton(pattern, max_states=500)
    assert len(compile_regex_automaton("a{499}", max_states=500).accepting) == 500


# --- masks against xgrammar

Pair = tuple[Callable[[], RegexMatcher], Callable[[], GrammarState]]
AGREEING = {
    "IPv4": r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "phone": r"(\+\d{1,3}[ -])?\(?\d{3}\)?[ -]?\d{3}-\d{4}",
    "string": r'"[^"\\]*"',
    "accents": "[a-zé]+ü?",
    "negated": "[^a-z]+",
    "words": "[a-zA-Z]([a-zA-Z ,.]*[a-zA-Z])?",
    "emoji": "(😀|😃|[α-ω]{2}|é€)+!?",
    "suffix": "file(name)?(_[0-9]+)?(\\.txt)?",
    "anchors": "^ab+c$",
    "sets": r"(\w+\W)*\D?",
}


class Vocabulary:
    """Token bytes, special tokens blanked, for both engines."""

    def __init__(self, tokens: list[bytes], stops: list[int], vocab_size: int) -> None:
        self.tokens, self.stops, self.vocab_size = tokens, stops, vocab_size
        raw = xgrammar.VocabType.RAW
        info = xgrammar.TokenizerInfo(tokens, raw, vocab_size=vocab_size, stop_token_ids=stops, add_prefix_space=False)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.pair = cache(self._pair)

    def _pair(self, pattern: str) -> Pair:
        masks = RegexMasks(compile_regex_automaton(pattern), self.tokens, self.stops, self.vocab_size)
        compiled = self.compiler.compile_regex(pattern)
        return lambda: RegexMatcher(masks), lambda: xgrammar.GrammarMatcher(compiled)

    def allowed(self, state: GrammarState) -> np.ndarray[Any, np.dtype[np.bool_]]:
        bitmask = torch.full((1, -(-self.vocab_size // 32)), -1, dtype=torch.int32)
        state.fill_next_token_bitmask(bitmask)
        bits = np.unpackbits(bitmask.numpy().view(np.uint8), bitorder="little")
        return bits[: self.vocab_size].astype(bool)  # behind V xgrammar leaves what it likes


@pytest.fixture(scope="module")
def toy() -> Vocabulary:
    texts = [
        "é",
        "é€",
        "😀",
        "ab",
        "12",
        "25",
        "-0",
        '"a',
        'a"',
        '" ',
        "α",
        "αβ",
        "file",
        "_1",
        "\n ",
        "abc",
        "name.txt",
    ]
    pieces = [text.encode() for text in texts] + [b"\xf0\x9f", b"\x98\x80!", b"b\xc3", b"\xbc", b"\xa9\xc3"]
    return Vocabulary([*(bytes([byte]) for byte in range(256)), *pieces, b"", b"", b""], [279, 280], 300)


@pytest.fixture(scope="module")
def real(default_model: tuple[Any, Any]) -> Vocabulary:
    model, tokenizer = default_model
    size = model.config.vocab_size
    encoded = [""] * size
    for text, token in tokenizer.get_vocab().items():
        encoded[token] = text
    tokens = list(xgrammar.TokenizerInfo(encoded, xgrammar.VocabType.BYTE_LEVEL, vocab_size=size).decoded_vocab)
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special:
            tokens[token] = b""
    return Vocabulary(tokens, [tokenizer.eos_token_id, 0], size)


VOCABULARIES = pytest.mark.parametrize("name", ["toy", pytest.param("real", marks=pytest.mark.model)])


def random_walk(
    vocabulary: Vocabulary, pattern: str, seed: int, steps: int
) -> Iterator[tuple[RegexMatcher, GrammarState]]:
    """Walk both engines along the same random tokens, with rollbacks; a stop token is always rolled back."""
    rng = random.Random(seed)
    make_ours, make_theirs = vocabulary.pair(pattern)
    ours, theirs = make_ours(), make_theirs()
    visits = Counter[int]()
    for _ in range(steps):
        visits[ours.states[-1]] += 1
        yield ours, theirs
        choices = [] if ours.is_terminated() else np.flatnonzero(vocabulary.allowed(ours)).tolist()
        # Not behind the lead byte of the surrogates, which only xgrammar allows (tested by itself below).
        choices = [token for token in choices if vocabulary.tokens[token][-1:] != b"\xed"]
        if len(ours.states) > 1 and (not choices or rng.random() < 0.25):
            count = rng.randint(1, len(ours.states) - 1)
            ours.rollback(count)
            theirs.rollback(count)
        else:
            # Out of some tokens the one that leads where the walk has seldom been: a closing quote is one in thousands.
            ahead = {token: ours.fork() for token in rng.choices(choices, k=rng.choice([1, 100]))}
            assert all(state.accept_token(token) for token, state in ahead.items())
            token = min(ahead, key=lambda token: visits[ahead[token].states[-1]])
            assert ours.accept_token(token)
            assert theirs.accept_token(token)


@VOCABULARIES
@pytest.mark.parametrize("pattern", AGREEING.values(), ids=AGREEING)
def test_masks_are_those_of_xgrammar(name: str, pattern: str, request: pytest.FixtureRequest) -> None:
    vocabulary = request.getfixturevalue(name)
    for ours, theirs in random_walk(vocabulary, pattern, seed=1, steps=400):
        assert ours.is_terminated() == theirs.is_terminated()
        assert ours.is_completed() == theirs.is_completed()
        if not ours.is_terminated():
            differing = np.flatnonzero(vocabulary.allowed(ours) != vocabulary.allowed(theirs))
            assert differing.size == 0, [vocabulary.tokens[token] for token in differing[:5]]


def test_where_the_dialects_differ(toy: Vocabulary) -> None:
    for pattern, difference in ((".", {b"\n"}), (r"\s", {b"\xc2", b"\xe1", b"\xe2", b"\xe3", b"\xef"})):
        ours, theirs = (toy.allowed(make()) for make in toy.pair(pattern))
        assert {toy.tokens[token] for token in np.flatnonzero(ours != theirs)} == difference
        assert not (ours & ~theirs).any()


@pytest.mark.parametrize("pattern", [".", "[^a-z]", r"\W", r"[\u0800-\uffff]"])
def test_only_xgrammar_allows_surrogates(pattern: str) -> None:
    for data, expected in ((b"\xed\x9f\xbf", [True, True]), (b"\xed\xa0\x80", [False, True])):
        pair = Vocabulary([data[:1], data[1:], b""], [2], 3).pair(pattern)
        assert [state.accept_token(0) and state.accept_token(1) for state in (make() for make in pair)] == expected


def test_only_xgrammar_ends_a_text_by_a_stop_token_whose_bytes_would_fit() -> None:
    pair = Vocabulary([b"a", b"<", b">", b"<end>"], [3], 4).pair(r"\w+<\w+>")  # hence: stop tokens without bytes
    for state, expected in zip((make() for make in pair), (False, True), strict=True):
        assert state.accept_token(0)
        assert not state.is_completed()
        assert state.accept_token(3) == state.is_terminated() == expected


@VOCABULARIES
@pytest.mark.parametrize("pattern", [AGREEING["string"], AGREEING["emoji"], AGREEING["date"]])
def test_a_token_is_accepted_iff_its_bit_is_set(name: str, pattern: str, request: pytest.FixtureRequest) -> None:
    vocabulary = request.getfixturevalue(name)
    for ours, _ in random_walk(vocabulary, pattern, seed=2, steps=6):
        if ours.is_terminated():
            continue
        bits = np.pad(vocabulary.allowed(ours), (1, 40))
        for token, bit in enumerate(bits.tolist(), start=-1):
            before = list(ours.states)
            assert ours.accept_token(token) == bit
            ours.rollback(int(bit))
            assert ours.states == before


# --- the matcher's methods


@VOCABULARIES
def test_rollback_and_fork_round_trips(name: str, request: pytest.FixtureRequest) -> None:
    vocabulary = request.getfixturevalue(name)
    for ours, _ in random_walk(vocabulary, AGREEING["IPv4"], seed=3, steps=40):
        before, copy = list(ours.states), ours.fork()
        while not copy.is_terminated():
            assert copy.accept_token(int(np.flatnonzero(vocabulary.allowed(copy))[-1]))
        assert ours.states == before
        assert copy.states[: len(before)] == before
        copy.rollback(len(copy.states) - len(before))
        assert copy.states == before
        copy.rollback(0)
        assert copy.states == before
        with pytest.raises(RuntimeError, match="cannot roll back"):
            copy.rollback(len(before))
        with pytest.raises(ValueError, match="cannot roll back -1"):
            copy.rollback(-1)
        assert copy.states == before


def test_termination(toy: Vocabulary) -> None:
    bitmask = torch.zeros(1, 10, dtype=torch.int32)
    for state in (make() for make in toy.pair("a+")):
        assert not state.accept_token(279)
        assert state.accept_token(ord("a"))
        assert (state.is_completed(), state.is_terminated()) == (True, False)
        for stop in toy.stops:
            assert state.accept_token(stop)
            assert (state.is_completed(), state.is_terminated()) == (True, True)
            assert not any(state.accept_token(token) for token in (ord("a"), *toy.stops))
            with pytest.raises(RuntimeError):
                state.fill_next_token_bitmask(bitmask)
            state.rollback(1)
        assert np.flatnonzero(toy.allowed(state)).tolist() == [ord("a"), *toy.stops]
        with pytest.raises(RuntimeError):
            state.rollback(2)


def test_special_tokens_and_stop_tokens_are_never_text() -> None:
    masks = RegexMasks(compile_regex_automaton("(<end>)*a"), [None, b"", b"<end>", b"a", b"<end>"], [4], vocab_size=70)
    assert np.flatnonzero(masks.allowed(0)).tolist() == [2, 3]
    assert masks.row(0).tolist() == [0b01100, 0, 0]
    assert masks.row(0) is masks.row(0)
    matcher = RegexMatcher(masks)
    assert not any(matcher.accept_token(token) for token in (-1, 0, 1, 4, 5, 69, 70, 2**40))
    empty = RegexMatcher(RegexMasks(compile_regex_automaton("a"), [None], [], vocab_size=1))
    bitmask = torch.full((1, 1), -1, dtype=torch.int32)
    empty.fill_next_token_bitmask(bitmask)
    assert bitmask.item() == 0


@pytest.mark.parametrize(("size", "stops"), [(1, [0]), (2, [2]), (2, [-1])])
def test_vocab_size_covers_everything(size: int, stops: list[int]) -> None:
    with pytest.raises(ValueError, match=f"vocab_size={size} must cover"):
        RegexMasks(compile_regex_automaton("a"), [b"a", b"b"], stops, vocab_size=size)


def test_fill_overwrites_one_row_and_refuses_what_does_not_fit(toy: Vocabulary) -> None:
    matcher = toy.pair("[a-z]*")[0]()
    rows = torch.stack([torch.zeros(10), torch.full((10,), -1), torch.zeros(10)]).int()
    matcher.fill_next_token_bitmask(rows, 1)
    matcher.fill_next_token_bitmask(rows, 2)
    assert rows[0].tolist() == [0] * 10
    assert rows[1].tolist() == rows[2].tolist() == matcher.masks.row(0).tolist()
    with pytest.raises(TypeError, match="int32"):
        matcher.fill_next_token_bitmask(rows.long())
    wrong = [
        rows[:, :9].contiguous(),
        rows[0],
        torch.zeros(10, 3).int().T,
        torch.zeros(6, 10).int()[::2],
        rows.to("meta"),
    ]
    for bitmask in wrong:
        with pytest.raises(ValueError, match=r"bitmask must be \[rows, 10\]"):
            matcher.fill_next_token_bitmask(bitmask)
    for index in (-1, 3):
        with pytest.raises(IndexError, match="no row"):
            matcher.fill_next_token_bitmask(rows, index)


def test_tree_walk_with_either_engine(toy: Vocabulary) -> None:
    rng = random.Random(5)
    for pattern in AGREEING.values():
        for ours, theirs in random_walk(toy, pattern, seed=4, steps=10):
            parents = [-1, *(rng.randrange(node) for node in range(1, 12))]
            tokens, states, siblings = [0], {0: ours.fork()}, set[tuple[int, int]]()
            for node, parent in enumerate(parents[1:], start=1):  # mostly allowed tokens, from the states on the way
                legal = parent in states and not states[parent].is_terminated() and rng.random() < 0.8
                choices = np.flatnonzero(toy.allowed(states[parent])).tolist() if legal else range(281)
                fresh = [token for token in choices if (parent, token) not in siblings and token != 0xED]
                token = rng.choice(fresh or [281 + node])
                tokens.append(token)
                siblings.add((parent, token))
                if parent in states:
                    states[node] = states[parent].fork()
                    if not states[node].accept_token(token):
                        del states[node]
            tree = DraftTree.from_parents([tokens], [parents])
            masks = [torch.zeros(12, 10, dtype=torch.int32) for _ in range(2)]
            for state, mask in zip((ours, theirs), masks, strict=True):
                fill_tree_bitmask([state], tree, *derive_tree_links(tree.mask), mask)
            rows = [np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little")[:, :300] for mask in masks]
            assert (rows[0] == rows[1]).all()
