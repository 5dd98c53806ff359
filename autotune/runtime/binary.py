"""Binaries: the bytes of kernels, and the engine's handle of them. No file lies between the bytes and their code."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from autotune.core import AutotuneError
from autotune.runtime import engine

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
