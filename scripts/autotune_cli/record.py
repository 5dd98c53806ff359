"""Benchmark records: their common entries and their files."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from autotune.core import AutotuneError, cpu_name, in_one_line
from autotune.core.paths import version

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, if this file is in one."""


def provenance(device: torch.device, out: Path | None = None) -> dict[str, Any]:
    """Return the first entries of a record: schema, date, commit and machine.

    "commit" is the commit of the checkout that measures, None outside of one; "uncommitted_changes" tells whether
    tracked files other than records differ from it. Older records have "recorded_in": the commit that holds these
    changes, or the one that added the record.

    Args:
        device: What is measured.
        out: Where the record goes, if that was asked for.

    Raises:
        AutotuneError: `out` is in benchmarks/ of a checkout with uncommitted changes.
    """
    made_by = checkout()
    if out and made_by["uncommitted_changes"] and out.resolve().is_relative_to(ROOT / "benchmarks"):
        raise AutotuneError(f"{out} would be a record of uncommitted changes: commit them first, or give another --out")
    return {
        "schema": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **made_by,
        "machine": machine(device),
    }


def checkout() -> dict[str, Any]:
    """Return the entries "version", "commit" and "uncommitted_changes" for this program."""
    found: dict[str, Any] = {"version": version(), "commit": None, "uncommitted_changes": None}
    if (ROOT / "pyproject.toml").is_file() and (commit := _git("rev-parse", "HEAD")):
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude,glob)benchmarks/*")
        found |= {"commit": commit.strip(), "uncommitted_changes": bool(changed)}
    return found


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in this checkout; None if there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def machine(device: torch.device) -> dict[str, Any]:
    """Return the hardware and software that the times depend on; "device" names what was measured."""
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
    """Return the version of the GPU's driver; None if nvidia-smi does not tell it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def slug(name: str) -> str:
    """Return the name of a device in the form used in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def write(record: dict[str, Any], path: Path) -> None:
    """Write a record as JSON; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def one_line(problem: Exception | Warning | str) -> str:
    """Return the type and the first line of an error, and only the first line of a warning or of an AutotuneError."""
    if isinstance(problem, Exception) and not isinstance(problem, Warning):
        return in_one_line(problem)
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
