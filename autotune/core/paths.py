"""Where things lie: templates beside the package in a wheel, beside its folder in a checkout."""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]

FAMILIES = "AUTOTUNE_FAMILIES"
"""The environment variable that names the user's folders of families."""


def templates() -> Path:
    """The folder of templates and headers."""
    packaged = PACKAGE / "templates"
    return packaged if packaged.is_dir() else PACKAGE.parent / "templates"


def user_families() -> list[Path]:
    """The folders of $AUTOTUNE_FAMILIES, separated as in $PATH, each once."""
    folders = [Path(text).resolve() for text in os.environ.get(FAMILIES, "").split(os.pathsep) if text]
    return list(dict.fromkeys(folders))


def generated() -> Path:
    """For sources and binaries: $AUTOTUNE_GENERATED, else generated/ of a checkout, else the user's cache."""
    if chosen := os.environ.get("AUTOTUNE_GENERATED"):
        return Path(chosen)
    if (PACKAGE.parent / "pyproject.toml").exists():
        return PACKAGE.parent / "generated"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "autotune" / "generated"


def cutlass_includes() -> list[Path]:
    """The headers' folders of the nvidia-cutlass package."""
    import cutlass_library

    source = Path(cutlass_library.source_path)
    return [source / "include", source / "tools" / "util" / "include"]


@cache
def cutlass_version() -> str:
    """Version of the nvidia-cutlass package, such as "4.2.0.0"."""
    return importlib.metadata.version("nvidia-cutlass")


@cache
def version() -> str:
    """This project's version; "unknown" where it runs from a checkout that was not installed."""
    try:
        return importlib.metadata.version("autotune-cutlass")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
