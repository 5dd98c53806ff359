"""The messages between a tuning run and the machines that compile for it, and the versions that must agree.

Messages to a measuring process are those of autotune/measure/protocol.py; a relay hands them on. Nothing here is read
from a database: a binary is bytes, which only the engine and cuDNN interpret.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from autotune.codegen import Built, KernelResources, Unit, toolchain
from autotune.core import ToolchainError, paths
from autotune.families import Kernel
from autotune.ir import Epilogue

PROTOCOL = 2
"""Version of the messages. It changes with their fields or their meaning."""


@dataclass(frozen=True)
class CompileRequest:
    """Compile a translation unit.

    Attributes:
        key: The digest of source, headers, flags and compiler (`Unit.name`): the same work has the same key everywhere.
        kernels: (family, config, dtype, epilogue, target) of each kernel, as text.
        seconds: Time limit.
        protocol: Version of the messages.
    """

    key: str
    kernels: tuple[tuple[str, str, str, str, str], ...]
    seconds: float
    protocol: int = PROTOCOL

    @classmethod
    def of(cls, unit: Unit, seconds: float) -> CompileRequest:
        """Return the request to compile a unit."""
        kernels = tuple((k.family, k.config, k.dtype, str(k.epilogue), k.target) for k in unit.kernels)
        return cls(unit.name, kernels, seconds)

    def unit(self) -> Unit:
        """Return the unit, as the machine that received the request renders it."""
        return Unit(
            tuple(
                Kernel.of(family, json.loads(config), dtype, Epilogue.parse(epilogue), target)
                for family, config, dtype, epilogue, target in self.kernels
            )
        )


@dataclass(frozen=True)
class CompileAnswer:
    """The outcome of compiling a unit, as `Built` has it.

    Attributes:
        binary: The binary; None if the unit did not compile.
        error: The compiler's first errors, or why the machine does not compile the unit.
        seconds: Time of the compilation; 0 if the machine had the binary.
        killed: The compiler was killed or got no memory, so nothing is known about the kernels.
        resources: Registers and memory of each kernel; none for shared libraries.
    """

    binary: bytes | None
    error: str = ""
    seconds: float = 0.0
    killed: bool = False
    resources: tuple[KernelResources, ...] = ()

    @classmethod
    def of(cls, built: Built) -> CompileAnswer:
        """Return the answer for a unit that was built on this machine."""
        binary = built.path.read_bytes() if built.path else None
        return cls(binary, built.error, built.seconds, built.killed, built.resources)


@dataclass(frozen=True)
class Versions:
    """The versions that all machines of a run must share.

    Attributes:
        protocol: Version of the messages.
        project: Version of this project, and a digest of its sources and templates.
        python: Version of Python, without the patch.
        torch: Version of torch.
        compilers: The compiler of a target and its flags, and CUTLASS's version.
    """

    protocol: int
    project: str
    python: str
    torch: str
    compilers: str

    def differences(self, other: Versions) -> Mapping[str, tuple[str, str]]:
        """Return the names of what differs, with both values."""
        mine, theirs = asdict(self), asdict(other)
        return {name: (str(mine[name]), str(theirs[name])) for name in mine if mine[name] != theirs[name]}


def versions(target: str) -> Versions:
    """Return the versions of this machine for a compilation target."""
    return Versions(
        PROTOCOL,
        f"{paths.version()} (sources {_sources_digest()})",
        ".".join(platform.python_version_tuple()[:2]),
        torch.__version__,
        ", ".join(dict.fromkeys(_compiler(target, prefers_nvcc) for prefers_nvcc in (False, True))),
    )


def _compiler(target: str, prefers_nvcc: bool) -> str:
    try:
        return " ".join(toolchain.for_target(target, prefers_nvcc).key.split("\n"))
    except ToolchainError as error:
        return str(error)


_SOURCES = {".py", ".j2", ".h", ".cuh", ".cpp"}
"""Suffixes of the files that decide what a machine compiles and measures."""


def _sources_digest() -> str:
    """Return a digest of the package's modules, of the templates, and of the user's families."""
    found = hashlib.sha256()
    for folder in (paths.PACKAGE, paths.templates(), *paths.user_families()):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SOURCES and path.is_file():
                found.update(f"{path.relative_to(folder)}\n".encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:12]
