"""The registry of families: the modules of this package and of the user's folders that define `FAMILIES`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from autotune.core import Architecture, FamilyError, require_one_of
from autotune.families.base import AnyFamily, Family
from autotune.ir import Problem

_PACKAGE = "autotune.families"
_FOLDER = Path(__file__).parent
_NEEDED = ("name", "operator", "kind", "template", "architectures", "parameters")
"""Attributes of a family that have no default."""


@dataclass(frozen=True)
class _Entry:
    """A family and the user's folder that it came from; None for the project's own."""

    family: AnyFamily
    folder: Path | None


class UserModules(MetaPathFinder):
    """Finds a file `mine.py` of the user's folders as the module `autotune.families.mine`.

    The name is the same in each process that has the same folders, so problems of a user's operator can be unpickled
    in the process that measures.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a user's module, or None if no folder has its file."""
        package, _, name = fullname.rpartition(".")
        files = [folder / f"{name}.py" for folder in self._folders] if package == _PACKAGE else []
        file = next((file for file in files if file.is_file()), None)
        return importlib.util.spec_from_file_location(fullname, file) if file else None


class Registry:
    """Families by name: the project's own and those of the user's folders. Families are loaded at the first use.

    Args:
        folders: The user's folders. Each file `*.py` in them is a module `autotune.families.<file>`.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self.finder = UserModules(self._folders)

    def families(self) -> dict[str, AnyFamily]:
        """Return all families by name.

        Raises:
            FamilyError: A user's folder is missing, or one of its files cannot be loaded.
        """
        return {name: entry.family for name, entry in self._entries.items()}

    def family(self, name: str) -> AnyFamily:
        """Return the family of a name; raises UnknownNameError, and FamilyError as `families` does."""
        return self._entry(name).family

    def folder_of(self, name: str) -> Path | None:
        """Return the user's folder of a family, with its templates and headers, or None for the project's own."""
        return self._entry(name).folder

    def serving(self, problem: Problem, arch: Architecture) -> list[AnyFamily]:
        """Return the families that can solve a problem on an architecture."""
        return [family for family in self.families().values() if family.why_not_served(problem, arch) is None]

    def _entry(self, name: str) -> _Entry:
        return self._entries[require_one_of("family", name, list(self._entries))]

    @cached_property
    def _entries(self) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        taken: dict[str, Path | None] = {}
        for folder, name in self._modules():
            if name in taken:
                first = f"one in {taken[name]}" if taken[name] else "one of the project's own"
                raise FamilyError(f"{folder}/{name}.py has the name of {first}: rename it")
            taken[name] = folder
            for family in _load(name, folder):
                if family.name in entries:
                    raise FamilyError(f"{folder}/{name}.py: there is already a family '{family.name}': rename it")
                entries[family.name] = _Entry(family, folder)
        return entries

    def _modules(self) -> Iterator[tuple[Path | None, str]]:
        """Yield (user's folder or None, name below this package) of all modules that may define a family."""
        for item in pkgutil.walk_packages([str(_FOLDER)], f"{_PACKAGE}."):
            if not item.ispkg:
                yield None, item.name.removeprefix(f"{_PACKAGE}.")
        for folder in self._folders:
            if not folder.is_dir():
                raise FamilyError(f"there is no folder {folder} to load families from")
            names = (file.stem for file in sorted(folder.glob("*.py")))
            yield from ((folder, name) for name in names if name != "__init__")


def _load(name: str, folder: Path | None) -> tuple[AnyFamily, ...]:
    """Return a module's FAMILIES; none if it defines none. Raises FamilyError for a user's file that fails."""
    try:
        module = importlib.import_module(f"{_PACKAGE}.{name}")
    except Exception as error:
        if folder is None:
            raise
        raise FamilyError(_fault(folder / f"{name}.py", error)) from error
    found = getattr(module, "FAMILIES", ())
    if not isinstance(found, tuple | list) or not all(isinstance(one, Family) for one in found):
        raise FamilyError(f"{folder}/{name}.py: FAMILIES must be a tuple or list of instances of Family")
    for one in found:
        if missing := [field for field in _NEEDED if not hasattr(one, field)]:
            raise FamilyError(f"{folder}/{name}.py: {type(one).__name__} must define {', '.join(missing)}")
    return tuple(found)


def _fault(file: Path, error: Exception) -> str:
    """Return file, line and words of an error while a user's file was loaded, in one sentence."""
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else 1
    words = error.msg if isinstance(error, SyntaxError) else error
    return f"{file}, line {line}: {type(error).__name__}: {words}"


def install(finder: UserModules) -> None:
    """Let imports find the user's modules, and no longer those of a finder that was installed before."""
    sys.meta_path[:] = [other for other in sys.meta_path if not isinstance(other, UserModules)]
    sys.meta_path.append(finder)
    importlib.invalidate_caches()
