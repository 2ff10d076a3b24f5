"""What xgrammar takes for something else in a regular expression, at most with a line on stderr.

Anchors where nothing can match (`a^b`) it drops; an escape that it does not know (`\\A`, `\\Q`) it reads as the letter;
and a class that begins with `]` (`[^]a]`) it ends there.
"""

from __future__ import annotations

import re

# What xgrammar knows, and what it refuses itself by name (word boundaries, Unicode classes, backreferences).
_ANSWERED_ESCAPES = "dDwWsSnrtfvxuc" + "bBpPk123456789"
# An escape, a class (a `]` that comes first in it is one of its characters), the start of a group, any other character.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|.", re.DOTALL)


def misplaced_anchor(pattern: str) -> int | None:
    """Find a `^` with something before it on its way through the pattern, or a `$` with something behind it.

    Args:
        pattern: a regular expression that is otherwise valid.

    Returns:
        The position of the anchor, counted from 0, or that of what follows a `$`; None where all is well.

    >>> misplaced_anchor("a^b"), misplaced_anchor("^(a|b)$"), misplaced_anchor("(a$|b)c"), misplaced_anchor("[$^]")
    (1, None, 6, None)
    """
    at_start, ended = True, False  # whether nothing was matched yet; whether some branch just closed ended with `$`
    groups: list[tuple[bool, bool]] = []  # of each open group: `at_start` before it, `ended` of its branches so far
    for piece in _PIECE.finditer(pattern):
        text = piece.group()
        if text in ("(", "(?:"):
            if ended:
                return piece.start()
            groups.append((at_start, False))
        elif text in ("|", ")"):
            before, others = groups.pop() if groups else (True, False)
            if text == "|":
                groups.append((before, others or ended))
                at_start, ended = before, False
            else:
                at_start, ended = False, others or ended
        elif text == "^":
            if not at_start:
                return piece.start()
        elif text == "$":
            ended = True
        elif ended:
            return piece.start()
        else:
            at_start = False
    return None


def misread_piece(pattern: str) -> int | None:
    """Find an escape that xgrammar does not know, or a class that begins with `]`.

    Args:
        pattern: a regular expression that is otherwise valid.

    Returns:
        Its position, counted from 0; None where all is well.

    >>> misread_piece(r"\\d\\A"), misread_piece("[^]a]"), misread_piece(r"[\\d\\]]+\\.")
    (2, 0, None)
    """
    for piece in _PIECE.finditer(pattern):
        text = piece.group()
        if text.startswith("[^]"):  # `[]` it refuses itself, as an empty class
            return piece.start()
        for escape in re.finditer(r"\\(.)", text, re.DOTALL):
            if escape[1].isascii() and escape[1].isalnum() and escape[1] not in _ANSWERED_ESCAPES:
                return piece.start() + escape.start()
    return None
