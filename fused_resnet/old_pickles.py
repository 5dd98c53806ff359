"""Pickles of earlier versions: modules that they name and that have moved since.

A pickled FusedResNet names its classes by the module paths of its time. Importing `fused_resnet`
makes old paths importable again, lazily. Captured networks, which an old pickle may hold as a cache, are not restored;
`model_source.Captured` captures them again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "autotune.steps": "autotune.ir.epilogue_steps",
    "fused_resnet.reference": "fused_resnet.networks.se_resnet9_fixup",
    "fused_resnet.source": "fused_resnet.model_source",
}
"""Old path of a module -> its path now."""

DISCARDED = (
    "autotune.epilogue",
    "autotune.problem",
    "autotune.problem.base",
    "autotune.problem.convolution",
    "autotune.problem.fused",
    "autotune.problem.pixels",
    "autotune.problem.pool",
    "fused_resnet.capture.torch_call",
    "fused_resnet.derived",
    "fused_resnet.graph",
)
"""Old paths of modules whose objects are part of a captured network."""


class Discarded:
    """Stands for an object of a captured network: takes any arguments and state, and keeps none."""

    def __new__(cls, *_: Any, **__: Any) -> Discarded:
        """Return an empty object."""
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


class _OldPaths(MetaPathFinder, Loader):
    """Finds modules by their old paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED and fullname not in DISCARDED:
            return None
        return ModuleSpec(fullname, self, is_package=any(name.startswith(f"{fullname}.") for name in DISCARDED))

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module '{old}' has no attribute '{name}'")
            return getattr(import_module(MOVED[old]), name) if old in MOVED else Discarded

        module.__dict__["__getattr__"] = find


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
