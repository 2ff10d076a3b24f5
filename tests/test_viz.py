"""The drawings: well-formed for any token, the same for the same data, no labels that touch, true twins."""

import itertools
import random
import re
import urllib.parse
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from ngram_ref.core.tree import DraftTree
from ngram_ref.lab.viz import (
    DARK,
    LIGHT,
    LIVE,
    Figure,
    NodeState,
    StepTokens,
    TokenFigure,
    TreeView,
    linked_tree_figure,
    mask_figure,
    same_nodes_figure,
    token_texts,
    tree_figure,
)
from ngram_ref.lab.viz.figure import WIDTH
from ngram_ref.lab.viz.labels import display_width, number_ranges, shorten, visible
from ngram_ref.lab.viz.links import index_rows
from ngram_ref.lab.viz.terminal import COLOURS, tokens_terminal
from ngram_ref.lab.viz.tokens import tokens_text
from ngram_ref.lab.viz.twins import mask_text, tree_text

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<s>",
    "&",
    '"',
    "'",
    "\x00\x1b[31m",
    "\n",
    "日本語",
    "👩‍🚀",
    "\u202eabc",
    "]]>",
    "&amp;",
    "\ud800",
    "\t ",
    "a" * 90,
)
FIGURES = (tree_figure, linked_tree_figure, mask_figure, same_nodes_figure)


def random_parents(n: int, seed: int, spread: float) -> tuple[int, ...]:
    """A random tree in BFS order; `spread` near 0 gives chains, near 1 bushes."""
    rng = random.Random(seed)
    drawn = [-1] + [max(0, int(i - 1 - spread * rng.random() * i)) for i in range(1, n)]
    order = [0]
    for node in order:
        order += [child for child in range(n) if drawn[child] == node]
    new = {old: place for place, old in enumerate(order)}
    return (-1, *(new[drawn[old]] for old in order[1:]))


def verified(texts: tuple[str, ...], parents: tuple[int, ...], prefix_length: int, leaf: int) -> TreeView:
    path = [leaf]
    while path[-1] > 0:
        path.append(parents[path[-1]])
    return TreeView(texts, parents, prefix_length, tuple(reversed(path)), "␣bonus!")


def words(n: int) -> tuple[str, ...]:
    return tuple((" extraordinarily", " the", "\n\n", "日本語日本語", ")", "return", " a")[i % 7] for i in range(n))


SHAPES = {
    "root only": verified(("a",), (-1,), 0, 0),
    "small": verified(words(6), (-1, 0, 0, 1, 2, 2), 10, 5),
    "padded": verified(words(9), (-1, 0, 0, 1, 2, 2, -1, -1, -1), 10, 3),
    "unverified": TreeView(words(6), (-1, 0, 0, 1, 2, 2), 99999),
    "chain 12": verified(words(12), (-1, *range(11)), 30, 4),
    "chain 64": verified(words(64), (-1, *range(63)), 1012, 30),
    "star 12": verified(words(12), (-1, *[0] * 11), 30, 7),
    "star 64": verified(words(64), (-1, *[0] * 63), 30, 7),
    "mostly pads": verified(words(64), (-1, 0, *[-1] * 62), 30, 1),
} | {
    f"random {n} {spread}": verified(words(n), random_parents(n, n, spread), 112, n - 1)
    for n in (8, 16, 24, 32, 48, 64)
    for spread in (0.1, 0.5, 1.0)
}


def labels(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Boxes of all texts of an image, from what is written in it: text, left, top, right, bottom."""
    found: list[tuple[str, float, float, float, float]] = []
    _collect(ET.fromstring(svg), 0.0, 0.0, found)
    return found


def _collect(node: ET.Element, dx: float, dy: float, found: list[tuple[str, float, float, float, float]]) -> None:
    if moved := re.fullmatch(r"translate\((\S+) (\S+)\)", node.get("transform", "")):
        dx, dy = dx + float(moved[1]), dy + float(moved[2])
    if node.tag == f"{SVG}text":
        assert "rotate" not in node.get("transform", "")
        parts = [node, *node]
        sizes = [float(part.get("font-size", "0")) for part in parts]
        factor = 0.6 if "monospace" in node.get("font-family", "") else 0.54
        width = sum(factor * size * display_width(part.text or "") for part, size in zip(parts, sizes, strict=True))
        left = (
            float(node.get("x", "0"))
            + dx
            - width * {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor", "start")]
        )
        base = float(node.get("y", "0")) + dy
        found.append(("".join(node.itertext()), left, base - 0.72 * max(sizes), left + width, base + 0.1 * max(sizes)))
    for child in node:
        _collect(child, dx, dy, found)


def overlaps(a: tuple[str, float, float, float, float], b: tuple[str, float, float, float, float]) -> bool:
    return a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]


def highlighted(view: TreeView, caption: str) -> Figure:
    return same_nodes_figure(view, caption, highlight=len(view.texts) // 2)


@pytest.mark.parametrize("figure", [*FIGURES, highlighted])
@pytest.mark.parametrize("name", SHAPES)
def test_no_texts_touch_and_none_leaves_the_image(figure, name):
    svg = figure(SHAPES[name], "caption").svg
    boxes = labels(svg)
    assert len(boxes) > 1
    width, height = (float(ET.fromstring(svg).get(side)) for side in ("width", "height"))
    assert width <= WIDTH
    for text, left, top, right, bottom in boxes:
        assert 0 <= left <= right <= width, text
        assert 0 <= top <= bottom <= height, text
    touching = [(a[0], b[0]) for a, b in itertools.combinations(boxes, 2) if overlaps(a, b)]
    assert not touching


def test_the_overlap_check_can_fail():
    svg = tree_figure(SHAPES["small"], "caption").svg
    moved = svg.replace('text-anchor="middle"', 'text-anchor="end"', 1).replace('y="15"', 'y="52"')
    boxes = labels(moved)
    assert any(overlaps(a, b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("theme", [LIGHT, DARK, LIVE], ids=["light", "dark", "live"])
@pytest.mark.parametrize("figure", FIGURES)
def test_hostile_tokens_give_well_formed_images_that_show_them(figure, theme):
    view = verified(HOSTILE, random_parents(len(HOSTILE), 1, 0.7), 5, 13)
    drawn = figure(view, "a <caption> & more", theme=theme)
    root = ET.fromstring(drawn.svg)
    shown = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    assert {"<s>", "&", "'", "]]>", "\\n", "\\ud800"} <= set(shown)
    assert all(text.isprintable() for text in shown)
    assert root.get("aria-label") == drawn.alt.replace("\x00", "\ufffd")


def test_a_name_is_given_to_every_node_for_those_who_point_at_it():
    view = SHAPES["random 64 1.0"]
    titles = [node.text for node in ET.fromstring(tree_figure(view, "").svg).iter(f"{SVG}title")]
    assert [title.split(",")[0] for title in titles[:64]] == [f"node {node}" for node in range(64)]
    assert titles[64].startswith("bonus token")


@pytest.mark.parametrize("name", SHAPES)
def test_drawings_depend_on_their_data_alone(name):
    view = SHAPES[name]
    copy = TreeView(view.texts, view.parents, view.prefix_length, view.accepted, view.bonus)
    for figure in FIGURES:
        assert figure(view, "caption") == figure(copy, "caption")


def test_different_trees_look_different():
    chain, star = SHAPES["chain 12"], SHAPES["star 12"]
    for figure in FIGURES:
        assert figure(chain, "").svg != figure(star, "").svg
        assert figure(chain, "").text != figure(star, "").text


def read_tree_text(text: str) -> list[int]:
    """Read the parents back out of the tree's twin, by indentation alone."""
    parents: dict[int, int] = {}
    path: list[int] = []
    for line in text.splitlines():
        if line.startswith("padding:"):
            parents |= {int(pad): -1 for pad in line.split()[1:]}
            continue
        stem = re.match(r"[│├└─ ]*", line)[0]
        if line[len(stem)] == "+":
            continue
        node, depth = int(line[len(stem) :].split()[0]), len(stem) // 3
        path[depth:] = [node]
        parents[node] = path[depth - 1] if depth else -1
    return [parents[node] for node in range(len(parents))]


@pytest.mark.parametrize("name", SHAPES)
def test_the_tree_as_text_holds_the_whole_tree(name):
    view = SHAPES[name]
    text = tree_text(view)
    assert read_tree_text(text) == list(view.parents)
    ticks = [int(re.match(r"[│├└─ ]*(\d+)", line)[1]) for line in text.splitlines() if line.endswith("✓")]
    assert ticks == list((view.accepted or ())[1:])
    assert text.count("(bonus)") == (view.bonus is not None)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mask_as_text_is_the_mask(name):
    view = SHAPES[name]
    cells = np.array([line.split()[1:] for line in mask_text(view).splitlines()])
    tree = DraftTree.from_parents(
        [0 if state is NodeState.PADDING else node for node, state in enumerate(view.states)], view.parents
    )
    assert ((cells != "·") == tree.mask[0]).all()
    assert ((cells == "■") == np.eye(len(view.parents), dtype=bool)).all()


@pytest.mark.parametrize("name", SHAPES)
def test_the_drawn_mask_is_the_mask(name):
    """Count the cells of the drawn paths: the sum of all run lengths is the number of true cells."""
    view = SHAPES[name]
    root = ET.fromstring(mask_figure(view, "").svg)
    runs = [
        (float(width), float(height))
        for node in root.iter(f"{SVG}path")
        for width, height in re.findall(r"M\S+ \S+h([\d.]+)v([\d.]+)h-[\d.]+z", node.get("d"))
    ]
    assert sum(round(width / height) for width, height in runs) == sum(depth + 1 for depth in view.depths)


def test_index_rows_are_those_of_the_worked_example():
    rows = index_rows(TreeView(tuple("abcdef"), (-1, 0, 0, 1, 2, 2), prefix_length=10))
    assert rows == {
        "parent": [-1, 0, 0, 1, 2, 2],
        "position": [10, 11, 11, 12, 12, 12],
        "next_token": [1, 3, 4, -1, -1, -1],
        "next_sibling": [-1, 2, -1, -1, 5, -1],
    }


def test_the_accepted_path_is_the_top_row_and_never_told_by_colour_alone():
    svg = tree_figure(SHAPES["small"], "").svg
    boxes = {text: (left, top) for text, left, top, *_ in labels(svg)}
    assert len({boxes[visible(SHAPES["small"].texts[node])][1] for node in (0, 2, 5)}) == 1
    plain = re.sub(r"#[0-9a-f]{6}", "#000000", svg)
    assert 'stroke-width="3"' in plain
    assert 'stroke-dasharray="4 3"' in plain
    assert "l3 3.2l6 -7" in plain
    assert "l6 6m0 -6l-6 6" in plain


def test_figures_stay_small():
    for name, view in SHAPES.items():
        html = same_nodes_figure(view, "caption")._repr_html_()
        assert len(html) < 250_000, name


class _Images(HTMLParser):
    def __init__(self):
        super().__init__()
        self.images = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))


def test_the_saved_form_is_an_image_with_its_alternative_text_and_twin():
    view = verified(HOSTILE, random_parents(len(HOSTILE), 1, 0.7), 5, 13)
    figure = same_nodes_figure(view, "what <to> see")
    bundle = figure._repr_mimebundle_()
    assert bundle["text/plain"] == figure.text
    reader = _Images()
    reader.feed(bundle["text/html"])
    (image,) = reader.images
    assert "draft tree" in image["alt"]
    kind, _, data = image["src"].partition(",")
    assert kind == "data:image/svg+xml"
    assert urllib.parse.unquote(data) == figure.svg
    assert "var(" not in figure.svg, "an image cannot see the page's variables"
    assert "what &lt;to&gt; see" in bundle["text/html"]
    assert "<svg" not in bundle["text/html"]
    assert "<svg" in figure.live_html()


def test_the_live_theme_names_a_fallback_for_every_variable():
    svg = same_nodes_figure(SHAPES["padded"], "", highlight=3, theme=LIVE).svg
    assert "var(--jp-" in svg
    assert not re.search(r"var\(--[\w-]+\)", svg)
    assert 'id="' not in svg, "two drawings in one page must not share ids"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_can_be_read(theme):
    pairs = [
        (theme.ink, theme.panel),
        (theme.muted, theme.panel),
        (theme.root_ink, theme.root_fill),
        (theme.accept_ink, theme.accept_fill),
        (theme.reject_ink, theme.node_fill),
        (theme.bonus_ink, theme.bonus_fill),
        (theme.mask_ink, theme.mask_fill),
        (theme.child_ink, theme.panel),
        (theme.sibling_ink, theme.panel),
        (theme.highlight, theme.panel),
    ]
    for ink, ground in pairs:
        assert contrast(ink, ground) >= 4.5, (ink, ground)


def contrast(a: str, b: str) -> float:
    """WCAG contrast of two `#rrggbb` colours."""
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_tokens_by_origin_are_told_apart_without_colour():
    steps = (StepTokens((), "The"), StepTokens((" <s>", "\n"), " mat"), StepTokens((" end",), None))
    assert tokens_text(steps) == "The  [␣<s>|\\n]␣mat  [␣end]"
    bundle = TokenFigure(steps)._repr_mimebundle_()
    assert bundle["text/plain"] == tokens_text(steps)
    assert bundle["text/html"].count("text-decoration:underline") == 1 + 3
    assert bundle["text/html"].count("font-weight:bold") == 1 + 2
    assert "␣&lt;s&gt;" in bundle["text/html"]
    ET.fromstring(bundle["text/html"].replace("<br>", "").replace("<wbr>", ""))


def test_no_token_steers_the_terminal():
    written = tokens_terminal([StepTokens(("\x1b[2J", "\r"), "\x07\n")], COLOURS)
    assert set(re.findall(r"\x1b\[[\d;]*\w", written)) == {"\x1b[4;32m", "\x1b[0m"}
    assert not set(written) & {"\r", "\x07"}


def test_tokens_are_decoded_one_by_one():
    class Tokenizer:
        def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
            assert not skip_special_tokens
            assert not clean_up_tokenization_spaces
            return f"<{ids[0]}>"

    assert token_texts(Tokenizer(), np.array([3, 4])) == ("<3>", "<4>")


def test_distinct_tokens_never_look_the_same():
    tricky = [
        " ",
        "␠",
        "\n",
        "\\n",
        "\t",
        "\u00a0",
        "\u200b",
        "\x00",
        "\\x00",
        "\u202e",
        "\ud800",
        "\ufeff",
        "a",
        "a\u200d",
    ]
    assert len({visible(text) for text in tricky}) == len(tricky)
    assert all(visible(text).isprintable() for text in tricky)


def test_shortened_texts_keep_to_their_room():
    for text, room in itertools.product((*map(visible, HOSTILE), ""), range(12)):
        assert display_width(shorten(text, room)) <= room


def test_number_ranges():
    assert number_ranges([]) == ""
    assert number_ranges([4, 5]) == "4 5"
    assert number_ranges([0, 2, 3, 4, 9]) == "0 2–4 9"


@pytest.mark.parametrize(
    ("texts", "parents", "accepted"),
    [
        ((), (), None),
        (("a",), (-1, 0), None),
        (("a", "b"), (-1, 1), None),
        (("a", "b"), (-1, 0), (1,)),
        (("a", "b", "c"), (-1, 0, 0), (0, 1, 2)),
    ],
)
def test_what_is_no_tree_is_refused(texts, parents, accepted):
    with pytest.raises(ValueError, match=r"tree|parents|accepted"):
        TreeView(texts, parents, accepted=accepted)


def test_a_highlighted_node_must_exist():
    with pytest.raises(ValueError, match="0 to 5"):
        mask_figure(SHAPES["small"], "", highlight=6)
