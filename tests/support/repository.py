"""Folders and files of the repository that tests read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

SCRIPTS = ROOT / "scripts"

CAMPAIGNS = ROOT / "tests" / "campaigns"

DATA = ROOT / "tests" / "data"

KERNELS = ROOT / "tests" / "kernels"


def table_of(module: str) -> dict[str, Any]:
    """Return the cases of a test module, of which the TOML file beside it has one a line; module: its `__file__`."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text())
