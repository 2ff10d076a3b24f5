"""Finished figures: an image with its alternative text, a caption that says what to see, and a twin in plain text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote

from ngram_ref.lab.viz.links import draw_links
from ngram_ref.lab.viz.mask import draw_mask
from ngram_ref.lab.viz.svg import Drawing, document, escape, moved, panel
from ngram_ref.lab.viz.theme import LIGHT, Theme
from ngram_ref.lab.viz.tokens import StepTokens, tokens_html, tokens_text
from ngram_ref.lab.viz.tree import draw_linked_tree, draw_tree
from ngram_ref.lab.viz.twins import links_text, mask_text, tree_text
from ngram_ref.lab.viz.view import TreeView

WIDTH = 1150.0
"""Width of a figure in pixels: a notebook cell's; it scales down with the page."""


@dataclass(frozen=True)
class Figure:
    """A drawing as notebooks show and save it.

    Attributes:
        svg: the whole image.
        alt: what it shows, for those who do not see it.
        caption: one sentence: what to see.
        text: the twin.
    """

    svg: str
    alt: str
    caption: str
    text: str

    def _repr_html_(self) -> str:
        """The saved form: an image in a data URI, which a notebook shows before it is trusted, too."""
        source = "data:image/svg+xml," + quote(self.svg, safe=" /:=;,()'!*@$+?~-_.")
        image = f'<img alt="{escape(self.alt)}" style="max-width:100%;height:auto" src="{source}">'
        return self._framed(image)

    def live_html(self) -> str:
        """The live form, for a widget: inline SVG, which follows the page's theme when drawn with `LIVE`."""
        return self._framed(self.svg)

    def _framed(self, image: str) -> str:
        twin = f"<details><summary>the same as text</summary><pre>{escape(self.text)}</pre></details>"
        caption = f'<figcaption style="margin:6px 0">{escape(self.caption)}</figcaption>'
        return f'<figure style="margin:0">{image}{caption}{twin}</figure>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Everything a front end may choose from; `include` and `exclude` are IPython's and may be ignored."""
        return {"text/html": self._repr_html_(), "text/plain": self.text}


def tree_figure(view: TreeView, caption: str, theme: Theme = LIGHT) -> Figure:
    """Show a tree alone, its accepted path on top.

    Args:
        view: the tree.
        caption: what to see.
        theme: colours.
    """
    drawing = panel(draw_tree(view, theme, WIDTH - 32), "Draft tree", _tree_sentence(view), theme)
    alt = f"Draft tree: {view.summary()}"
    return Figure(document(drawing, alt, theme), alt, caption, tree_text(view))


def linked_tree_figure(view: TreeView, caption: str, theme: Theme = LIGHT) -> Figure:
    """Show a tree with its links for edges; arguments as for `tree_figure`."""
    drawing = panel(draw_linked_tree(view, theme, WIDTH - 32), "Links", _LINK_SENTENCE, theme)
    alt = f"Links of a draft tree: {view.summary()}"
    return Figure(document(drawing, alt, theme), alt, caption, tree_text(view) + "\n\n" + links_text(view))


def mask_figure(view: TreeView, caption: str, highlight: int | None = None, theme: Theme = LIGHT) -> Figure:
    """Show a mask alone.

    Args:
        view: the tree.
        caption: what to see.
        highlight: a node whose row is framed.
        theme: colours.
    """
    drawing = panel(draw_mask(view, theme, 640.0, highlight), "Tree mask", _MASK_SENTENCE, theme)
    alt = f"Tree mask: {view.summary()}"
    return Figure(document(drawing, alt, theme), alt, caption, mask_text(view))


def same_nodes_figure(view: TreeView, caption: str, highlight: int | None = None, theme: Theme = LIGHT) -> Figure:
    """Show the same nodes three times: as a tree with its links, as a mask, as a table of positions and links.

    Args:
        view: the tree.
        caption: what to see.
        highlight: a node whose mask row is framed.
        theme: colours.
    """
    mask = draw_mask(view, theme, 440.0 if len(view.texts) <= 20 else 500.0, highlight)
    right_width = max(mask.width, 390.0)
    room = WIDTH - right_width - 2 * 32 - 12
    tree, table = draw_linked_tree(view, theme, room), draw_links(view, theme, WIDTH - 32)
    height = max(tree.height, mask.height) + 58
    left = panel(replace(tree, width=room), "Draft tree", _LINK_SENTENCE, theme, height)
    right = panel(replace(mask, width=right_width), "Tree mask", _MASK_SENTENCE, theme, height)
    below = panel(replace(table, width=WIDTH - 32), "Positions and links", "the index arrays, node by node", theme)
    parts = moved(left, 0, 0) + moved(right, left.width + 12, 0) + moved(below, 0, height + 12)
    alt = f"The same draft tree as tree, mask, positions and links: {view.summary()}"
    twin = "\n\n".join([tree_text(view), mask_text(view), links_text(view)])
    return Figure(document(Drawing(parts, WIDTH, height + 12 + below.height), alt, theme), alt, caption, twin)


_LINK_SENTENCE = "blue, solid: to the first child; purple, dotted: to the next sibling"
_MASK_SENTENCE = "row i sees the prefix, its ancestors and itself"


def _tree_sentence(view: TreeView) -> str:
    if view.accepted is None:
        return "bold number: node, its slot in the cache; @: its position"
    return "✓ accepted, ✗ rejected; behind the last accepted node: the bonus token"


@dataclass(frozen=True)
class TokenFigure:
    """Generated tokens by origin, as notebooks show and save them."""

    steps: tuple[StepTokens, ...]
    theme: Theme = LIGHT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": tokens_html(self.steps, self.theme), "text/plain": tokens_text(self.steps)}
