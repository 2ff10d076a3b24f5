"""Execute notebooks and write them in one normal form, so that a change in a notebook is a change worth reading.

    python tools/normalise_notebooks.py notebooks/*.ipynb           # execute, then write
    python tools/normalise_notebooks.py --check notebooks/*.ipynb   # compare the form only, execute nothing

The form: cells numbered `cell-00`, `cell-01`, …; execution counts 1, 2, …; metadata reduced to the kernel's name and
the cells' tags; no widget state; no timings. Two runs over the same notebook give the same bytes.

Tags: a cell tagged `widget` is left unrun and without outputs (it needs a live kernel; a figure stands before it).
A cell tagged `nbval-ignore-output` is run, but its output is dropped: what differs from machine to machine (times,
versions, device names) belongs into a recorded run, not into a notebook.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

QUIET = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
UNRUN, NOISY = "widget", "nbval-ignore-output"
CELL_SECONDS = 120


def normal_form(notebook: Any) -> Any:
    """Bring a notebook to its normal form; nothing is executed.

    Args:
        notebook: an nbformat notebook node; it stays as it is.

    Returns:
        A new node, valid.

    Raises:
        ValueError: a code cell was not run, or wrote to stderr.
        nbformat.ValidationError: the notebook is no valid notebook.
    """
    normal = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": METADATA, "cells": []})
    count = 0
    for index, cell in enumerate(notebook.cells):
        tags = sorted(cell.metadata.get("tags", []))
        kept = {"id": f"cell-{index:02d}", "cell_type": cell.cell_type, "source": cell.source.rstrip()}
        kept["metadata"] = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            count += UNRUN not in tags
            kept |= _code_fields(cell, index, tags, count)
        normal.cells.append(nbformat.from_dict(kept))
    nbformat.validate(normal)
    return normal


def _code_fields(cell: Any, index: int, tags: list[str], count: int) -> dict[str, Any]:
    """Execution count and outputs of a code cell."""
    if UNRUN in tags:
        return {"execution_count": None, "outputs": []}
    if cell.execution_count is None:
        raise ValueError(f"cell {index} was not run: run this tool without --check")
    outputs = [] if NOISY in tags else [_output(output, count) for output in _joined(cell.outputs)]
    if any(output.get("name") == "stderr" for output in outputs):
        # nbval compares stderr as well, and such texts hold paths and versions: silence the source instead.
        raise ValueError(f"cell {index} writes to stderr: {outputs}")
    return {"execution_count": count, "outputs": outputs}


def _joined(outputs: list[Any]) -> list[Any]:
    """Join neighbouring pieces of one stream: where the kernel cuts them is chance."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == "stream" and output.get("name") == joined[-1].get("name"):
            joined[-1] = nbformat.from_dict({**joined[-1], "text": joined[-1].text + output.text})
        else:
            joined.append(output)
    return joined


def _output(output: Any, count: int) -> dict[str, Any]:
    kept = dict(output)
    if "metadata" in kept:
        kept["metadata"] = {}
    if kept["output_type"] == "execute_result":
        kept["execution_count"] = count
    if "data" in kept:
        kept["data"] = {kind: kept["data"][kind] for kind in sorted(kept["data"])}
    return kept


def execute(path: Path) -> Any:
    """Run all cells of a notebook in its folder, but those tagged `widget`; give the notebook with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        skip_cells_with_tag=UNRUN,
        store_widget_state=False,
    )
    return client.execute()


def written(notebook: Any) -> str:
    """The text of a notebook file."""
    text: str = nbformat.writes(notebook, indent=1, ensure_ascii=False)
    return text.rstrip("\n") + "\n"


def complaint(path: Path) -> str | None:
    """Say why a notebook file is not in normal form; None when it is."""
    text = path.read_text(encoding="utf-8")
    try:
        normal = written(normal_form(nbformat.reads(text, as_version=4)))
    except (ValueError, nbformat.ValidationError) as error:
        return str(error).splitlines()[0]
    lines = zip(text.splitlines(), normal.splitlines(), strict=False)
    for number, (found, expected) in enumerate(lines, start=1):
        if found != expected:
            return f"line {number} is {found.strip()[:80]!r}, not {expected.strip()[:80]!r}"
    return None if text == normal else "ends otherwise than its normal form"


def main(arguments: list[str]) -> int:
    """Run the command line; 1 when a notebook is not in normal form."""
    parser = argparse.ArgumentParser(description="Execute notebooks and write them in normal form.")
    parser.add_argument("--check", action="store_true", help="compare the form only; execute and write nothing")
    parser.add_argument("notebooks", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.check:
        complaints = [f"{path}: {reason}" for path in options.notebooks if (reason := complaint(path))]
        print("\n".join(complaints) or f"{len(options.notebooks)} in normal form")
        return 1 if complaints else 0
    os.environ.update(QUIET)
    for path in options.notebooks:
        path.write_text(written(normal_form(execute(path))), encoding="utf-8")
        print(f"{path}: executed and written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
