"""Colours and faces of the drawings. A theme is passed in; nothing else decides how a figure looks.

`LIGHT` and `DARK` have fixed colours, for figures that are saved: shown through `<img>` a figure cannot see the page,
so it brings its own ground. `LIVE` is for inline SVG: it follows JupyterLab's theme through CSS variables.
"""

from __future__ import annotations

from dataclasses import dataclass

SANS = "Inter, system-ui, DejaVu Sans, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"


@dataclass(frozen=True)
class Theme:
    """One set of colours; each a CSS colour.

    Attributes:
        ground: behind everything.
        panel, panel_line: a panel's ground and border.
        band: quiet stripe behind what belongs together.
        ink, muted, faint: texts in three weights; `faint` is also for guides.
        root_ink, root_fill: text on the root's box and the box.
        accept_ink, accept_fill: accepted nodes.
        reject_ink, reject_line: drafted or rejected nodes, on `node_fill`.
        node_fill: ground of a hollow node.
        pad_ink: padding.
        bonus_ink, bonus_fill: the bonus token.
        mask_ink, mask_mid, mask_fill: mask cells: itself, an ancestor, the prefix.
        accept_mid: a mask cell on an accepted row.
        child_ink, sibling_ink: the two kinds of links.
        highlight: frame of what is pointed out.
    """

    ground: str
    panel: str
    panel_line: str
    band: str
    ink: str
    muted: str
    faint: str
    root_ink: str
    root_fill: str
    accept_ink: str
    accept_fill: str
    accept_mid: str
    reject_ink: str
    reject_line: str
    node_fill: str
    pad_ink: str
    bonus_ink: str
    bonus_fill: str
    mask_ink: str
    mask_mid: str
    mask_fill: str
    child_ink: str
    sibling_ink: str
    highlight: str


LIGHT = Theme(
    ground="#ffffff",
    panel="#f7f9fb",
    panel_line="#d5dbe1",
    band="#eef2f6",
    ink="#1f2933",
    muted="#5f6b78",
    faint="#98a2ad",
    root_ink="#ffffff",
    root_fill="#3c4b5c",
    accept_ink="#0b7a55",
    accept_fill="#d9f2e6",
    accept_mid="#7fcba9",
    reject_ink="#5f6b78",
    reject_line="#8a95a1",
    node_fill="#ffffff",
    pad_ink="#7d8894",
    bonus_ink="#8a5a00",
    bonus_fill="#fdecc8",
    mask_ink="#1f5fa8",
    mask_mid="#92bbe6",
    mask_fill="#dcebfa",
    child_ink="#1f5fa8",
    sibling_ink="#6a4c9c",
    highlight="#8a5a00",
)

DARK = Theme(
    ground="#111111",
    panel="#1a1e23",
    panel_line="#343c45",
    band="#232930",
    ink="#e6eaee",
    muted="#a5b0bb",
    faint="#6c7884",
    root_ink="#15191d",
    root_fill="#c4ced8",
    accept_ink="#5fd3a5",
    accept_fill="#123c2e",
    accept_mid="#2c7d5f",
    reject_ink="#a5b0bb",
    reject_line="#75818d",
    node_fill="#1a1e23",
    pad_ink="#83909c",
    bonus_ink="#f0bd5b",
    bonus_fill="#43310f",
    mask_ink="#74b0f0",
    mask_mid="#3a6ca3",
    mask_fill="#1d3550",
    child_ink="#74b0f0",
    sibling_ink="#b79ae6",
    highlight="#f0bd5b",
)

_PAGE = "var(--jp-layout-color1, #ffffff)"
_TEXT = "var(--jp-ui-font-color1, #1f2933)"


def _ink(colour: str) -> str:
    """Draw an accent towards the page's text colour, so that it keeps its contrast on light and on dark."""
    return f"color-mix(in srgb, {colour} 62%, {_TEXT})"


def _wash(colour: str, percent: int) -> str:
    """Thin an accent with the page's ground."""
    return f"color-mix(in srgb, {colour} {percent}%, {_PAGE})"


LIVE = Theme(
    ground="none",
    panel=_wash("#6b7f96", 6),
    panel_line="var(--jp-border-color2, #d5dbe1)",
    band=_wash("#6b7f96", 12),
    ink=_TEXT,
    muted="var(--jp-ui-font-color2, #5f6b78)",
    faint="var(--jp-ui-font-color3, #98a2ad)",
    root_ink=_PAGE,
    root_fill=f"color-mix(in srgb, #3c4b5c 50%, {_TEXT})",
    accept_ink=_ink("#10a473"),
    accept_fill=_wash("#10a473", 18),
    accept_mid=_wash("#10a473", 52),
    reject_ink="var(--jp-ui-font-color2, #5f6b78)",
    reject_line=_wash("#6b7785", 75),
    node_fill=_PAGE,
    pad_ink="var(--jp-ui-font-color2, #5f6b78)",
    bonus_ink=_ink("#c98a13"),
    bonus_fill=_wash("#f0b429", 24),
    mask_ink=_ink("#2f7fd6"),
    mask_mid=_wash("#2f7fd6", 52),
    mask_fill=_wash("#2f7fd6", 18),
    child_ink=_ink("#2f7fd6"),
    sibling_ink=_ink("#8a63d2"),
    highlight=_ink("#c98a13"),
)
