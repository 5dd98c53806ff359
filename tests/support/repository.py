"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPTS = ROOT / "scripts"

CAMPAIGNS = ROOT / "tests" / "campaigns"

DATA = ROOT / "tests" / "data"

KERNELS = ROOT / "tests" / "kernels"
