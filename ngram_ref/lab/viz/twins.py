"""The drawings' twins in plain text: for terminals, screen readers, logs and reviews of changes."""

from __future__ import annotations

from ngram_ref.lab.viz.labels import display_width, pad_to, visible
from ngram_ref.lab.viz.links import index_rows
from ngram_ref.lab.viz.view import NodeState, TreeView

_SIGNS = {NodeState.ACCEPTED: " ✓", NodeState.REJECTED: " ✗"}


def tree_text(view: TreeView) -> str:
    """Write a tree as lines: node number, token, `@position`, ✓ accepted or ✗ rejected; `+` is the bonus token.

    >>> print(tree_text(TreeView(("the", " cat", " dog", " ran"), (-1, 0, 0, 1), 4, (0, 1), "!")))
    0 the @4
    ├─ 1 ␣cat @5 ✓
    │  ├─ + ! (bonus)
    │  └─ 3 ␣ran @6 ✗
    └─ 2 ␣dog @5 ✗
    """
    lines: list[str] = []
    last_accepted = view.accepted[-1] if view.accepted and view.bonus is not None else None
    stack: list[tuple[int | None, str, str]] = [(0, "", "")]  # node (None: the bonus), its branch, its children's stem
    while stack:
        node, branch, stem = stack.pop()
        if node is None:
            lines.append(f"{branch}+ {visible(view.bonus or '')} (bonus)")
            continue
        lines.append(branch + _line(view, node))
        below: list[int | None] = [*([None] if node == last_accepted else []), *view.children[node]]
        for child in reversed(below):
            is_last = child == below[-1]
            stack.append((child, stem + ("└─ " if is_last else "├─ "), stem + ("   " if is_last else "│  ")))
    pads = [str(node) for node, state in enumerate(view.states) if state is NodeState.PADDING]
    return "\n".join(lines + (["padding: " + " ".join(pads)] if pads else []))


def _line(view: TreeView, node: int) -> str:
    return f"{node} {visible(view.texts[node])} @{view.positions[node]}{_SIGNS.get(view.states[node], '')}"


def mask_text(view: TreeView) -> str:
    """Write a mask as rows: `■` itself, `□` an ancestor, `·` hidden; every row but padding sees the prefix too.

    >>> print(mask_text(TreeView(("a", "b", "c"), (-1, 0, 0))))
    0  ■ · ·
    1  □ ■ ·
    2  □ · ■
    """
    count = len(view.parents)
    digits = len(str(count - 1))
    lines = []
    for node in range(count):
        seen = view.seen_by(node)
        cells = ("■" if node == other else "□" if other in seen else "·" for other in range(count))
        lines.append(f"{node:>{digits}}  {' '.join(cells)}")
    return "\n".join(lines)


def links_text(view: TreeView) -> str:
    """Write node, token and the index arrays as a table, one line a node; `·` where there is none.

    >>> print(links_text(TreeView(("a", "b", "c"), (-1, 0, 0), prefix_length=9)))
    node  token  parent  position  next_token  next_sibling
    0     a      ·       9         1           ·
    1     b      0       10        ·           2
    2     c      0       10        ·           ·
    """
    rows = index_rows(view)
    table = [["node", "token", *rows]]
    for node, state in enumerate(view.states):
        token = "(pad)" if state is NodeState.PADDING else visible(view.texts[node])
        table.append([str(node), token, *("·" if column[node] < 0 else str(column[node]) for column in rows.values())])
    widths = [max(map(display_width, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(pad_to, line, widths)).rstrip() for line in table)
