"""Families of kernels: each is one way to write a kernel, with its parameters and what is known about them.

The project's families are the modules of this package. A user's are in the folders that $AUTOTUNE_FAMILIES names or
that `use` is given: a file `mine.py` there is the module `autotune.families.mine`, in this process and in those that it
starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from autotune.core import Architecture, paths
from autotune.families import registry as _registry
from autotune.families.base import (
    CHANNELS_LAST,
    DEVICE_IMAGE,
    PERMISSIONS,
    SHARED_LIBRARY,
    AnyFamily,
    Config,
    Family,
    Kernel,
    Launch,
    Parameter,
    Value,
    first_unmet,
    require,
)
from autotune.families.registry import Registry
from autotune.ir import Problem

__all__ = [
    "CHANNELS_LAST",
    "DEVICE_IMAGE",
    "PERMISSIONS",
    "SHARED_LIBRARY",
    "AnyFamily",
    "Config",
    "Family",
    "Kernel",
    "Launch",
    "Parameter",
    "Registry",
    "Value",
    "families",
    "family",
    "first_unmet",
    "folder_of",
    "require",
    "serving",
    "use",
]


def _installed(folders: Iterable[Path]) -> Registry:
    made = Registry(list(folders))
    _registry.install(made.finder)
    return made


_current = _installed(paths.user_families())


def use(folders: Iterable[Path]) -> None:
    """Load families from these folders too, here and in every process that is started from now on."""
    global _current  # noqa: PLW0603 -- one registry a process, as there is one environment
    os.environ[paths.FAMILIES] = os.pathsep.join(map(str, [*paths.user_families(), *folders]))
    _current = _installed(paths.user_families())


def families() -> dict[str, AnyFamily]:
    """Return all families by name; raises FamilyError if a user's file cannot be loaded."""
    return _current.families()


def family(name: str) -> AnyFamily:
    """Return the family of a name; raises UnknownNameError."""
    return _current.family(name)


def folder_of(name: str) -> Path | None:
    """Return the user's folder of a family, with its templates and headers, or None for the project's own."""
    return _current.folder_of(name)


def serving(problem: Problem, arch: Architecture) -> list[AnyFamily]:
    """Return the families that can solve a problem on an architecture."""
    return _current.serving(problem, arch)
