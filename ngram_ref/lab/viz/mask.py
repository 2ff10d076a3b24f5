"""Drawing of an ancestor mask: who may look at whom, one path a row."""

from __future__ import annotations

from dataclasses import dataclass

from ngram_ref.lab.viz.labels import number_ranges, shorten, visible
from ngram_ref.lab.viz.svg import Drawing, element, mono, number, path, rect, text, tick
from ngram_ref.lab.viz.theme import Theme
from ngram_ref.lab.viz.view import NodeState, TreeView


@dataclass(frozen=True)
class _Frame:
    """Places in a mask drawing: the first cell's corner, the size of a cell, the prefix block's width."""

    view: TreeView
    theme: Theme
    x: float
    y: float
    cell: float
    prefix: float
    label_columns: int

    @property
    def count(self) -> int:
        return len(self.view.parents)

    @property
    def side(self) -> float:
        return self.cell * self.count


def draw_mask(view: TreeView, theme: Theme, width: float = 460.0, highlight: int | None = None) -> Drawing:
    """Draw the mask of a tree: a row for each node that looks, the prefix block at the left, then a column a node.

    Args:
        view: the tree.
        theme: colours.
        width: pixels at most; labels thin out where cells are small.
        highlight: a node whose row is framed and spelt out below.

    Raises:
        ValueError: `highlight` is no node of the tree.
    """
    if highlight is not None and not 0 <= highlight < len(view.parents):
        raise ValueError(f"highlight must be a node, 0 to {len(view.parents) - 1}, not {highlight}")
    frame = _frame(view, theme, width)
    parts = [_prefix_block(frame, highlight), _cells(frame), _numbers(frame)]
    drawn = Drawing("".join(parts), frame.x + frame.side + 20, frame.y + frame.side + 4)
    return drawn if highlight is None else _highlighted(frame, drawn, highlight, width)


def _frame(view: TreeView, theme: Theme, width: float) -> _Frame:
    count = len(view.parents)
    longest = max(len(visible(token)) for token in view.texts)
    columns = min(longest, 8) if count <= 20 else 0
    labels = 26.0 + 7.4 * columns
    prefix = 58.0 if count <= 20 else 44.0
    cell = max(5.0, min(32.0, float(int((width - labels - prefix - 26.0) / count))))
    return _Frame(view, theme, labels + prefix + 6.0, 22.0, cell, prefix, columns)


def _prefix_block(frame: _Frame, highlight: int | None) -> str:
    """Draw the block that stands for the prefix: real nodes see all of it, padding none of it."""
    rows, ink = frame.count - frame.view.states.count(NodeState.PADDING), frame.theme.mask_ink
    x, middle = frame.x - frame.prefix - 6, frame.x - frame.prefix / 2 - 6
    # The number must not stand under the frame around the highlighted row: it moves a row away.
    row = (rows - 1) // 2
    row += (1 if row + 1 < rows else -1) if row == highlight and rows > 1 else 0
    y = frame.y + (row + 0.5) * frame.cell + 4
    block = rect(x, frame.y, frame.prefix, rows * frame.cell, frame.theme.mask_fill, rx=3.0)
    head = text(middle, frame.y - 7, "prefix", 12.0, frame.theme.muted, "middle")
    return block + head + mono(middle, y, str(frame.view.prefix_length), 12.0, ink, "middle")


def _cells(frame: _Frame) -> str:
    """Draw the square: white ground, a path of ancestors for each row, the diagonal, and gaps between the cells."""
    theme, cell, parts = frame.theme, frame.cell, []
    parts.append(rect(frame.x, frame.y, frame.side, frame.side, theme.node_fill))
    accepted = frame.view.accepted or ()
    for node in range(frame.count):
        commands = "".join(_run(frame, node, *run) for run in _runs(frame.view.seen_by(node)[:-1]))
        if commands:
            fill = theme.accept_mid if node in accepted else theme.mask_mid
            parts.append(element("path", d=commands, fill=fill))
    for of_accepted, fill in ((False, theme.mask_ink), (True, theme.accept_ink)):
        own = [node for node in range(frame.count) if (node in accepted) is of_accepted]
        commands = "".join(_run(frame, node, node, node + 1) for node in own)
        parts.append(element("path", d=commands, fill=fill) if commands else "")
    lines = (number(i * cell) for i in range(1, frame.count))
    side, x, y = number(frame.side), number(frame.x), number(frame.y)
    gaps = "".join(
        f"M{number(frame.x + float(at))} {y}v{side}M{x} {number(frame.y + float(at))}h{side}" for at in lines
    )
    border = rect(frame.x, frame.y, frame.side, frame.side, "none", stroke=theme.panel_line)
    return "".join(parts) + path(gaps, theme.panel, 2.0 if cell >= 14 else 0.8) + border


def _runs(nodes: list[int]) -> list[tuple[int, int]]:
    """Join neighbours: ascending nodes to (first, one past the last)."""
    runs: list[tuple[int, int]] = []
    for node in nodes:
        if runs and runs[-1][1] == node:
            runs[-1] = (runs[-1][0], node + 1)
        else:
            runs.append((node, node + 1))
    return runs


def _run(frame: _Frame, row: int, first: int, stop: int) -> str:
    x, y, cell = frame.x + first * frame.cell, frame.y + row * frame.cell, number(frame.cell)
    length = (stop - first) * frame.cell
    return f"M{number(x)} {number(y)}h{number(length)}v{cell}h{number(-length)}z"


def _numbers(frame: _Frame) -> str:
    """Write node numbers above and at the left, tokens where there is room, ticks behind accepted rows."""
    every = next(step for step in (1, 2, 4, 8, 16) if step * frame.cell >= 13.0)
    size, parts = (12.0 if frame.cell >= 18 else 10.0), []
    labels = frame.x - frame.prefix - 12
    for node in range(0, frame.count, every):
        middle = (node + 0.5) * frame.cell
        muted = frame.theme.muted
        parts.append(mono(frame.x + middle, frame.y - 7, str(node), size, muted, "middle"))
        parts.append(mono(labels, frame.y + middle + size / 3, str(node), size, muted, "end"))
    for node in range(frame.count if frame.label_columns else 0):
        pad = frame.view.states[node] is NodeState.PADDING
        token = "pad" if pad else shorten(visible(frame.view.texts[node]), frame.label_columns)
        ink = frame.theme.pad_ink if pad else frame.theme.ink
        y = frame.y + (node + 0.5) * frame.cell + 4
        parts.append(mono(labels - 20, y, token, 12.0, ink, "end"))
    if frame.cell >= 9:
        parts.extend(
            tick(frame.x + frame.side + 6, frame.y + (node + 0.5) * frame.cell - 4, frame.theme.accept_ink)
            for node in frame.view.accepted or ()
        )
    return "".join(parts)


def _highlighted(frame: _Frame, drawn: Drawing, node: int, width: float) -> Drawing:
    """Frame one row of a drawing, and say below it what it means."""
    x, y, ink = frame.x - frame.prefix - 8, frame.y + node * frame.cell, frame.theme.highlight
    box = rect(x, y - 1, frame.prefix + frame.side + 10, frame.cell + 2, "none", rx=4.0, stroke=ink, stroke_width=2.0)
    seen = number_ranges(frame.view.seen_by(node))
    pad = frame.view.states[node] is NodeState.PADDING
    words = f"row {node} sees " + (f"only itself: {seen}" if pad else f"the prefix and nodes {seen}")
    words = shorten(words, int((width - x) / 6.8))
    body = drawn.body + box + text(x, frame.y + frame.side + 22, words, 12.0, ink, bold=True)
    return Drawing(body, max(drawn.width, x + 6.8 * len(words)), drawn.height + 24)
