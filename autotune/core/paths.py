"""Paths: templates are inside the package in a wheel and beside its folder in a checkout."""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]

FAMILIES = "AUTOTUNE_FAMILIES"
"""Environment variable with the folders of user-defined families."""

DATABASE = "AUTOTUNE_DB"
"""Environment variable with the path or URL of the tuning database to use where a program names none."""


def templates() -> Path:
    """Return the folder of templates and headers."""
    packaged = PACKAGE / "templates"
    return packaged if packaged.is_dir() else PACKAGE.parent / "templates"


def user_families() -> list[Path]:
    """Return the folders in $AUTOTUNE_FAMILIES, which are separated as in $PATH, each once."""
    folders = [Path(text).resolve() for text in os.environ.get(FAMILIES, "").split(os.pathsep) if text]
    return list(dict.fromkeys(folders))


def generated() -> Path:
    """Return the folder for generated sources and binaries.

    It is $AUTOTUNE_GENERATED if that is set, generated/ in a checkout, and autotune/generated in the user's cache
    otherwise.
    """
    if chosen := os.environ.get("AUTOTUNE_GENERATED"):
        return Path(chosen)
    if (PACKAGE.parent / "pyproject.toml").exists():
        return PACKAGE.parent / "generated"
    return _user_cache() / "generated"


def database() -> str:
    """Return the tuning database to use where a program names none.

    It is $AUTOTUNE_DB if that is set, and autotune/tuning.db in the user's cache otherwise, which may not exist yet.
    """
    return os.environ.get(DATABASE) or str(_user_cache() / "tuning.db")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "autotune"


def cutlass_includes() -> list[Path]:
    """Return the include folders of the nvidia-cutlass package."""
    import cutlass_library

    source = Path(cutlass_library.source_path)
    return [source / "include", source / "tools" / "util" / "include"]


@cache
def cutlass_version() -> str:
    """Return the version of the nvidia-cutlass package, such as "4.2.0.0"."""
    return importlib.metadata.version("nvidia-cutlass")


@cache
def version() -> str:
    """Return this project's version; "unknown" in a checkout that is not installed."""
    try:
        return importlib.metadata.version("autotune-cutlass")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
