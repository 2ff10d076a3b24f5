"""Generated tokens by origin, as text on a terminal, laid out as the text itself is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngram_ref.lab.viz.labels import visible
from ngram_ref.lab.viz.tokens import StepTokens


@dataclass(frozen=True)
class Marks:
    """How a terminal shows where tokens come from; each pair stands before and behind a run of tokens."""

    draft: tuple[str, str]
    bonus: tuple[str, str]


COLOURS = Marks(draft=("\x1b[4;32m", "\x1b[0m"), bonus=("", ""))
BRACKETS = Marks(draft=("⟦", "⟧"), bonus=("", ""))  # seldom found in code or JSON


def tokens_terminal(steps: Sequence[StepTokens], marks: Marks) -> str:
    """Write tokens with their own line breaks; each run of accepted drafts stands between marks.

    Characters that a terminal would act on are made visible, line breaks and tabs apart.

    >>> print(tokens_terminal([StepTokens((), "the"), StepTokens((" cat\\n", " sat"), " on")], BRACKETS))
    the⟦ cat
     sat⟧ on
    """
    return "".join(
        _marked("".join(step.drafts), marks.draft) + _marked(step.bonus or "", marks.bonus) for step in steps
    )


def _marked(text: str, mark: tuple[str, str]) -> str:
    """Put marks around a text that is not empty."""
    return f"{mark[0]}{_printable(text)}{mark[1]}" if text else ""


def _printable(text: str) -> str:
    """Keep spaces, tabs and line breaks; make visible what else would draw nothing or steer the terminal."""
    return "".join(character if character in " \n\t" else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    """A character, escaped where `visible` escapes it; a backslash stays one, since nothing else is doubled here."""
    return character if character == "\\" else visible(character)
