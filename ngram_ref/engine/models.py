"""Loading a causal language model with its tokenizer, ready for `generate`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ngram_ref.engine.default_model import fetch_default_model
from ngram_ref.engine.gguf_cache import converted_folder, discard, is_intact, sha256_of
from ngram_ref.engine.gguf_convert import quiet_transformers

_Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_model(
    name: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> _Loaded:
    """Load a model and its tokenizer.

    Args:
        name: None for the default model (SmolLM2-135M-Instruct; fetched and converted at its first use, with progress
            bars on stderr); or a hub id, a local folder, or a `.gguf` file. A GGUF is converted at its first use and
            kept, dequantised, in the cache folder (`NGRAM_REF_CACHE` moves it); at each later use it is only hashed,
            about half a second a gigabyte.
        device: where the model goes; CUDA where there is one, else CPU.
        dtype: of the weights, such as `torch.float64` or `"float64"`; bfloat16 on CUDA, else float32.

    Returns:
        `(model, tokenizer)`: the model in eval mode, no parameter asking for gradients.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an unknown or absent device, a dtype that is not floating point, a name that names nothing
            loadable, a damaged GGUF.
        FileNotFoundError: a file, folder or hub id that is not there; a folder without config or tokenizer.
        RuntimeError: the default model cannot be downloaded.
        OSError: the cache folder cannot be written or is full.

    Example (not run: it may download)::

        model, tokenizer = load_model()
        model, tokenizer = load_model("SmolLM2-135M-Instruct.Q4_1.gguf", device="cpu", dtype="float64")
    """
    target_device = _resolve_device(device)
    target_dtype = _resolve_dtype(dtype, target_device)
    model, tokenizer = _load_named(name, target_dtype)
    module: torch.nn.Module = model  # these three work in place
    module.requires_grad_(False).train(False).to(target_device)
    return model, tokenizer


def _load_named(name: str | os.PathLike[str] | None, dtype: torch.dtype) -> _Loaded:
    if name is None:
        return _load_converted(fetch_default_model, dtype)
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"name={name!r}: pass a hub id, a folder, a .gguf file, or None for the default model")
    path = Path(text).expanduser()
    if path.suffix.lower() == ".gguf":
        return _load_converted(partial(_converted_gguf, path), dtype)
    if text and path.is_dir():
        return _load_folder(path, dtype)
    if path.is_file():
        raise ValueError(f"name={text!r} is a file, but not a .gguf: pass the folder that holds config.json")
    if isinstance(name, os.PathLike) or not _HUB_ID.fullmatch(text) or text.startswith("."):
        raise FileNotFoundError(f"name={text!r} is neither a folder, nor a .gguf file, nor a hub id (owner/model)")
    return _load_from_hub(text, dtype)


def _converted_gguf(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"name={str(path)!r}: there is no such GGUF file; check the path")
    return converted_folder(sha256_of(path), lambda _work: path)


def _load_converted(provide_folder: Callable[[], Path], dtype: torch.dtype) -> _Loaded:
    folder = provide_folder()
    with quiet_transformers():
        try:
            return _from_pretrained(str(folder), dtype)
        except Exception:
            # Only damage is cured by a rebuild; an intact folder fails for another reason (no memory, …).
            if is_intact(folder):
                raise
        discard(folder)
        return _from_pretrained(str(provide_folder()), dtype)


def _load_folder(path: Path, dtype: torch.dtype) -> _Loaded:
    if not (path / "config.json").is_file():
        cure = "pass a folder written by save_pretrained, or a .gguf file"
        raise FileNotFoundError(f"name={str(path)!r} is a folder without config.json; {cure}")
    if not any((path / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        cure = "save the tokenizer beside the model: tokenizer.save_pretrained(folder)"
        raise FileNotFoundError(f"name={str(path)!r} is a folder without a tokenizer; {cure}")
    try:
        return _from_pretrained(str(path), dtype)
    except Exception as error:  # a cut file, an unknown model type, …
        raise ValueError(f"name={str(path)!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def _load_from_hub(hub_id: str, dtype: torch.dtype) -> _Loaded:
    try:
        AutoConfig.from_pretrained(hub_id)
    except OSError as error:
        reason = str(error).splitlines()[0]
        cure = "check the id and the network, or pass a local folder or a .gguf file"
        raise FileNotFoundError(
            f"name={hub_id!r} is not a local path, and no hub gave it ({reason}); {cure}"
        ) from error
    return _from_pretrained(hub_id, dtype)


def _from_pretrained(source: str, dtype: torch.dtype) -> _Loaded:
    tokenizer = AutoTokenizer.from_pretrained(source)
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype), tokenizer


def _resolve_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not a device; pass 'cpu', 'cuda' or 'cuda:0'") from error
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device!r}: torch sees {torch.cuda.device_count()} CUDA devices; pass device='cpu'")
    return resolved


def _resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    resolved = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise ValueError(f"dtype={dtype!r} is not a floating-point dtype; pass 'float32', 'bfloat16' or 'float64'")
    return resolved
