"""One GGUF file to one folder that `from_pretrained` loads: weights dequantised to float32, tokenizer, configs."""

from __future__ import annotations

import importlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

_GGUF_MAGIC = b"GGUF"


def check_gguf(path: Path) -> int:
    """Check that a GGUF file is whole: its magic, its header, and that every tensor's extent lies in the file.

    Args:
        path: of the file.

    Returns:
        The number of weights in it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a GGUF file, or it is cut short or damaged.
    """
    with path.open("rb") as file:
        if file.read(4) != _GGUF_MAGIC:
            raise ValueError(
                f"name={str(path)!r} does not start with the bytes 'GGUF': not a GGUF file; fetch it again"
            )
    size = path.stat().st_size
    try:
        # The reader maps every tensor's extent, so a file that ends one byte early fails here.
        return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
    except Exception as error:  # the reader trips over bad bytes with whatever error comes first
        raise ValueError(f"name={str(path)!r} ({size} bytes) is cut short or damaged; fetch it again") from error


def convert_gguf(path: Path, folder: Path) -> None:
    """Convert a GGUF file; 10 to 30 s for the default model, with a progress bar on stderr.

    The folder is kept in float32, in which the dequantised values are exact.

    Args:
        path: of the GGUF file.
        folder: to write; must not exist.

    Raises:
        FileNotFoundError, ValueError: as `check_gguf`; ValueError also where `transformers` cannot convert the file.
        OSError: there is no room for the converted folder.
    """
    with _steps(4, f"Converting {path.name}") as step, quiet_transformers():
        step("checking the file")
        _check_room(check_gguf(path), folder)
        try:
            step("dequantising the weights")
            model = _dequantised_model(path)
            step("reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        except Exception as error:  # an unknown architecture, missing weights, a tokenizer of an unknown kind, …
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            cure = f"pass a model in safetensors, or a GGUF that transformers {transformers.__version__} can read"
            raise ValueError(f"name={str(path)!r}: transformers cannot convert it ({reason}); {cure}") from error
        step("writing the converted model")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars of `transformers` inside, whatever they were before; our own bar says what happens."""
    logging: Any = transformers.logging
    gguf_utils: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    shown = logging.is_progress_bar_enabled()
    bar_class = gguf_utils.tqdm
    try:
        if shown:
            logging.disable_progress_bar()
        gguf_utils.tqdm = partial(tqdm, disable=True)  # this bar does not listen to the switch above
        yield
    finally:
        gguf_utils.tqdm = bar_class
        if shown:
            logging.enable_progress_bar()


def _dequantised_model(path: Path) -> Any:
    auto_model: Any = AutoModelForCausalLM  # typed as returning a model; with output_loading_info it is a pair
    model, info = auto_model.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        output_loading_info=True,
    )
    if info["missing_keys"]:  # transformers would leave them at random values, with a warning only
        raise ValueError(f"weights are missing: {sorted(info['missing_keys'])[:3]}")
    return model


def _check_room(num_weights: int, folder: Path) -> None:
    needed, free = 4 * num_weights, shutil.disk_usage(folder.parent).free
    if free < needed:
        sizes = f"needs {needed / 1e9:.1f} GB at {folder.parent}, {free / 1e9:.1f} GB are free"
        raise OSError(f"the converted model {sizes}; make room, or set NGRAM_REF_CACHE to a folder on another disk")


class _StepBar:
    """Names the step under way; a step counts as done when the next one begins, so the bar never runs ahead."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar
        self.begun = False

    def __call__(self, name: str) -> None:
        self.bar.set_postfix_str(name, refresh=False)
        self.bar.update(int(self.begun))
        self.bar.refresh()
        self.begun = True


@contextmanager
def _steps(total: int, title: str) -> Iterator[_StepBar]:
    form = "{desc}: {n_fmt} of {total_fmt} steps |{bar:20}| {elapsed}{postfix}"
    done = threading.Event()
    with tqdm(total=total, desc=title, bar_format=form) as bar:

        def keep_the_clock_running() -> None:  # a step takes seconds: a bar that stands still looks hung
            while not done.wait(0.5):
                bar.refresh()

        clock = threading.Thread(target=keep_the_clock_running, daemon=True)
        clock.start()
        try:
            yield _StepBar(bar)
            bar.set_postfix_str("done", refresh=False)
            bar.update(1)
        finally:
            done.set()
            clock.join()
