"""The registry: every module of this folder, and of the user's own folders, that defines `FAMILY` is a family.

A user's folders are named by $AUTOTUNE_FAMILIES or given to `use`. They become part of this package's path: a file
`mine.py` in one is the module `autotune.families.mine`, in this process and in those that are started from it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from autotune.core import Architecture, FamilyError, paths, require_one_of
from autotune.families.base import Family
from autotune.ir import Problem

_OURS = list(__path__)


def use(folders: Iterable[Path]) -> None:
    """Look for families in these folders too, here and in every process that is started from now on."""
    os.environ[paths.FAMILIES] = os.pathsep.join(map(str, [*paths.user_families(), *folders]))
    __path__[:] = [*_OURS, *map(str, paths.user_families())]
    importlib.invalidate_caches()
    _found.cache_clear()


@cache
def _found() -> dict[str, tuple[Family, Path | None]]:
    """Name -> family and the user's folder that it came from. Raises FamilyError if that cannot be loaded."""
    found: dict[str, tuple[Family, Path | None]] = {}
    files: dict[str, Path | None] = {}
    for folder in (None, *paths.user_families()):
        if folder and not folder.is_dir():
            raise FamilyError(f"there is no folder {folder} to load families from")
        for item in _modules(folder):
            if item.name in files:
                first = f"one in {files[item.name]}" if files[item.name] else "one of the project's own"
                raise FamilyError(f"{folder}/{item.name}.py has the name of {first}: rename it")
            files[item.name] = folder
            family = _load(item.name, folder)
            if family and family.name in found:
                raise FamilyError(f"{folder}/{item.name}.py: there is already a family '{family.name}': rename it")
            if family:
                found[family.name] = (family, folder)
    return found


def _modules(folder: Path | None) -> list[pkgutil.ModuleInfo]:
    """The modules of a user's folder, or those of the project, its packages included."""
    if folder:
        return list(pkgutil.iter_modules([str(folder)]))
    found = pkgutil.walk_packages(_OURS, f"{__name__}.")
    return [item._replace(name=item.name.removeprefix(f"{__name__}.")) for item in found if not item.ispkg]


def _load(name: str, folder: Path | None) -> Family | None:
    """A module's FAMILY, if it has one. Whatever goes wrong in a user's file is told in one sentence."""
    try:
        family = getattr(importlib.import_module(f"{__name__}.{name}"), "FAMILY", None)
    except Exception as error:
        if folder is None:
            raise
        file = f"{folder}/{name}.py"
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else 1
        words = error.msg if isinstance(error, SyntaxError) else error
        raise FamilyError(f"{file}, line {line}: {type(error).__name__}: {words}") from error
    if family is not None and not isinstance(family, Family):
        raise FamilyError(f"{folder}/{name}.py: FAMILY is not a Family but a {type(family).__name__}")
    return family


def families() -> dict[str, Family]:
    """All families by name; raises FamilyError if a user's cannot be loaded."""
    return {name: family for name, (family, _) in _found().items()}


def family(name: str) -> Family:
    """Look a family up by name; raises UnknownNameError."""
    return _found()[require_one_of("family", name, list(_found()))][0]


def folder_of(name: str) -> Path | None:
    """The user's folder that a family came from, where its templates and headers lie; None for the project's own."""
    return _found()[require_one_of("family", name, list(_found()))][1]


def serving(problem: Problem, arch: Architecture) -> list[Family]:
    """The families that can solve `problem` on `arch`."""
    return [family for family in families().values() if family.serves(problem, arch) is None]


use([])  # what the environment names
