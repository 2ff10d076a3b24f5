"""Token texts made fit to be drawn: whitespace and control characters visible, long texts shortened, widths counted."""

from __future__ import annotations

import unicodedata

_NAMED = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
# Categories that draw nothing, or change how their neighbours are drawn: controls, formats, surrogates, private use,
# unassigned, and the separators other than the plain space.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


def visible(text: str) -> str:
    """Make every character of a token visible, so that two different tokens never look the same.

    Args:
        text: any string, lone surrogates included.

    Returns:
        The text with `␣` for a space, and escapes as Python writes them for newlines, tabs, backslashes, controls,
        invisible format characters (bidirectional ones would turn the drawing around) and lone surrogates.

    >>> visible(" a\\n")
    '␣a\\\\n'
    >>> visible("\\x1b[31m")
    '\\\\x1b[31m'
    """
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) in _UNSEEN:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def display_width(text: str) -> int:
    """Count the columns of a text in a monospace face: 2 for wide characters, 0 for combining ones.

    >>> display_width("ab"), display_width("日本"), display_width("e\\u0301")
    (2, 4, 1)
    """
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, columns: int) -> str:
    """Cut a text to a number of columns; the cut shows as `…`.

    Args:
        text: what `visible` gives.
        columns: room, in columns; without room the result is empty.

    >>> shorten("elephant", 5), shorten("ant", 5), shorten("ant", 0)
    ('elep…', 'ant', '')
    """
    if display_width(text) <= columns:
        return text
    kept, used = "", 0
    for character in text:
        used += _character_width(character)
        if used > columns - 1:
            break
        kept += character
    return kept + "…" if columns >= 1 else ""


def pad_to(text: str, columns: int) -> str:
    """Fill a text with spaces on its right up to a number of columns, as `str.ljust` would if all were narrow.

    >>> pad_to("日", 3) + "|"
    '日 |'
    """
    return text + " " * (columns - display_width(text))


def number_ranges(numbers: list[int]) -> str:
    """Write ascending numbers with runs of three and more drawn together.

    >>> number_ranges([0, 1, 3, 4, 5, 6])
    '0 1 3–6'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs)
