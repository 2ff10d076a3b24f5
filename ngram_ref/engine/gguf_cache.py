"""GGUF files, converted once and kept in the user's cache folder as safetensors with their tokenizer.

`transformers` takes 10 to 30 s to load even a small GGUF (it parses the header in Python, several times); the converted
folder loads in about a second. A converted folder is keyed by the SHA-256 of its GGUF, so the same file found under
another name, or downloaded, is converted once.

What keeps the cache whole: a folder is built beside its place and renamed into it, under a lock between processes.
The manifest inside names every file with its size and SHA-256, so a file that was cut, lost or overwritten is noticed
at the next start, and the folder is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ngram_ref.engine.gguf_convert import convert_gguf

_FORMAT = 1  # raise it when the conversion changes: folders of another format are built again
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """What the manifest knows of one file: name, size in bytes, time of change in ns, SHA-256 in hex."""

    name: str
    size: int
    mtime_ns: int
    sha256: str


def cache_root() -> Path:
    """The cache folder: `NGRAM_REF_CACHE` where it is set, else the platform's place for caches.

    Returns:
        `$XDG_CACHE_HOME/ngram_ref` or `~/.cache/ngram_ref` on Linux, `~/Library/Caches/ngram_ref` on macOS,
        `%LOCALAPPDATA%\\ngram_ref` on Windows. It may not exist yet.
    """
    if own := os.environ.get("NGRAM_REF_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "ngram_ref"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ngram_ref"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "ngram_ref"
    return Path.home() / ".cache" / "ngram_ref"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex (about half a second a gigabyte, where the processor has instructions for it).

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converted_folder(sha256: str, provide_gguf: Callable[[Path], Path]) -> Path:
    """The converted folder of a GGUF, built where it is missing or broken.

    Args:
        sha256: of the GGUF, in hex; the folder's key.
        provide_gguf: called only when there is something to build, with a scratch folder that it may use; returns the
            path of the GGUF.

    Returns:
        A folder that `from_pretrained` loads. Cheap when it is there: sizes are compared, and contents only of files
        whose time of change differs.

    Raises:
        OSError: the cache folder cannot be written or is full.
        ValueError: the GGUF is damaged or not convertible.
        Exception: whatever `provide_gguf` raises.
    """
    folder = cache_root() / "models" / sha256[:16]
    if not looks_intact(folder):
        with _explained(folder.parent):
            _build(folder, provide_gguf)
    return folder


def looks_intact(folder: Path) -> bool:
    """Whether every file of the manifest is there with its size, and unchanged by its time of change or its SHA-256."""
    records = _read_manifest(folder)
    return records is not None and all(_looks_unchanged(folder / record.name, record) for record in records)


def is_intact(folder: Path) -> bool:
    """Whether every byte is as the manifest says: the slow answer, for a folder that looked intact but did not load."""
    records = _read_manifest(folder)
    return records is not None and all(_has_content(folder / record.name, record) for record in records)


def discard(folder: Path) -> None:
    """Mark a converted folder as broken, so that the next `converted_folder` builds it again."""
    (folder / _MANIFEST).unlink(missing_ok=True)


def _build(folder: Path, provide_gguf: Callable[[Path], Path]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if looks_intact(folder):  # another process built it while this one waited
            return
        for left in folder.parent.glob(f"{folder.name}.*.partial"):  # of a process that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            convert_gguf(provide_gguf(work), work / "new")
            _write_manifest(work / "new")
            if folder.exists():
                folder.rename(work / "old")
            (work / "new").rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("ngram_ref: another process is preparing this model; waiting for it …", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cannot_be_made = error.errno == errno.ENOENT and Path(error.filename or "") in (place, *place.parents)
        refused = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)
        if error.errno not in refused and not cannot_be_made:
            raise
        reason = f"{error.strerror}: the cache folder {place} cannot take the converted model"
        raise OSError(error.errno, f"{reason}; set NGRAM_REF_CACHE to a folder that can") from error


def _write_manifest(folder: Path) -> None:
    records = []
    for path in sorted(folder.iterdir()):
        # Without this, a power cut after the rename can leave files of the right size full of zeros.
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        stat = path.stat()
        records.append(FileRecord(path.name, stat.st_size, stat.st_mtime_ns, sha256_of(path)))
    content = {"format": _FORMAT, "files": [asdict(record) for record in records]}
    (folder / _MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _read_manifest(folder: Path) -> list[FileRecord] | None:
    try:
        content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        records = [FileRecord(**record) for record in content["files"]]
        return records if content["format"] == _FORMAT and records else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, cut or overwritten: all mean "build it again"
        return None


def _looks_unchanged(path: Path, record: FileRecord) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    if stat.st_size != record.size:
        return False
    if stat.st_mtime_ns == record.mtime_ns:
        return True
    if not _has_content(path, record):
        return False
    with suppress(OSError):  # a copied folder has new times: set them right, so that the next start need not hash
        os.utime(path, ns=(stat.st_atime_ns, record.mtime_ns))
    return True


def _has_content(path: Path, record: FileRecord) -> bool:
    try:
        return sha256_of(path) == record.sha256
    except OSError:
        return False
