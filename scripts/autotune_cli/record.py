"""What benchmark records share: the machine that they ran on, their files, and errors in a line."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from autotune.core import AutotuneError, cpu_name


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers depend on. `device` is the name of what was measured."""
    cpu, gpu = cpu_name(), torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": gpu or cpu,
        "gpu": gpu,
        "driver": driver_version() if gpu else None,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "python": platform.python_version(),
    }


def driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def slug(name: str) -> str:
    """A device's name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def write(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def one_line(problem: Exception | Warning | str) -> str:
    """Kind and first line of an error; the first line alone of a warning."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if isinstance(problem, Exception) and not isinstance(problem, (Warning, AutotuneError)):
        return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    return text
