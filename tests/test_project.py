"""The project keeps its promises about itself: budgets, layers, docstrings, and files that repeat one another."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ngram_ref"
FILES = sorted(PACKAGE.rglob("*.py"))
CORE = sorted((PACKAGE / "core").rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def docstring_lines(node: ast.AST) -> set[int]:
    if not isinstance(node, DOCUMENTED) or ast.get_docstring(node) is None:
        return set()
    return set(range(node.body[0].lineno, node.body[0].end_lineno + 1))


def code_lines(source: str) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines.difference(*(docstring_lines(node) for node in ast.walk(ast.parse(source)))))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public classes and functions of a module's or class's body, and those inside its public classes."""
    for node in body:
        if isinstance(node, DOCUMENTED) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def imported_modules(path: Path, source: str) -> set[str]:
    """The absolute names of what a file imports, wherever in the file; `from a import b` counts as `a` and `a.b`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]  # for an __init__.py too: its own package is what `.` means in it
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *((node.module,) if node.module else ())))
            modules.add(origin)
            modules.update(f"{origin}.{alias.name}" for alias in node.names)
    return modules


def tracked_files() -> list[Path]:
    """Text files in git or about to be."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# The measures themselves measure


def test_code_lines_counts_code_only():
    source = '"""Doc\nstring."""\n\n# why\nx = """a\nb"""\n'
    source += '\n\ndef f():\n    """Doc."""\n    return (  # why\n        1\n    )\n'
    assert code_lines(source) == 2 + 1 + 3


def test_imported_modules_resolves_relative_imports():
    source = "import os.path\nfrom . import links\nfrom ..engine.kv import x\ndef f():\n    import ngram_ref.lab\n"
    found = imported_modules(PACKAGE / "core" / "tree.py", source)
    expected = {"os.path", "ngram_ref.core", "ngram_ref.core.links", "ngram_ref.engine.kv", "ngram_ref.engine.kv.x"}
    assert found == expected | {"ngram_ref.lab"}
    assert imported_modules(PACKAGE / "core" / "__init__.py", "from . import a") == {
        "ngram_ref.core",
        "ngram_ref.core.a",
    }


# Budgets


def test_core_is_an_evening_of_reading():
    sizes = {name_of(path): code_lines(path.read_text(encoding="utf-8")) for path in CORE}
    assert {name: size for name, size in sizes.items() if size > 200} == {}
    assert sum(sizes.values()) <= 700, sizes


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_under_300_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 300


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_function_over_45_lines(path):
    for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
        length = function.end_lineno - function.lineno + 1 - len(docstring_lines(function))
        assert length <= 45, f"{name_of(path)}:{function.lineno} {function.name} has {length} lines"


# Layers and types


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_imports_only_numpy_torch_and_itself(path):
    for module in imported_modules(path, path.read_text(encoding="utf-8")):
        allowed = module.split(".")[0] in {*sys.stdlib_module_names, "numpy", "torch"}
        assert allowed or f"{module}.".startswith("ngram_ref.core."), module


@pytest.mark.parametrize("path", [path for path in FILES if "lab" not in path.parts], ids=name_of)
def test_nothing_imports_the_lab(path):
    if path.name == "__main__.py":  # the command line belongs to the lab
        pytest.skip("the way into the lab")
    modules = imported_modules(path, path.read_text(encoding="utf-8"))
    assert not [module for module in modules if f"{module}.".startswith("ngram_ref.lab.")]


def test_core_passes_mypy_strict():
    # Silent on what the package's __init__ imports beside core: that is not what this test is about.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "ngram_ref/core"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


# Docstrings


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_everything_public_has_a_docstring(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "the module has none"
    assert [node.name for node in public(tree.body) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_every_public_function_of_core_shows_an_example(path):
    body = ast.parse(path.read_text(encoding="utf-8")).body
    shown = [node for node in public(body) if node in body and isinstance(node, ast.FunctionDef)]
    assert [node.name for node in shown if ">>> " not in (ast.get_docstring(node) or "")] == []


# Files that repeat or must not say something


def test_environment_yml_repeats_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip_part,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    assert pip_part == project["dependencies"] + extras
    assert environment["name"] == project["name"]
    assert "python=3.12" in environment["dependencies"] or "python=3.11" in environment["dependencies"]


# Put together here, or this file would name them.
REGISTRY_HOSTS = [
    ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"))
]
REGISTRY_HOSTS += [".".join(parts) for parts in (("anaconda", "org"), ("anaconda", "com"), ("npmjs", "org"))]


def test_no_file_names_a_registry_host_or_holds_half_a_megabyte():
    pattern = re.compile("|".join(map(re.escape, REGISTRY_HOSTS)).encode())
    for path in tracked_files():
        content = path.read_bytes()
        assert not pattern.search(content), f"{name_of(path)} names a package registry's host"
        assert len(content) <= 512_000, f"{name_of(path)} is over 500 KB"


# The Makefile


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in a bare copy of what the set-up needs, with only the given environment active."""
    for name in ("Makefile", "pyproject.toml", "tools"):
        source = ROOT / name
        shutil.copytree(source, folder / name, dirs_exist_ok=True) if source.is_dir() else shutil.copy2(source, folder)
    clean = {key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "PYTHON"}}
    clean = {key: value for key, value in clean.items() if not key.startswith(("CONDA_", "MAKE", "MFLAGS"))}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def fake_python(folder: Path, answers: str) -> str:
    """A Python that runs `-c` commands as the shell lines `answers` say; `$2` is the command."""
    folder.mkdir(parents=True)
    (folder / "python").write_text(f'#!/bin/sh\necho "$*" >> "{folder}/calls"\n{answers}\n')
    (folder / "python").chmod(0o755)
    return str(folder / "python")


@needs_make
def test_make_lists_its_targets(tmp_path):
    output = make(tmp_path).stdout
    for target in ("demo", "test", "lab", "lint", "notebooks", "clean"):
        assert f"make {target} " in output


@needs_make
def test_make_says_that_python_is_too_old(tmp_path):
    old = fake_python(tmp_path / "old", 'case "$2" in *version_info*) exit 1;; esac')
    result = make(tmp_path, "demo", PYTHON=old)
    assert result.returncode
    assert f"ngram_ref: Python 3.11 or newer is needed, and {old} is none" in result.stderr
    assert not (tmp_path / ".venv").exists()


@needs_make
def test_make_says_that_venv_is_missing(tmp_path):
    bare = fake_python(tmp_path / "bare", 'case "$2" in *ensurepip*) exit 1;; esac')
    result = make(tmp_path, "test", PYTHON=bare)
    assert result.returncode
    assert f"ngram_ref: {bare} lacks the venv module" in result.stderr


@needs_make
@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_make_installs_once_into_the_active_environment(tmp_path, variable):
    fake_python(tmp_path / "active" / "bin", "exit 0")
    active = {variable: str(tmp_path / "active"), "CONDA_DEFAULT_ENV": "mine"}
    assert make(tmp_path, "demo", **active).returncode == 0
    assert make(tmp_path, "demo", **active).returncode == 0
    calls = (tmp_path / "active" / "bin" / "calls").read_text()
    assert calls.count("-e .[notebooks,test]") == 1
    assert calls.count("-m ngram_ref demo") == 2
    os.utime(tmp_path / "active" / ".ngram_ref_installed", (0, 0))  # now pyproject.toml is newer than the stamp
    assert make(tmp_path, "install", **active).returncode == 0
    assert (tmp_path / "active" / "bin" / "calls").read_text().count("-e .[notebooks,test]") == 2
    assert not (tmp_path / ".venv").exists()


@needs_make
def test_make_leaves_conda_base_alone(tmp_path):
    fake_python(tmp_path / "base" / "bin", "exit 0")
    too_old = fake_python(tmp_path / "old", "exit 1")
    result = make(tmp_path, "demo", CONDA_PREFIX=str(tmp_path / "base"), CONDA_DEFAULT_ENV="base", PYTHON=too_old)
    assert "Python 3.11 or newer is needed" in result.stderr  # so it was about to make .venv
    assert not (tmp_path / "base" / "bin" / "calls").exists()
