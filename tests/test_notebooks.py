"""The notebooks keep to their budgets and to their normal form; the normaliser keeps to its word."""

import ast
import importlib.util
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest

from ngram_ref.core.tree import DraftTree

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def load_normaliser():
    spec = importlib.util.spec_from_file_location("normalise_notebooks", ROOT / "tools" / "normalise_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


normaliser = load_normaliser()


def problems(path: Path) -> list[str]:
    """All breaches of the budgets in one notebook file."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = [f"{path.stat().st_size} bytes"] if path.stat().st_size > 500_000 else []
    found += [f"{len(code)} code cells"] if len(code) > 20 else []
    for index, cell in enumerate(notebook.cells):
        found += [f"cell {index}: {reason}" for reason in cell_problems(cell, path)]
    return found


def cell_problems(cell, path: Path) -> list[str]:
    if cell.cell_type == "markdown":
        return [f"no file {target}" for target in linked_files(cell.source) if not (path.parent / target).exists()]
    found = []
    if len(cell.source.splitlines()) > 15:
        found.append(f"{len(cell.source.splitlines())} lines")
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > 8:
            found.append(f"function {node.name} has {node.end_lineno - node.lineno + 1} lines")
        if isinstance(node, ast.ClassDef):
            found.append(f"class {node.name} is defined")
    for output in cell.outputs:
        reader = Images()
        reader.feed(output.get("data", {}).get("text/html", ""))
        found += ["an image without alternative text" for alt in reader.alts if not alt]
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
            found.append(f"{output.ename}: {output.evalue}")
    return found


def linked_files(source: str) -> list[str]:
    """Relative link targets of a markdown text, anchors cut off."""
    targets = re.findall(r"\]\(([^)\s]+)\)", source)
    return [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


class Images(HTMLParser):
    def __init__(self):
        super().__init__()
        self.alts = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_to_its_budgets(path):
    assert problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_in_normal_form_and_was_run(path):
    assert normaliser.complaint(path) is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_a_figure_with_its_twin(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [data for data in outputs if "<img" in data.get("text/html", "")]
    assert figures
    assert all("<Figure" not in data["text/plain"] and "<details>" in data["text/html"] for data in figures)


def test_the_solution_of_the_exercise_in_chapter_2_passes():
    notebook = nbformat.read(ROOT / "notebooks" / "02_tree_and_mask.ipynb", as_version=4)
    (solution,) = re.findall(r"<details>.*?```python\n(.*?)```", notebook.cells[-1].source, re.DOTALL)
    (check,) = [cell.source for cell in notebook.cells if "mine, right" in cell.source]
    tree = DraftTree.from_parents([7, 20, 10, 21, 11, 30], [-1, 0, 0, 1, 2, 2])
    written: list[str] = []
    names = {"np": np, "tree": tree, "print": written.append}
    exec(solution, names)
    exec(check, names)
    assert written == ["pass"]


def bad_notebook(tmp_path: Path, **changes: object) -> Path:
    """A good little notebook with one code cell and one text cell, changed."""
    output = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    code = nbformat.v4.new_code_cell("print(1)", execution_count=1, outputs=[output])
    markdown = nbformat.v4.new_markdown_cell("text")
    code.update({key: value for key, value in changes.items() if key != "markdown"})
    markdown.source = changes.get("markdown", "text")
    path = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[code, markdown]), path)
    return path


def html_output(html: str):
    return nbformat.v4.new_output("display_data", data={"text/html": html, "text/plain": "x"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"source": "x = 1\n" * 16}, ["cell 0: 16 lines"]),
        ({"source": "def f():\n" + "    x = 1\n" * 8}, ["cell 0: function f has 9 lines"]),
        ({"source": "class A:\n    x = 1"}, ["cell 0: class A is defined"]),
        ({"outputs": [html_output("<img src='x'>")]}, ["cell 0: an image without alternative text"]),
        ({"outputs": [html_output("<img alt='' src='x'>")]}, ["cell 0: an image without alternative text"]),
        ({"outputs": [html_output("<img alt='a tree' src='x'>")]}, []),
        ({"outputs": [nbformat.v4.new_output("error", ename="E", evalue="v")]}, ["cell 0: E: v"]),
        ({"markdown": "[next](03_nothing.ipynb#part)"}, ["cell 1: no file 03_nothing.ipynb"]),
        ({"markdown": "[here](notebook.ipynb) [web](https://example.org) [part](#part)"}, []),
    ],
)
def test_each_budget_can_be_broken(tmp_path, changes, expected):
    assert problems(bad_notebook(tmp_path, **changes)) == expected


def test_size_and_number_of_cells_are_budgets(tmp_path):
    path = tmp_path / "notebook.ipynb"
    cells = [nbformat.v4.new_code_cell("x = 1") for _ in range(21)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"x": "x" * 500_000}), path)
    found = problems(path)
    assert found[0].endswith("bytes")
    assert found[1] == "21 code cells"


def normalised(path: Path) -> Path:
    """Write the normal form of an executed notebook file over it."""
    path.write_text(normaliser.written(normaliser.normal_form(nbformat.read(path, as_version=4))), encoding="utf-8")
    return path


def test_the_normal_form_is_a_fixed_point(tmp_path):
    path = bad_notebook(tmp_path)
    assert normaliser.complaint(path) is not None
    once = normalised(path).read_bytes()
    assert normaliser.complaint(path) is None
    assert normalised(path).read_bytes() == once


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"id": "cell-00"', '"id": "a1b2c3"'),
        ('"execution_count": 1', '"execution_count": 7'),
        ('"metadata": {},', '"metadata": {"collapsed": false},'),
        ('"name": "python3"', '"name": "mine"'),
        ('"kernelspec": {', '"widgets": {}, "kernelspec": {'),
        ('"name": "stdout"', '"name": "stderr"'),
        (' "nbformat_minor": 5\n}\n', ' "nbformat_minor": 5\n}'),
        ('"cell_type": "markdown"', '"cell_type": "nonsense"'),
    ],
)
def test_check_sees_each_departure(tmp_path, old, new):
    path = normalised(bad_notebook(tmp_path))
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert normaliser.complaint(path) is not None
    assert normaliser.main(["--check", str(path)]) == 1


def test_check_refuses_a_cell_that_was_not_run(tmp_path):
    path = bad_notebook(tmp_path, execution_count=None, outputs=[])
    assert "was not run" in normaliser.complaint(path)


def test_execution_follows_the_tags(tmp_path):
    cells = [
        nbformat.v4.new_code_cell("print(1)\nprint(2)"),
        nbformat.v4.new_code_cell("raise SystemError", metadata={"tags": ["widget"]}),
        nbformat.v4.new_code_cell("import time\nprint(time.time())", metadata={"tags": ["nbval-ignore-output"]}),
        nbformat.v4.new_code_cell("import os\nos.environ['TQDM_DISABLE']"),
    ]
    path = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert normaliser.main([str(path)]) == 0
    first = path.read_bytes()
    assert normaliser.main([str(path)]) == 0
    assert path.read_bytes() == first, "two executions give the same bytes"
    assert normaliser.main(["--check", str(path)]) == 0
    run = nbformat.read(path, as_version=4).cells
    assert [cell.execution_count for cell in run] == [1, None, 2, 3]
    assert [len(cell.outputs) for cell in run] == [1, 0, 0, 1]
    assert run[0].outputs[0].text == "1\n2\n"
    assert run[3].outputs[0].data["text/plain"] == "'1'"


def test_kernels_run_in_the_tested_environment(tmp_path):
    path = tmp_path / "notebook.ipynb"
    cell = nbformat.v4.new_code_cell("import sys\nprint(sys.executable)")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert normaliser.execute(path).cells[0].outputs[0].text.strip() == sys.executable
