"""Candidates: one implementation of a problem each, loaded from a row of the database, and the binaries that hold them.

A binary is the bytes of kernels. No file lies between the bytes and their code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from autotune.core import AutotuneError
from autotune.libraries import cudnn_names, inductor
from autotune.runtime import engine

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Kernel, Library

NAMES = {"device_image": "{}.cubin", "shared_library": "autotune-{}.so", "cudnn_plan": "{}.plan"}
"""Kind of a binary -> its name in messages, debuggers and profilers; {} is the start of its digest."""


@dataclass(frozen=True)
class Binary:
    """One or more compiled kernels, or a plan of cuDNN. Binaries are equal if their kinds and digests are.

    Attributes:
        kind: A key of NAMES.
        digest: SHA-256 of the bytes, in hexadecimal.
        data: The bytes.
    """

    kind: str
    digest: str
    data: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, kind: str, data: bytes) -> Binary:
        """Return the binary of bytes that are trusted, such as those that a compiler has just written."""
        return cls(kind, hashlib.sha256(data).hexdigest(), data)

    @property
    def name(self) -> str:
        """Its name in messages, debuggers and profilers."""
        return NAMES[self.kind].format(self.digest[:12])


@lru_cache(maxsize=512)
def load(binary: Binary, device: int) -> engine.SharedLibrary | engine.DeviceImage:
    """Return the engine's handle of a binary's kernels; each binary is loaded once.

    Args:
        binary: A shared library or a device image.
        device: Number of the GPU that loads a device image.

    Raises:
        EngineError: The binary cannot be loaded.
    """
    match binary.kind:
        case "shared_library":
            return engine.SharedLibrary(binary.data, binary.name)
        case "device_image":
            return engine.DeviceImage(binary.data, device)
    raise AutotuneError(f"a binary of the kind '{binary.kind}' holds no kernels")


@dataclass(frozen=True)
class Candidate:
    """One implementation of a problem: a kernel of ours, a plan of cuDNN, or an operator of torch.

    Attributes:
        family: Name of the family; that of torch's operators is `aten.FAMILY`, of those that Inductor compiles
            `inductor.FAMILY`.
        config: Compile-time parameters, as JSON.
        symbol: The kernel's name in its binary; for a plan of cuDNN, the text of the problem that it was made for.
        binary: The binary that holds it; None for an operator of torch.
        weight_layouts: Layout in which the kernel reads each weight, by the operand's name.
        launch: Launch values by name.
        launch_names: Names of the launch values in the order in which the kernel takes them.
    """

    family: str
    config: str
    symbol: str
    binary: Binary | None = None
    weight_layouts: Mapping[str, str] = field(default_factory=dict)
    launch: Mapping[str, int] = field(default_factory=dict)
    launch_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str | None:
        """Kind of the binary; None for an operator of torch."""
        return self.binary.kind if self.binary else None

    @property
    def compiled(self) -> bool:
        """True for calls of torch's operators that Inductor compiles when they are bound."""
        return self.family == inductor.FAMILY

    @property
    def native(self) -> bool:
        """True for a kernel of ours, which the engine launches."""
        return self.kind not in (None, cudnn_names.KIND)

    def __str__(self) -> str:
        if self.kind == cudnn_names.KIND:
            from autotune.libraries import cudnn

            return cudnn.summary(json.loads(self.config))
        values = {**json.loads(self.config), **self.launch}
        return " ".join([self.family, *(f"{name}={value}" for name, value in values.items())])


_in_use: WeakValueDictionary[tuple[str, str], Binary] = WeakValueDictionary()
"""Binaries that some candidate has, by kind and digest: a library of several kernels is unpacked once."""


def candidate(store: Database, row: Kernel, launch: Mapping[str, int]) -> Candidate:
    """Return the candidate of a kernel's row.

    Args:
        store: The database that holds the row.
        row: The kernel.
        launch: Launch parameters by name.

    Raises:
        DatabaseError: The kernel's binary is damaged, or is not trusted.
    """
    if row.library is None:
        return Candidate(row.family, row.config, row.symbol)
    return Candidate(
        row.family,
        row.config,
        row.symbol,
        _binary(store, row.library),
        row.weight_layouts,
        dict(launch),
        tuple(row.launch_names),
    )


def _binary(store: Database, library: Library) -> Binary:
    key = library.kind, library.digest
    binary = _in_use.get(key)
    if binary is None:
        binary = _in_use[key] = Binary(*key, store.binary(library))
    return binary
