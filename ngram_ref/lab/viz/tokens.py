"""Generated tokens by origin: which came as accepted drafts, which the model added itself as bonus tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngram_ref.lab.viz.labels import visible
from ngram_ref.lab.viz.svg import escape
from ngram_ref.lab.viz.theme import SANS, Theme


@dataclass(frozen=True)
class StepTokens:
    """What one step emitted, as texts: the accepted drafts, then the bonus token (None where there was none)."""

    drafts: tuple[str, ...]
    bonus: str | None


def token_texts(tokenizer: Any, token_ids: Sequence[int]) -> tuple[str, ...]:
    """Decode token ids one by one, nothing cleaned up; a token that is part of a character shows as U+FFFD.

    Args:
        tokenizer: a Hugging Face tokenizer.
        token_ids: ids of its vocabulary.
    """
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    return tuple(tokenizer.decode([int(token_id)], **options) for token_id in token_ids)


def tokens_text(steps: Sequence[StepTokens]) -> str:
    """Write tokens step by step: drafts in brackets, parted by `|`, the bonus token behind them.

    >>> tokens_text([StepTokens((), "the"), StepTokens((" cat", " sat"), " on")])
    'the  [␣cat|␣sat]␣on'
    """
    return "  ".join(_step_text(step) for step in steps)


def _step_text(step: StepTokens) -> str:
    drafts = f"[{'|'.join(map(visible, step.drafts))}]" if step.drafts else ""
    return drafts + visible(step.bonus or "")


def tokens_html(steps: Sequence[StepTokens], theme: Theme) -> str:
    """Write tokens as HTML: one frame a step; drafts underlined on green, the bonus bold on amber.

    Inline styles only, since a notebook that is not trusted yet keeps those.
    """
    ground = "transparent" if theme.ground == "none" else theme.ground
    box = f"background:{ground};color:{theme.ink};font-family:{SANS};padding:10px;line-height:2.3;max-width:1118px"
    return f'<div style="{box}">{_legend(theme)}<br>{" ".join(_step_html(step, theme) for step in steps)}</div>'


def _step_html(step: StepTokens, theme: Theme) -> str:
    frame = f"border:1px solid {theme.panel_line};border-radius:6px;padding:4px 3px"
    tokens = [_draft_html(draft, theme) for draft in step.drafts]
    tokens += [_bonus_html(step.bonus, theme)] if step.bonus is not None else []
    return f'<span style="{frame}">{"<wbr>".join(tokens)}</span>'  # a long step may break between tokens


def _draft_html(token: str, theme: Theme) -> str:
    style = f"background-color:{theme.accept_fill};color:{theme.accept_ink};text-decoration:underline;padding:2px 3px"
    return f'<span style="{style}">{escape(visible(token))}</span>'


def _bonus_html(token: str, theme: Theme) -> str:
    style = f"background-color:{theme.bonus_fill};color:{theme.bonus_ink};font-weight:bold;padding:2px 3px"
    return f'<span style="{style}">{escape(visible(token))}</span>'


def _legend(theme: Theme) -> str:
    style = f"color:{theme.muted};font-size:12px"
    parts = f"{_draft_html('draft', theme)} {_bonus_html('bonus', theme)} a frame is a step"
    return f'<span style="{style}">{parts}</span>'
