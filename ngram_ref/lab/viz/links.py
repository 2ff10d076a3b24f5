"""Drawing of the index arrays of a tree as a table: one column a node, one row an array."""

from __future__ import annotations

from collections.abc import Sequence

from ngram_ref.core.links import derive_tree_links
from ngram_ref.core.tree import ancestor_mask
from ngram_ref.lab.viz.labels import shorten, visible
from ngram_ref.lab.viz.svg import Drawing, mono, path
from ngram_ref.lab.viz.theme import Theme
from ngram_ref.lab.viz.view import NodeState, TreeView

_LABELS = 118.0  # width of the names of the rows
_LINE = 23.0  # height of a row


def index_rows(view: TreeView) -> dict[str, list[int]]:
    """The index arrays of a tree by name, in the order in which they are shown; −1 where there is none.

    >>> index_rows(TreeView(("a", "b", "c"), (-1, 0, 0), prefix_length=9))["next_sibling"]
    [-1, 2, -1]
    """
    next_token, next_sibling = derive_tree_links(ancestor_mask([view.parents]))
    return {
        "parent": list(view.parents),
        "position": list(view.positions),
        "next_token": next_token[0].tolist(),
        "next_sibling": next_sibling[0].tolist(),
    }


def draw_links(view: TreeView, theme: Theme, width: float = 1118.0) -> Drawing:
    """Draw node, token, parent, position, next_token and next_sibling, aligned under the nodes.

    Args:
        view: the tree.
        theme: colours.
        width: pixels; long trees break into several bands, and tokens are left out where they would touch.
    """
    count = len(view.parents)
    digits = max(2, len(str(count)), len(str(max(view.positions))))
    tokens = count * 52.0 <= width - _LABELS
    least = 52.0 if tokens else 7.4 * digits + 12.0
    room = int((width - _LABELS) / least)
    bands = -(-count // room)
    per_band = -(-count // bands)
    pitch = min(120.0, (width - _LABELS) / per_band)
    parts, height = [], 0.0
    for first in range(0, count, per_band):
        nodes = range(first, min(first + per_band, count))
        part, used = _band(view, theme, nodes, pitch, height, tokens)
        parts.append(part)
        height += used + 14.0
    return Drawing("".join(parts), _LABELS + pitch * per_band, height - 14.0)


def _band(view: TreeView, theme: Theme, nodes: range, pitch: float, top: float, tokens: bool) -> tuple[str, float]:
    """Draw the columns of some nodes; give the elements and their height."""
    inks = {"next_token": theme.child_ink, "next_sibling": theme.sibling_ink}
    rows: list[tuple[str, Sequence[str], str]] = [("node", [str(node) for node in nodes], theme.muted)]
    if tokens:
        columns = int((pitch - 8.0) / 7.4)
        rows.append(("token", [shorten(_token(view, node), columns) for node in nodes], theme.ink))
    for name, values in index_rows(view).items():
        shown = ["·" if values[node] < 0 else str(values[node]) for node in nodes]
        rows.append((name, shown, inks.get(name, theme.ink)))
    parts = []
    for line, (name, cells, ink) in enumerate(rows):
        y, bold = top + 14.0 + line * _LINE, name in inks
        parts.append(mono(_LABELS - 22.0, y, name, 12.0, ink, "end", bold))
        for place, cell in enumerate(cells):
            x, quiet = _LABELS + (place + 0.5) * pitch, cell == "·"
            parts.append(mono(x, y, cell, 12.0, theme.faint if quiet else ink, "middle", bold and not quiet))
    rule = f"M{_LABELS - 10:.0f} {top + 20.5:.1f}h{len(nodes) * pitch:.1f}"
    return "".join(parts) + path(rule, theme.panel_line), len(rows) * _LINE - 4.0


def _token(view: TreeView, node: int) -> str:
    return "pad" if view.states[node] is NodeState.PADDING else visible(view.texts[node])
