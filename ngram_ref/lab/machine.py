"""Where and when a number was measured: what a recorded run carries beside its figures."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


def describe_run(model: Any = None) -> dict[str, str | int]:
    """Describe machine, versions, command and time of the running process.

    Args:
        model: whose device and dtype to name; may be None.
    """
    facts: dict[str, str | int] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", _script(), *sys.argv[1:]]),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    if model is not None:
        facts |= {"device": str(model.device), "dtype": str(model.dtype)}
    return facts


def _script() -> str:
    """Name the running script as it is called from here; one from elsewhere by its name alone."""
    path = Path(sys.argv[0]).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _processor() -> str:
    """Name the processor as the kernel does; `platform` often knows the architecture alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
