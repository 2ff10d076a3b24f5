"""The few SVG elements the drawings are made of, as strings.

Nothing here refers to an id (no gradients, patterns or markers), so that any number of drawings can stand inline in one
page without touching each other, and numbers are written in one way, so that the same data give the same text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ngram_ref.lab.viz.theme import MONO, SANS, Theme

MONO_WIDTH = 0.61
"""Width of a monospace character in units of the font size; the common faces need 0.55 to 0.61."""

_XML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


@dataclass(frozen=True)
class Drawing:
    """A piece of a figure: SVG elements that fill `width` by `height` from the origin, in pixels."""

    body: str
    width: float
    height: float


def escape(text: str) -> str:
    """Escape a text for XML, in content and in attributes; what XML cannot hold becomes U+FFFD.

    >>> escape("<s> & 'x'")
    '&lt;s&gt; &amp; &#39;x&#39;'
    """
    return "".join(_XML.get(c, c) if _is_xml(ord(c)) else "\ufffd" for c in text)


def _is_xml(code: int) -> bool:
    """Say whether XML 1.0 has the character."""
    return code in (0x9, 0xA, 0xD) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF


def number(value: float) -> str:
    """Write a coordinate with at most one decimal.

    >>> number(3.0), number(2.25), number(-0.01)
    ('3', '2.2', '0')
    """
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written


def element(name: str, content: str = "", /, **attributes: str | float | None) -> str:
    """Write one element; `None` leaves an attribute out, `_` in a name stands for `-`.

    Args:
        name: the tag.
        content: inner SVG, already escaped.
        **attributes: numbers or texts; texts are escaped.

    >>> element("rect", width=3.0, stroke_width=1.5)
    '<rect width="3" stroke-width="1.5"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, size: float, fill: str, anchor: str = "start", bold: bool = False) -> str:
    """Write a label in the proportional face, its baseline at y."""
    weight = "600" if bold else None
    return element("text", escape(content), x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, font_weight=weight)


def mono(x: float, y: float, content: str, size: float, fill: str, anchor: str = "start", bold: bool = False) -> str:
    """Write numbers or a token in the monospace face, its baseline at y."""
    return element(
        "text",
        escape(content),
        x=x,
        y=y,
        font_size=size,
        fill=fill,
        text_anchor=anchor,
        font_family=MONO,
        font_weight="600" if bold else None,
    )


def rect(x: float, y: float, width: float, height: float, fill: str, **more: str | float | None) -> str:
    """Write a rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, fill=fill, **more)


def path(commands: str, stroke: str, width: float = 1.0, dash: str | None = None) -> str:
    """Write an open line."""
    return element("path", d=commands, fill="none", stroke=stroke, stroke_width=width, stroke_dasharray=dash)


def elbow(x0: float, y0: float, x1: float, y1: float, bend: float) -> str:
    """Commands of a line that leaves (x0, y0) to the right, turns at x = `bend` and arrives at (x1, y1)."""
    if abs(y1 - y0) < 0.5:
        return f"M{number(x0)} {number(y0)}H{number(x1)}"
    radius = min(8.0, abs(y1 - y0) / 2, abs(x1 - bend), abs(bend - x0))
    turn = math.copysign(radius, y1 - y0)
    return (
        f"M{number(x0)} {number(y0)}H{number(bend - radius)}Q{number(bend)} {number(y0)} {number(bend)} "
        f"{number(y0 + turn)}V{number(y1 - turn)}Q{number(bend)} {number(y1)} {number(bend + radius)} {number(y1)}"
        f"H{number(x1)}"
    )


def arrow_right(x: float, y: float, length: float, fill: str) -> str:
    """An arrow head with its tip at (x, y), pointing right."""
    half = number(length / 2)
    return element("path", d=f"M{number(x)} {number(y)}l-{number(length)} -{half}v{number(length)}z", fill=fill)


def arrow_down(x: float, y: float, length: float, fill: str) -> str:
    """An arrow head with its tip at (x, y), pointing down."""
    half = number(length / 2)
    return element("path", d=f"M{number(x)} {number(y)}l-{half} -{number(length)}h{number(length)}z", fill=fill)


def tick(x: float, y: float, stroke: str) -> str:
    """A tick (accepted), 9 by 7 pixels from its top left corner. Drawn, since not every face has the character."""
    return path(f"M{number(x)} {number(y + 3.8)}l3 3.2l6 -7", stroke, 2.0)


def cross(x: float, y: float, stroke: str) -> str:
    """A cross (rejected), 6 by 6 pixels from its top left corner."""
    return path(f"M{number(x)} {number(y)}l6 6m0 -6l-6 6", stroke, 1.5)


def titled(content: str, title: str) -> str:
    """Group elements under a tooltip."""
    return element("g", element("title", escape(title)) + content)


def moved(drawing: Drawing, x: float, y: float) -> str:
    """Place a drawing at (x, y)."""
    return element("g", drawing.body, transform=f"translate({number(x)} {number(y)})")


def panel(drawing: Drawing, title: str, sentence: str, theme: Theme, height: float | None = None) -> Drawing:
    """Frame a drawing: one title and one sentence above it.

    Args:
        drawing: what stands in the panel.
        title: bold; short.
        sentence: muted, on the same line; says what to see.
        theme: colours.
        height: of the frame, where panels stand side by side; otherwise as the content needs.
    """
    heading = 8.6 * len(title) + 10.0 + 6.2 * len(sentence)
    width, height = max(drawing.width, heading) + 32, height or drawing.height + 58
    frame = rect(0.5, 0.5, width - 1, height - 1, theme.panel, rx=10.0, stroke=theme.panel_line)
    parts = element("tspan", escape(title), fill=theme.ink, font_size=14.0, font_weight="600")
    parts += element("tspan", escape(sentence), fill=theme.muted, font_size=12.0, dx=10.0) if sentence else ""
    head = element("text", parts, x=16.0, y=25.0)
    return Drawing(frame + head + moved(drawing, 16, 42), width, height)


def document(drawing: Drawing, label: str, theme: Theme) -> str:
    """Close a drawing to a whole SVG image that scales with its page.

    Args:
        drawing: the elements.
        label: what the image says, for those who do not see it.
        theme: its `ground` goes behind everything.
    """
    width, height = number(drawing.width), number(drawing.height)
    ground = "" if theme.ground == "none" else rect(0, 0, drawing.width, drawing.height, theme.ground)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" style="max-width:100%;height:auto" font-family="{SANS}">'
        f"{ground}{drawing.body}</svg>"
    )
