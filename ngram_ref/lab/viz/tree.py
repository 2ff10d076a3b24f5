"""Drawing of a draft tree, and its twin in text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ngram_ref.lab.viz.labels import number_ranges, shorten, visible
from ngram_ref.lab.viz.layout import Detail, Grid, Scale, choose_scale, place
from ngram_ref.lab.viz.svg import (
    Drawing,
    arrow_down,
    arrow_right,
    cross,
    elbow,
    element,
    mono,
    number,
    path,
    rect,
    text,
    tick,
    titled,
)
from ngram_ref.lab.viz.theme import Theme
from ngram_ref.lab.viz.view import NodeState, TreeView

_HEAD = 24.0  # height of the line of positions above the tree


def draw_tree(view: TreeView, theme: Theme, width: float = 1118.0) -> Drawing:
    """Draw a tree: position from left to right, the accepted path straight along the top.

    Args:
        view: the tree.
        theme: colours.
        width: pixels at most; with many nodes less is written on each of them, so that no labels touch.

    Returns:
        The drawing; every node has a tooltip with all that is known of it.
    """
    sketch = _sketch(view, theme, width, accepted_on_top=True)
    children = [node for node, parent in enumerate(view.parents) if parent >= 0]
    # Edges of one parent share their first pixels: the accepted one comes last, on top.
    children.sort(key=lambda node: view.states[node] is NodeState.ACCEPTED)
    return _assemble(sketch, [_edge(sketch, node) for node in children])


def draw_linked_tree(view: TreeView, theme: Theme, width: float = 1118.0) -> Drawing:
    """Draw a tree with its links for edges: blue to the first child, purple down to the next sibling.

    Siblings stand in the order of the links. Arguments and result are those of `draw_tree`.
    """
    sketch = _sketch(view, theme, width, accepted_on_top=False)
    links = []
    for children in view.children:
        if children:
            links.append(_child_link(sketch, children[0]))
        links.extend(_sibling_link(sketch, a, b) for a, b in pairwise(children))
    return _assemble(sketch, links)


@dataclass(frozen=True)
class _Sketch:
    """A tree with its places in pixels: what all parts of the drawing share."""

    view: TreeView
    theme: Theme
    grid: Grid
    scale: Scale

    def centre(self, node: int) -> tuple[float, float]:
        """Middle of a node's box."""
        return self.at(self.grid.columns[node], self.grid.rows[node])

    def at(self, column: int, row: int) -> tuple[float, float]:
        """Middle of a cell's box."""
        x = self.scale.box_width / 2 + column * self.scale.pitch_x
        return x, _HEAD + 6.0 + self.scale.pitch_y * row + max(self.scale.box_height, 20.0) / 2


def _sketch(view: TreeView, theme: Theme, width: float, accepted_on_top: bool) -> _Sketch:
    grid = place(view, accepted_on_top)
    return _Sketch(view, theme, grid, choose_scale(view, grid, width))


def _assemble(sketch: _Sketch, edges: list[str]) -> Drawing:
    """Put stripes, edges, nodes and the bonus token together."""
    scale, (columns, rows) = sketch.scale, sketch.grid.size
    caption = 20.0 if scale.detail is Detail.FULL else 0.0
    bottom = sketch.at(0, rows - 1)[1] + scale.box_height / 2 + caption
    width = scale.box_width + (columns - 1) * scale.pitch_x
    width += scale.pitch_x - scale.box_width if scale.text_columns and scale.detail is Detail.DOTS else 0
    nodes = [_node(sketch, node) for node in range(len(sketch.view.texts))]
    parts = [_stripes(sketch, bottom), *edges, *nodes, _bonus(sketch)]
    return Drawing("".join(parts), width, bottom)


def _stripes(sketch: _Sketch, bottom: float) -> str:
    """Draw one stripe a column with its position above it: what stands in one stripe shares a position."""
    scale, theme, parts = sketch.scale, sketch.theme, []
    digits = len(str(sketch.view.prefix_length + sketch.grid.size[0]))
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64) if step * scale.pitch_x >= 7.0 * digits + 15.0)
    for column in range(sketch.grid.size[0]):
        x = sketch.at(column, 0)[0]
        if scale.detail is not Detail.DOTS:
            x0 = x - scale.box_width / 2 - 6.0
            parts.append(rect(x0, _HEAD - 2.0, scale.box_width + 12.0, bottom - _HEAD + 4.0, theme.band, rx=8.0))
        if column % every == 0:
            label = f"@{sketch.view.prefix_length + column}"
            anchor = "start" if scale.detail is Detail.DOTS else "middle"
            x = x - 4.5 if scale.detail is Detail.DOTS else x
            parts.append(mono(x, _HEAD - 9.0, label, 11.0, theme.muted, anchor))
    return "".join(parts)


def _edge(sketch: _Sketch, node: int) -> str:
    """Draw the edge from a node's parent: thick and solid when accepted, thin and dashed when rejected."""
    stroke, width, dash = {
        NodeState.ACCEPTED: (sketch.theme.accept_ink, 3.0, None),
        NodeState.REJECTED: (sketch.theme.reject_line, 1.2, "4 3"),
    }.get(sketch.view.states[node], (sketch.theme.reject_line, 1.4, None))
    return path(_route(sketch, sketch.centre(sketch.view.parents[node]), sketch.centre(node), 0.0), stroke, width, dash)


def _route(sketch: _Sketch, start: tuple[float, float], end: tuple[float, float], short: float) -> str:
    """Lead a line from box to box, turning in the gutter before the second; it ends `short` pixels early."""
    half = sketch.scale.box_width / 2
    gutter = min(16.0, (sketch.scale.pitch_x - sketch.scale.box_width) / 2)
    return elbow(start[0] + half, start[1], end[0] - half - short, end[1], end[0] - half - gutter)


def _child_link(sketch: _Sketch, node: int) -> str:
    start, end = sketch.centre(sketch.view.parents[node]), sketch.centre(node)
    head = min(7.0, (sketch.scale.pitch_x - sketch.scale.box_width) * 0.7)
    line = path(_route(sketch, start, end, head - 1), sketch.theme.child_ink, 1.8)
    return line + arrow_right(end[0] - sketch.scale.box_width / 2, end[1], head, sketch.theme.child_ink)


def _sibling_link(sketch: _Sketch, node: int, sibling: int) -> str:
    half, ink = sketch.scale.box_height / 2, sketch.theme.sibling_ink
    (x, y0), (_, y1) = sketch.centre(node), sketch.centre(sibling)
    head = min(7.0, (sketch.scale.pitch_y - sketch.scale.box_height) * 0.7)
    line = path(f"M{number(x)} {number(y0 + half)}V{number(y1 - half - head + 1)}", ink, 1.8, "1.5 2.5")
    return line + arrow_down(x, y1 - half, head, ink)


@dataclass(frozen=True)
class _Look:
    """How the box of a state is drawn."""

    ink: str
    fill: str
    line: str
    width: float
    dash: str | None = None


def _look(state: NodeState, theme: Theme) -> _Look:
    return {
        NodeState.ROOT: _Look(theme.root_ink, theme.root_fill, theme.root_fill, 1.5),
        NodeState.DRAFTED: _Look(theme.ink, theme.node_fill, theme.reject_line, 1.4),
        NodeState.ACCEPTED: _Look(theme.accept_ink, theme.accept_fill, theme.accept_ink, 2.4),
        NodeState.REJECTED: _Look(theme.reject_ink, theme.node_fill, theme.reject_line, 1.2),
        NodeState.PADDING: _Look(theme.pad_ink, "none", theme.faint, 1.0, "3 3"),
    }[state]


def _node(sketch: _Sketch, node: int) -> str:
    look = _look(sketch.view.states[node], sketch.theme)
    draw = {Detail.FULL: _full_node, Detail.COMPACT: _compact_node, Detail.DOTS: _dot}[sketch.scale.detail]
    return titled(draw(sketch, node, look), describe(sketch.view, node))


def _label(view: TreeView, node: int) -> str:
    return "pad" if view.states[node] is NodeState.PADDING else visible(view.texts[node])


def _box(sketch: _Sketch, centre: tuple[float, float], look: _Look, radius: float) -> str:
    scale = sketch.scale
    x, y = centre[0] - scale.box_width / 2, centre[1] - scale.box_height / 2
    return rect(
        x,
        y,
        scale.box_width,
        scale.box_height,
        look.fill,
        rx=radius,
        stroke=look.line,
        stroke_width=look.width,
        stroke_dasharray=look.dash,
    )


def _full_node(sketch: _Sketch, node: int, look: _Look) -> str:
    (x, y), scale, theme, view = sketch.centre(node), sketch.scale, sketch.theme, sketch.view
    left, right, base = x - scale.box_width / 2 + 3, x + scale.box_width / 2 - 3, y + scale.box_height / 2 + 15
    token = mono(x, y + 5, shorten(_label(view, node), scale.text_columns), 15.0, look.ink, "middle", bold=True)
    mark, shift = _mark(view.states[node], left, base - 8, theme)
    slot = mono(left + shift, base, str(node), 12.0, theme.ink, bold=True)
    if view.states[node] is NodeState.PADDING:
        return _box(sketch, (x, y), look, 8.0) + token + slot
    place_label = mono(right, base, f"@{view.positions[node]}", 12.0, theme.muted, "end")
    return _box(sketch, (x, y), look, 8.0) + token + mark + slot + place_label


def _compact_node(sketch: _Sketch, node: int, look: _Look) -> str:
    (x, y), scale, view = sketch.centre(node), sketch.scale, sketch.view
    left, right = x - scale.box_width / 2, x + scale.box_width / 2
    slot = mono(left + 6, y + 3.5, str(node), 10.0, look.ink)
    token = mono(left + 23, y + 4, shorten(_label(view, node), scale.text_columns), 12.0, look.ink, bold=True)
    mark, _ = _mark(view.states[node], right - 15, y - 3.5, sketch.theme)
    return _box(sketch, (x, y), look, 6.0) + slot + token + mark


def _dot(sketch: _Sketch, node: int, look: _Look) -> str:
    (x, y), state = sketch.centre(node), sketch.view.states[node]
    radius = min(4.5, sketch.scale.pitch_y / 2 - 1.2, sketch.scale.pitch_x / 2 - 1.5)
    if state is NodeState.ROOT:
        shape = rect(x - radius, y - radius, 2 * radius, 2 * radius, look.fill)
    else:
        fill = look.ink if state is NodeState.ACCEPTED else look.fill
        dash = look.dash and "1.5 1.5"
        line = {"stroke": look.line, "stroke_width": number(look.width), "stroke_dasharray": dash}
        shape = element("circle", cx=x, cy=y, r=radius, fill=fill, **line)
    label = shorten(_label(sketch.view, node), sketch.scale.text_columns)
    ink = sketch.theme.root_fill if state is NodeState.ROOT else look.ink
    return shape + (mono(x + 6, y - 5, label, 10.0, ink, bold=state is NodeState.ACCEPTED) if label else "")


def _mark(state: NodeState, x: float, y: float, theme: Theme) -> tuple[str, float]:
    """The sign of a state, and how far it pushes what follows to the right."""
    if state is NodeState.ACCEPTED:
        return tick(x, y, theme.accept_ink), 14.0
    if state is NodeState.REJECTED:
        return cross(x + 1, y + 1, theme.reject_ink), 14.0
    return "", 0.0


def _bonus(sketch: _Sketch) -> str:
    """Draw the bonus token behind the last accepted node: amber, no node of the tree, so without a number."""
    view, theme, scale = sketch.view, sketch.theme, sketch.scale
    if sketch.grid.bonus is None or view.bonus is None or view.accepted is None:
        return ""
    x, y = sketch.at(*sketch.grid.bonus)
    line = path(_route(sketch, sketch.centre(view.accepted[-1]), (x, y), 0.0), theme.bonus_ink, 3.0)
    label = shorten(visible(view.bonus), scale.text_columns)
    title = f"bonus token {view.bonus!r}: the target's word after node {view.accepted[-1]}"
    look = _Look(theme.bonus_ink, theme.bonus_fill, theme.bonus_ink, 2.0)
    if scale.detail is Detail.DOTS:
        shape = element("path", d=f"M{number(x)} {number(y - 6)}l6 6l-6 6l-6 -6z", fill=theme.bonus_ink)
        token = mono(x + 8, y - 5, label, 10.0, theme.bonus_ink, bold=True) if label else ""
    elif scale.detail is Detail.FULL:
        shape = _box(sketch, (x, y), look, 17.0)
        token = mono(x, y + 5, label, 15.0, look.ink, "middle", bold=True)
        token += text(x, y + scale.box_height / 2 + 15, "bonus", 12.0, look.ink, "middle")
    else:
        shape = _box(sketch, (x, y), look, 10.0)
        token = mono(x - scale.box_width / 2 + 9, y + 4, "+", 12.0, look.ink, bold=True)
        token += mono(x - scale.box_width / 2 + 23, y + 4, label, 12.0, look.ink, bold=True)
    return line + titled(shape + token, title)


def describe(view: TreeView, node: int) -> str:
    """Say all that is known of a node, for its tooltip.

    >>> describe(TreeView(("a", "b"), (-1, 0), prefix_length=3), 1)
    "node 1, position 4: 'b', drafted; sees the prefix and nodes 0 1"
    """
    if view.states[node] is NodeState.PADDING:
        return f"node {node}: padding, sees only itself"
    sees = f"sees the prefix and nodes {number_ranges(view.seen_by(node))}"
    return f"node {node}, position {view.positions[node]}: {view.texts[node]!r}, {view.states[node].value}; {sees}"
