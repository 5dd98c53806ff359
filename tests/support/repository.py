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


def table_of(path: str | Path) -> dict[str, Any]:
    """Return a TOML file, or the one beside a module with this path, such as the cases of a test, one a line."""
    return tomllib.loads(Path(path).with_suffix(".toml").read_text())
