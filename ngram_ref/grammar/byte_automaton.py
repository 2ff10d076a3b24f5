"""From a regular expression to a nondeterministic automaton over bytes; `regex_matcher.py` makes it deterministic.

`_Parser` reads the pattern, `ByteNfa` makes states and edges of its parts by Thompson's construction. Edges carry
bytes, not characters, because tokens do: a token of a byte-level vocabulary may end in the middle of a character (the
emoji 😀 is four bytes, often spread over two tokens or more).

Sources: K. Thompson, Regular Expression Search Algorithm, 1968; R. Cox, Regular Expression Matching in the Wild, 2010.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # (first, last), both included, of code points or of bytes

_MAX_DEPTH = 50  # of parentheses: the parser is recursive
# A part of a pattern, once read: given an automaton and one of its states, it adds what matches the part behind that
# state, and returns the state in which it has matched. Nothing that it adds leads back to the given state.
_Part: TypeAlias = Callable[["ByteNfa", int], int]


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the code points outside of `ranges`, sorted and disjoint (so twice: the union of `ranges`)."""
    gaps, free = [], 0
    for first, last in sorted(ranges):
        gaps.append((free, first - 1))
        free = max(free, last + 1)
    gaps.append((free, 0x10FFFF))
    return tuple((first, last) for first, last in gaps if first <= last)


def _single(char: str) -> Ranges:
    return ((ord(char), ord(char)),)


_SETS: dict[str, Ranges] = {"d": ((0x30, 0x39),), "s": ((0x09, 0x0D), (0x20, 0x20))}
_SETS["w"] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SETS |= {letter.upper(): _complement(ranges) for letter, ranges in _SETS.items()}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,?)([0-9]*)\}")
_CODE_POINT = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}")
# What is refused where a character, a group or a class should begin; the first form that fits names it.
_UNSUPPORTED = [
    (r"\(\?[=!]", "lookahead"),
    (r"\(\?<[=!]", "lookbehind"),
    (r"\(\?>", "atomic group"),
    (r"\(\?P=|\(\?\(|\\[1-9k]", "backreference"),
    (r"\(\?P?<", "named group"),
    (r"\(\?(?!:)", "inline flags"),
    (r"\[\^?\]", r"empty class (write \] for the character)"),
    (r"\\[bB]", "word boundary"),
    (r"\\[pP]", "Unicode property"),
    (r"\\[AZ]|[\^$]", "anchor that is not at an end of the pattern"),
    (r"\\(?![dswDSWntrfvxuU])[0-9a-zA-Z]", "escape"),
    (_QUANTIFIER.pattern, "stray quantifier, with nothing to repeat"),
    (r"\{", r"'{' that is no {m}, {m,} or {m,n} (write \{ for the character)"),
]


class _Parser:
    """Recursive descent: alternation, branch, repetition, atom."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = self.depth = 0

    def refusal(self, what: str, position: int) -> ValueError:
        return ValueError(f"{what} at position {position} of the regex {self.pattern!r}")

    def peek(self, *texts: str) -> bool:
        return self.pattern.startswith(texts, self.position)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.position += len(text) * found
        return found

    def next_char(self, unfinished: str, start: int) -> str:
        if self.position == len(self.pattern):
            raise self.refusal(unfinished, start)
        self.position += 1
        return self.pattern[self.position - 1]

    def refuse_unsupported(self) -> None:
        for form, name in _UNSUPPORTED:
            if found := re.compile(form).match(self.pattern, self.position):
                raise self.refusal(f"{found[0]!r}: unsupported {name}", self.position)

    def parse(self) -> _Part:
        regex = self.alternation()
        if self.position < len(self.pattern):  # only a parenthesis stops an alternation before the end
            raise self.refusal("unbalanced ')'", self.position)
        return regex

    def alternation(self) -> _Part:
        branches = [self.branch()]
        while self.take("|"):
            branches.append(self.branch())
        return lambda nfa, start: nfa.add_alternation(branches, start)

    def branch(self) -> _Part:
        parts = []
        if self.depth == 0:
            self.take("^")  # the whole text has to match anyway, so an anchor at an end says nothing
        while self.position < len(self.pattern) and not self.peek("|", ")"):
            if self.depth == 0 and (self.peek("$|") or self.pattern[self.position :] == "$"):
                self.take("$")
            else:
                parts.append(self.repetition())
        return lambda nfa, start: reduce(lambda state, part: part(nfa, state), parts, start)

    def repetition(self) -> _Part:
        part = self.atom()
        found = _QUANTIFIER.match(self.pattern, self.position)
        if found is None:  # a brace that means something else is refused as an atom
            return part
        if found[0] in _SIGNS:
            least, most = _SIGNS[found[0]]
        else:
            least = int(found[1])
            most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise self.refusal(f"{found[0]!r}: reversed bounds", self.position)
        self.position = found.end()
        if self.peek("+"):
            raise self.refusal("'+': unsupported possessive quantifier", self.position)
        self.take("?")  # lazy: another order of trying, the same language
        return lambda nfa, start: nfa.add_repetition(part, least, most, start)

    def atom(self) -> _Part:
        self.refuse_unsupported()
        start = self.position
        if self.take("("):
            return self.group(start)
        if self.take("["):
            ranges = self.char_class(start)
        elif self.peek("\\"):
            ranges = self.escape()
        else:
            ranges = _complement(_single("\n")) if self.take(".") else _single(self.next_char("nothing", start))
        # Refused, because every state can reach the end as long as every part matches something.
        if all(first >= 0xD800 and last <= 0xDFFF for first, last in ranges):
            raise self.refusal(f"{self.pattern[start : self.position]!r}, which no character matches,", start)
        return lambda nfa, start: nfa.add_characters(ranges, start)

    def group(self, start: int) -> _Part:
        self.take("?:")
        if self.depth == _MAX_DEPTH:
            raise self.refusal(f"more than {_MAX_DEPTH} groups within each other", start)
        self.depth += 1
        inner = self.alternation()
        if not self.take(")"):
            raise self.refusal("unbalanced '('", start)
        self.depth -= 1
        return inner

    def escape(self) -> Ranges:
        self.refuse_unsupported()
        start = self.position
        self.take("\\")
        letter = self.next_char("trailing backslash", start)
        if letter in _SETS:
            return _SETS[letter]
        if letter not in "xuU":
            return _single(_CONTROLS.get(letter, letter))
        digits = _CODE_POINT.match(self.pattern, start + 1)
        if digits is None:
            raise self.refusal(f"'\\{letter}' without the 2, 4 or 8 hexadecimal digits of a code point", start)
        self.position = digits.end()
        return _single(chr(int(digits[0][1:], 16)))

    def char_class(self, start: int) -> Ranges:
        negated = self.take("^")
        ranges: Ranges = ()
        while not self.take("]"):
            ranges += self.class_item(start)
        return _complement(ranges) if negated else _complement(_complement(ranges))

    def class_item(self, start: int) -> Ranges:
        item_start = self.position
        low = self.class_member(start)
        if self.peek("-]") or not self.take("-"):
            return low
        high = self.class_member(start)
        first, last = low[0][0], high[0][0]
        if low != ((first, first),) or high != ((last, last),) or first > last:
            raise self.refusal(f"bad range {self.pattern[item_start : self.position]!r}", item_start)
        return ((first, last),)

    def class_member(self, start: int) -> Ranges:
        if self.peek("\\"):
            return self.escape()
        return _single(self.next_char("unbalanced '['", start))


def utf8_byte_ranges(first: int, last: int) -> Iterator[Ranges]:
    """Split a range of code points into sequences of byte ranges; surrogates, which UTF-8 has not, are left out.

    >>> list(utf8_byte_ranges(ord("z"), ord("é")))
    [((122, 127),), ((194, 194), (128, 191)), ((195, 195), (128, 169))]
    """
    cut = _cut(first, last)
    if cut is not None:
        yield from utf8_byte_ranges(first, cut)
        yield from utf8_byte_ranges(cut + 1, last)
    elif not 0xD800 <= first <= 0xDFFF:
        yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _cut(first: int, last: int) -> int | None:
    """Return a code point behind which to cut, until every byte of a piece has one range whatever the others are."""
    for border in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):  # the length changes, or the surrogates begin or end
        if first <= border < last:
            return border
    for size in (1 << 6, 1 << 12, 1 << 18):  # a block of `size` code points shares its leading bytes
        if last > 0x7F and first // size != last // size:
            if first % size:
                return first | (size - 1)
            if (last + 1) % size:
                return last // size * size - 1
    return None


class ByteNfa:
    """A nondeterministic automaton over bytes, of at most `max_states` states (else `ValueError`); state 0 is first.

    Attributes:
        edges: of each state, `(first byte, last byte, target)`.
        jumps: of each state, the states reached without reading a byte.
        end: the one accepting state.

    >>> nfa = ByteNfa("a|é", max_states=100)
    >>> nfa.edges, nfa.jumps, nfa.end
    ([[(97, 97, 2), (195, 195, 4)], [], [], [], [(169, 169, 3)]], [[], [], [1], [1], []], 1)
    """

    def __init__(self, pattern: str, max_states: int) -> None:
        self.max_states = max_states
        self.edges: list[list[tuple[int, int, int]]] = []
        self.jumps: list[list[int]] = []
        self.end = _Parser(pattern).parse()(self, self.new_state())

    def new_state(self, jump_from: int | None = None) -> int:
        """Add a state, perhaps with a jump to it."""
        if len(self.edges) == self.max_states:
            raise ValueError(f"the regex needs more than {self.max_states} nondeterministic states (max_states)")
        self.edges.append([])
        self.jumps.append([])
        if jump_from is not None:
            self.jumps[jump_from].append(len(self.edges) - 1)
        return len(self.edges) - 1

    def add_characters(self, ranges: Ranges, start: int) -> int:
        """Add one character of `ranges` behind `start`."""
        end = self.new_state()
        # Sequences that end alike share states: `.` takes 8 instead of 19, and so does the result.
        behind: dict[Ranges, int] = {(): end}
        for sequence in (sequence for pair in ranges for sequence in utf8_byte_ranges(*pair)):
            for k in range(len(sequence) - 1, 0, -1):
                if sequence[k:] not in behind:
                    behind[sequence[k:]] = self.new_state()
                    self.edges[behind[sequence[k:]]].append((*sequence[k], behind[sequence[k + 1 :]]))
            self.edges[start].append((*sequence[0], behind[sequence[1:]]))
        return end

    def add_alternation(self, branches: list[_Part], start: int) -> int:
        """Add several branches behind `start`, which meet again."""
        end = self.new_state()
        for branch in branches:
            self.jumps[branch(self, start)].append(end)
        return end

    def add_repetition(self, part: _Part, least: int, most: int | None, start: int) -> int:
        """Add `least` copies of a part behind `start`, then a loop (no `most`), or copies that can be left out."""
        # Every part that can be repeated adds a state, so even (){1000000000} meets the bound on states.
        for _ in range(least):
            start = part(self, start)
        end = self.new_state(start)
        if most is None:
            self.jumps[part(self, end)].append(end)
        for _ in range((most or 0) - least):
            start = part(self, start)
            self.jumps[start].append(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return the states reached by jumps alone, as far as they matter: with edges, or accepting."""
        seen = set(states)
        todo = list(seen)
        while todo:
            new = set(self.jumps[todo.pop()]) - seen
            seen |= new
            todo += new
        return frozenset(state for state in seen if self.edges[state] or state == self.end)
