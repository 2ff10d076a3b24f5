"""The oldest and the newest `transformers` allowed give the same tokens: the cache's interface changed in between.

Each end is installed once into pytest's cache folder, without dependencies, and a part of the equality tests runs on it
in a process of its own. The end that is installed anyway is skipped here: the whole suite runs on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
ARCHITECTURES = "llama or gpt2 or gpt_bigcode or gemma2 or deepseek_v3"
TESTS = [
    "tests/test_equality.py::test_equal_to_plain_decoding",
    "tests/test_equality.py::test_committed_cache_is_that_of_plain_decoding",
    "tests/test_equality.py::test_long_prompts_in_chunks",
]
# The version is asserted where the tests run: a path that is not taken would test the installed one twice.
RUN = """
import sys, transformers
found = ".".join(transformers.__version__.split(".")[:2])
if found != sys.argv[1]:
    sys.exit(f"transformers {transformers.__version__} is loaded, not {sys.argv[1]}")
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def allowed_minors() -> dict[str, str]:
    """The first and the last minor version in the bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = map(Requirement, project["dependencies"])
    bounds = next(requirement.specifier for requirement in requirements if requirement.name == "transformers")
    first, end = (Version(next(b.version for b in bounds if b.operator == operator)) for operator in (">=", "<"))
    assert first.major == end.major, "the newest minor below a major version cannot be told from the bound"
    return {"oldest": f"{first.major}.{first.minor}", "newest": f"{end.major}.{end.minor - 1}"}


def provide(minor: str, cache: Path) -> Path:
    """Install a minor version of transformers beside the environment, once."""
    folder = cache / f"transformers-{minor}"
    if not folder.exists():
        work = folder.with_suffix(f".{os.getpid()}.partial")
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--no-compile", "-q"]
        command += ["--disable-pip-version-check", "--no-input", "--target", str(work), f"transformers=={minor}.*"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
                pytest.skip(f"transformers {minor} cannot be fetched: {reason}")
            work.rename(folder)  # a download that was cut off never passes for a whole one
        except subprocess.TimeoutExpired:
            pytest.skip(f"transformers {minor} cannot be fetched: no answer in time")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_equality_holds(end, request):
    minor = allowed_minors()[end]
    if version("transformers").startswith(f"{minor}."):
        pytest.skip(f"transformers {minor} is installed: the whole suite runs on it")
    folder = provide(minor, request.config.cache.mkdir("transformers"))
    paths = [str(path) for path in (folder, os.environ.get("PYTHONPATH")) if path]
    command = [sys.executable, "-c", RUN, minor, "-q", "-x", "-p", "no:cacheprovider", "-k", ARCHITECTURES, *TESTS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
