"""A grammar engine to read and to draw: a regex as a deterministic automaton over bytes, and its token masks.

Three steps, each a class. `RegexAutomaton` is a table: from each state, by each byte, to which state. `RegexMasks` lays
a vocabulary over it: a token is allowed in a state iff its bytes lead somewhere. `RegexMatcher` reads a text token by
token with xgrammar's methods; its memory is the list of states it went through, so rolling back is dropping the last.

It knows regexes only, and the table grows with the pattern; JSON schemas and EBNF are xgrammar's (`compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ngram_ref.grammar.byte_automaton import ByteNfa, Ranges

_TERMINATED = -2  # stands in a matcher's list of states once a stop token was read
_NAMES = ["␠" if byte == 0x20 else chr(byte) if 0x20 < byte < 0x7F else f"\\x{byte:02X}" for byte in range(256)]


class Edge(NamedTuple):
    """All the bytes that lead from one state to another, with a label for a drawing."""

    source: int
    target: int
    byte_ranges: Ranges
    label: str


@dataclass(frozen=True, eq=False)
class RegexAutomaton:
    r"""A deterministic automaton over bytes; every state can be reached, and from every state the end can.

    Attributes:
        pattern: the regex it was compiled from.
        transitions: int32 `[num_states, 256]`, the next state by each byte, −1 where none.
        accepting: bool `[num_states]`, whether the text is complete there.
        start: the state before the first byte, 0.

    >>> automaton = compile_regex_automaton(r"[a-c]+é?")
    >>> for edge in automaton.edges():
    ...     print(edge.source, edge.label, edge.target)
    0 a-c 1
    1 a-c 1
    1 \xC3 2
    2 \xA9 3
    >>> automaton.accepting
    array([False,  True, False,  True])
    """

    pattern: str
    transitions: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]
    start: int = 0

    def advance(self, state: int, text: bytes) -> int:
        """Return the state behind `text` read from `state`, −1 if it leads nowhere."""
        for byte in text:
            if state < 0:
                break
            state = int(self.transitions[state, byte])
        return state

    def edges(self) -> list[Edge]:
        """Return one edge per pair of states that a byte connects, by source and then by first byte."""
        found = []
        for source, row in enumerate(self.transitions):
            for target in dict.fromkeys(row[row >= 0].tolist()):
                ranges = _as_ranges(np.flatnonzero(row == target))
                found.append(Edge(source, target, ranges, byte_label(ranges)))
        return found


def _as_ranges(values: npt.ArrayLike) -> Ranges:
    """Group sorted bytes into ranges, both ends included."""
    values = np.asarray(values)
    pieces = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    return tuple((int(piece[0]), int(piece[-1])) for piece in pieces if piece.size)


def byte_label(ranges: Ranges) -> str:
    r"""Write byte ranges as in a regex's class: printable ASCII as it is, `␠` for a space, other bytes as `\xNN`.

    More than half of ASCII is written by what it lacks.

    >>> byte_label(((0x20, 0x20), (0x30, 0x39), (0xC3, 0xC3)))
    '␠ 0-9 \\xC3'
    >>> byte_label(((0x00, 0x21), (0x23, 0x7F)))
    'ASCII except "'
    """
    if ranges[-1][1] == 0x7F and sum(last - first + 1 for first, last in ranges) > 64:
        rest = set(range(0x80)).difference(*(range(first, last + 1) for first, last in ranges))
        return f"ASCII except {byte_label(_as_ranges(sorted(rest)))}" if rest else "ASCII"
    return " ".join(_NAMES[first] + (f"-{_NAMES[last]}" if last > first else "") for first, last in ranges)


def compile_regex_automaton(pattern: str, max_states: int = 20_000) -> RegexAutomaton:
    r"""Compile a regex into the automaton of its language.

    The dialect is Python's `re.fullmatch` with `re.ASCII`, over Unicode text: alternation, groups `(…)` and `(?:…)`,
    classes with ranges and negation, `.`, `* + ? {m} {m,} {m,n}` (lazy ones too: the language is the same), escapes
    `\d \w \s \D \W \S \n \t \r \f \v \xhh \uhhhh \Uhhhhhhhh` and those of punctuation. `^` and `$` are anchors, at the
    ends of the pattern or of a branch outside of groups only. xgrammar's dialect is alike, but there `.` includes the
    newline (here: any character but `\n`), `\s` the Unicode spaces (here: `[ \t\n\r\f\v]`), and `.`, negated classes
    and ranges across them the surrogates D800 to DFFF, which well-formed UTF-8 has not.

    Args:
        pattern: the regex.
        max_states: bound on the automaton's states; on the way there, ten times as many of the nondeterministic one.

    Raises:
        ValueError: what is not well formed or not supported, and its position; too many states.

    >>> compile_regex_automaton(r"\d{4}-\d{2}").transitions.shape
    (8, 256)
    >>> compile_regex_automaton(r"ab(?=c)")
    Traceback (most recent call last):
    ValueError: '(?=': unsupported lookahead at position 2 of the regex 'ab(?=c)'
    """
    nfa = ByteNfa(pattern, 10 * max_states)
    # Subset construction: a state of the result is the set of states in which the nondeterministic automaton can be.
    subsets = [nfa.closure({0})]
    numbers = {subsets[0]: 0}
    rows = []
    for subset in subsets:  # grows while it is read
        row = np.full(256, -1, dtype=np.int32)
        for first, last, targets in _moves(nfa, subset):
            reached = nfa.closure(targets)
            if reached not in numbers:
                numbers[reached] = len(subsets)
                subsets.append(reached)
            row[first : last + 1] = numbers[reached]
        rows.append(row)
        if len(subsets) > max_states:
            raise ValueError(f"the automaton of the regex {pattern!r} needs more than {max_states} states (max_states)")
    return RegexAutomaton(pattern, np.array(rows), np.array([nfa.end in subset for subset in subsets]))


def _moves(nfa: ByteNfa, subset: frozenset[int]) -> Iterator[tuple[int, int, set[int]]]:
    """Yield byte ranges that no edge of the subset cuts, each with the states reached by its bytes."""
    edges = [edge for state in subset for edge in nfa.edges[state]]
    borders = sorted({first for first, _, _ in edges} | {last + 1 for _, last, _ in edges})
    for low, high in pairwise(borders):
        targets = {target for first, last, target in edges if first <= low <= last}
        if targets:
            yield low, high - 1, targets


class RegexMasks:
    """The token masks of an automaton for one vocabulary, computed once per state and kept; matchers share it.

    Args:
        automaton: what a text has to match.
        vocabulary: the bytes of each token id; None or empty for a special token, which is never text.
        stop_token_ids: ids that end a complete text, and are never text whatever their bytes.
        vocab_size: V, at least `len(vocabulary)`; ids beyond the vocabulary are never allowed.

    Raises:
        ValueError: V is smaller than the vocabulary, or a stop token is outside of it.

    >>> masks = RegexMasks(compile_regex_automaton("a+b"), [b"a", b"b", b"aab", b"ba", None], [4], vocab_size=5)
    >>> np.flatnonzero(masks.allowed(0)), np.flatnonzero(masks.allowed(1)), np.flatnonzero(masks.allowed(2))
    (array([0, 2]), array([0, 1, 2]), array([4]))
    """

    def __init__(
        self,
        automaton: RegexAutomaton,
        vocabulary: Sequence[bytes | None],
        stop_token_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        self.automaton = automaton
        self.vocab_size = vocab_size
        self.stop_token_ids = stops = frozenset(stop_token_ids)
        if len(vocabulary) > vocab_size or not stops <= set(range(vocab_size)):
            raise ValueError(f"vocab_size={vocab_size} must cover {len(vocabulary)} tokens and stop tokens {[*stops]}")
        self.token_bytes = {token: text for token, text in enumerate(vocabulary) if text and token not in stops}
        self._lengths = np.array([len(self.token_bytes.get(token, b"")) for token in range(vocab_size)])
        self._bytes = np.zeros((vocab_size, self._lengths.max(initial=0)), dtype=np.uint8)
        for token, text in self.token_bytes.items():
            self._bytes[token, : len(text)] = memoryview(text)
        self._rows: dict[int, npt.NDArray[np.int32]] = {}

    def allowed(self, state: int) -> npt.NDArray[np.bool_]:
        """Return bool `[V]`, the tokens allowed in a state: all of them walk at once, one byte after the other."""
        allowed = np.zeros(self.vocab_size, dtype=bool)
        tokens = np.flatnonzero(self._lengths)
        states = np.full(len(tokens), state)
        for position in range(self._bytes.shape[1]):
            states = self.automaton.transitions[states, self._bytes[tokens, position]]
            tokens, states = tokens[states >= 0], states[states >= 0]
            is_read = self._lengths[tokens] == position + 1
            allowed[tokens[is_read]] = True
            tokens, states = tokens[~is_read], states[~is_read]
        if self.automaton.accepting[state]:
            allowed[list(self.stop_token_ids)] = True
        return allowed

    def row(self, state: int) -> npt.NDArray[np.int32]:
        """Return the bitmask of a state, int32 `[ceil(V / 32)]`; bits beyond V are 0."""
        if state not in self._rows:
            bits = np.pad(self.allowed(state), (0, -self.vocab_size % 32))
            self._rows[state] = np.packbits(bits, bitorder="little").view("<i4")
        return self._rows[state]


class RegexMatcher:
    """A text being read token by token, with the methods of `xgrammar.GrammarMatcher`.

    Args:
        masks: shared by all matchers of one regex and one vocabulary.

    Attributes:
        states: the automaton's states that the text went through, the present one last; −2 behind a stop token.

    >>> masks = RegexMasks(compile_regex_automaton("a+b"), [b"a", b"b", b"aab", b"ba", None], [4], vocab_size=5)
    >>> matcher = RegexMatcher(masks)
    >>> [matcher.accept_token(token) for token in (0, 3, 1, 4)], matcher.states, matcher.is_terminated()
    ([True, False, True, True], [0, 1, 2, -2], True)
    >>> matcher.rollback(2)
    >>> bitmask = torch.zeros(1, 1, dtype=torch.int32)
    >>> matcher.fill_next_token_bitmask(bitmask)
    >>> bin(bitmask.item())
    '0b111'
    """

    def __init__(self, masks: RegexMasks) -> None:
        self.masks = masks
        self.states = [masks.automaton.start]

    def accept_token(self, token_id: int) -> bool:
        """Read one more token; False, and nothing read, if it is not allowed (as is any behind a stop token)."""
        if self.is_terminated():
            return False
        if token_id in self.masks.stop_token_ids:
            behind = _TERMINATED if self.is_completed() else -1
        else:
            text = self.masks.token_bytes.get(token_id)
            behind = self.masks.automaton.advance(self.states[-1], text) if text else -1
        if behind != -1:
            self.states.append(behind)
        return behind != -1

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens, a stop token among them.

        Raises:
            ValueError: a negative number.
            RuntimeError: more tokens than were read; nothing is taken back.
        """
        if num_tokens < 0:
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        if num_tokens >= len(self.states):
            raise RuntimeError(f"cannot roll back {num_tokens} tokens of {len(self.states) - 1}")
        del self.states[len(self.states) - num_tokens :]

    def fill_next_token_bitmask(self, bitmask: torch.Tensor, index: int = 0) -> None:
        """Overwrite row `index` of a bitmask, every bit of it, with the tokens allowed next.

        Args:
            bitmask: int32 `[rows, ceil(V / 32)]` on the CPU, contiguous.
            index: the row.

        Raises:
            TypeError, ValueError: the bitmask has another dtype, or another device, shape or layout.
            IndexError: no such row.
            RuntimeError: a stop token was read.
        """
        if self.is_terminated():
            raise RuntimeError("a stop token was read: there is no next token")
        row = self.masks.row(self.states[-1])
        if bitmask.dtype != torch.int32:
            raise TypeError(f"bitmask must be int32, not {bitmask.dtype}")
        if bitmask.shape[1:] != (len(row),) or bitmask.device.type != "cpu" or not bitmask.is_contiguous():
            raise ValueError(f"bitmask must be [rows, {len(row)}], contiguous, on the CPU; not {list(bitmask.shape)}")
        if not 0 <= index < len(bitmask):
            raise IndexError(f"bitmask has no row {index}, but {len(bitmask)} rows")
        bitmask.numpy()[index] = row

    def is_terminated(self) -> bool:
        """Whether a stop token was read: nothing may follow."""
        return self.states[-1] == _TERMINATED

    def is_completed(self) -> bool:
        """Whether the text so far matches, so that a stop token may follow (or did)."""
        return self.is_terminated() or bool(self.masks.automaton.accepting[self.states[-1]])

    def fork(self) -> RegexMatcher:
        """Copy the matcher, history included; the masks are shared."""
        copy = RegexMatcher(self.masks)
        copy.states = self.states.copy()
        return copy
