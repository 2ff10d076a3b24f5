"""Where the nodes of a tree stand, and how much is written on them.

Depth gives the column, so that siblings stand under one position; the order of leaves gives the row. A first child
continues its parent's row, so that a chain is straight, and the accepted path is the top row. All nodes below a node
stand in the rows between it and its next sibling: lines can turn in the gutter before a column without crossing a box.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ngram_ref.lab.viz.labels import display_width, visible
from ngram_ref.lab.viz.view import NodeState, TreeView


class Detail(Enum):
    """How much is written on a node; less where there is no room."""

    FULL = "box with its token, number and position under it"
    COMPACT = "box with number and token in one line"
    DOTS = "dot; its token above the line where it fits"


@dataclass(frozen=True)
class Grid:
    """Cells of the nodes, in whole columns and rows.

    Attributes:
        columns, rows: `[n]`, the cell of each node; padding stands in rows of its own at the bottom.
        bonus: cell of the bonus token, or None.
        size: number of columns and of rows.
    """

    columns: tuple[int, ...]
    rows: tuple[int, ...]
    bonus: tuple[int, int] | None
    size: tuple[int, int]


@dataclass(frozen=True)
class Scale:
    """Pixels: distances between cells, the box of a node, and the room for its text in columns."""

    detail: Detail
    pitch_x: float
    pitch_y: float
    box_width: float
    box_height: float
    text_columns: int


def place(view: TreeView, accepted_on_top: bool) -> Grid:
    """Give every node a cell.

    Args:
        view: the tree.
        accepted_on_top: draw the accepted child first; otherwise siblings stand in the order of their links.

    >>> place(TreeView(("a", "b", "c", "d"), (-1, 0, 0, 1)), accepted_on_top=True).rows
    (0, 0, 1, 0)
    """
    rows = [0] * len(view.parents)
    last, bonus = 0, None
    stack = [(0, True)]  # preorder: a first child follows its parent at once, so the last row is still the parent's
    while stack:
        node, is_first = stack.pop()
        last += not is_first
        rows[node] = last
        children = _ordered_children(view, node, accepted_on_top)
        if view.bonus is not None and view.accepted is not None and node == view.accepted[-1]:
            bonus = (view.depths[node] + 1, last)
            stack.extend((child, False) for child in reversed(children))
        else:
            stack.extend((child, child == children[0]) for child in reversed(children))
    columns = list(view.depths)
    width = max(*columns, bonus[0] if bonus else 0, 0) + 1
    pads = [node for node, state in enumerate(view.states) if state is NodeState.PADDING]
    for place_in_line, node in enumerate(pads):
        rows[node], columns[node] = last + 1 + place_in_line // width, place_in_line % width
    return Grid(tuple(columns), tuple(rows), bonus, (width, max(rows) + 1))


def _ordered_children(view: TreeView, node: int, accepted_on_top: bool) -> list[int]:
    accepted = view.accepted if accepted_on_top and view.accepted else ()
    return sorted(view.children[node], key=lambda child: child not in accepted)


def choose_scale(view: TreeView, grid: Grid, width: float) -> Scale:
    """Choose the detail that fits: `width` pixels across, and no more than a screen down.

    >>> view = TreeView(("a",) * 64, (-1, *range(63)))
    >>> choose_scale(view, place(view, True), width=1100).detail.name
    'DOTS'
    """
    columns, rows = grid.size
    room = width / columns
    texts = [*view.texts, *([view.bonus] if view.bonus is not None else [])]
    longest = max(display_width(visible(text)) for text in texts)
    slot, position = 17.0 + 7.4 * len(str(len(view.texts) - 1)), 3.0 + 7.4 * len(f"@{max(view.positions)}")
    caption = 2 * max(slot, position) + 7.0  # a sibling's link passes between the two
    if room >= caption + 22.0 and rows <= 6:
        box = min(max(caption, 9.2 * longest + 20.0), room - 22.0)
        return Scale(Detail.FULL, min(room, box + 92.0), 66.0, box, 34.0, int((box - 12.0) / 9.2))
    if room >= 92.0 and rows <= 18:
        box = min(max(60.0, 7.4 * longest + 52.0), room - 26.0)
        return Scale(Detail.COMPACT, min(room, box + 56.0), 34.0, box, 21.0, int((box - 44.0) / 7.4))
    pitch_x, pitch_y = min(room, 96.0), min(max(640.0 / rows, 9.0), 22.0)
    text_columns = int((pitch_x - 21.0) / 6.2) if pitch_y >= 15.0 else 0
    return Scale(Detail.DOTS, pitch_x, pitch_y, 9.0, 9.0, text_columns if text_columns >= 3 else 0)
