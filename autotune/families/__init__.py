"""The registry: every module of this folder that defines `FAMILY` is a family."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from autotune.arch import Architecture
from autotune.errors import choose
from autotune.families.base import Family
from autotune.problem import Problem


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in found}


def family(name: str) -> Family:
    """Look a family up by name; raises UnknownNameError."""
    return families()[choose("family", name, list(families()))]


def serving(problem: Problem, arch: Architecture) -> list[Family]:
    """The families that can solve `problem` on `arch`."""
    return [family for family in families().values() if family.serves(problem, arch) is None]
