"""Compilers: the toolchain of a target, and its commands.

A translation unit that includes no header besides NVRTC_HEADERS is compiled by NVRTC, if that is as new as nvcc. NVRTC
takes 0.3 s less: a third of the time for a kernel of sm90_conv2d, and half of it for a pool. torch's builds for CUDA
bring it along.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autotune.core import ToolchainError, paths

_GPP_FLAGS = [
    *["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp"],
    *["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"],
]
_NVCC_FLAGS = ["-cubin", "-O3", "-DNDEBUG", "-std=c++17", "--expt-relaxed-constexpr", "-diag-suppress", "20281"]
NVRTC_HEADERS = {"stdint.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cmath"}
"""Headers from outside the project with which NVRTC compiles what nvcc compiles; cmath is for the host alone."""
_NVRTC_CLI = Path(__file__).with_name("nvrtc_cli.py")
_NVRTC_FLAGS = ["--std=c++17", "-default-device", "-DNDEBUG", "-DCUTLASS_NVRTC"]


# Target -> the compiler's name for it with all instructions: only sm_90a has Hopper's wgmma. No other GPU has compute
# capability 9, so the suffix excludes none.
_WITH_ALL_INSTRUCTIONS = {"sm_90": "sm_90a"}


@dataclass(frozen=True)
class Toolchain:
    """One way to compile a translation unit.

    Attributes:
        compiler: Name and version, such as "nvcc 13.0.88".
        flags: All flags that decide the code, without paths.
        source_suffix: Suffix of sources.
        binary_suffix: Suffix of binaries.
        commands: (source, output, folders of headers) -> the commands to run one after the other.
    """

    compiler: str
    flags: str
    source_suffix: str
    binary_suffix: str
    commands: Callable[[Path, Path, Sequence[Path]], list[list[str]]]

    @property
    def key(self) -> str:
        """The parts of the toolchain that decide a binary: compiler, flags, and CUTLASS's version for device images."""
        headers = f"cutlass {paths.cutlass_version()}" if self.binary_suffix == ".cubin" else ""
        return "\n".join([self.compiler, self.flags, headers])


@cache
def for_target(target: str, prefers_nvcc: bool = False) -> Toolchain:
    """Return the toolchain that makes binaries for a target.

    Args:
        target: The compilation target, such as "sm_90".
        prefers_nvcc: Take nvcc, if there is one, even where NVRTC is as new.

    Raises:
        ToolchainError: There is none.
    """
    if not target.startswith("sm_"):
        return _gpp(target)
    capability = int(target.removeprefix("sm_"))
    nvcc, nvrtc = _find_nvcc(capability), _find_nvrtc(capability)
    is_as_new = nvcc and nvrtc and _numbers(nvrtc.version) >= _numbers(_nvcc_version(nvcc))
    if nvcc and (prefers_nvcc or not is_as_new):
        return _nvcc(nvcc, target)
    if nvrtc is None:
        extra = "cuda" if capability >= 75 else "volta"
        raise ToolchainError(
            f"no CUDA compiler for {target}: put an nvcc that knows it on PATH, "
            f"or run pip install 'autotune-cutlass[{extra}]'"
        )
    return _nvrtc(nvrtc, target)


def _numbers(version: str | None) -> list[int]:
    """Return major and minor of a version."""
    return [int(number) for number in (version or "0").split(".")[:2]]


def _version(command: list[str], pattern: str) -> str | None:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(pattern, text)
    return found[1] if found else None


def _include(folders: Iterable[Path]) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def _gpp(target: str) -> Toolchain:
    compiler = os.environ.get("CXX", "g++")
    version = _version([compiler, "-dumpfullversion"], r"([\d.]+)")
    if not version:
        raise ToolchainError(f"no C++ compiler: '{compiler}' does not run; install g++ or set CXX to one")
    march = [f"-march={target}"] if target.startswith("x86-64") else []
    flags = [*_GPP_FLAGS, *march]

    def commands(source: Path, output: Path, folders: Sequence[Path]) -> list[list[str]]:
        # Linked without -fopenmp: the library uses the OpenMP runtime that torch has loaded, so one thread pool.
        unlinked = f"{output}.o"
        return [
            [compiler, *flags, *_include(folders), "-c", str(source), "-o", unlinked],
            [compiler, "-shared", unlinked, "-o", str(output)],
            ["rm", unlinked],
        ]

    return Toolchain(f"{Path(compiler).name} {version}", " ".join(flags), ".cpp", ".so", commands)


def _pip_folder(*parts: str) -> Path | None:
    """Return a folder or file of the nvidia namespace package, where pip installs CUDA, or None."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root, *parts)
        if path.exists():
            return path
    return None


@cache
def _nvcc_version(nvcc: str) -> str | None:
    return _version([nvcc, "--version"], r"V([\d.]+)")


def _find_nvcc(capability: int) -> str | None:
    """Return an nvcc that knows a capability, from CUDA_HOME, PATH or pip, or None. CUDA 13 has dropped sm_70."""
    home = os.environ.get("CUDA_HOME")
    candidates = [
        str(Path(home, "bin", "nvcc")) if home else None,
        shutil.which("nvcc"),
        str(_pip_folder("cu13", "bin", "nvcc") or "") or None,
    ]
    for nvcc in filter(None, candidates):
        version = _nvcc_version(nvcc)
        if version and (capability >= 75 or int(version.split(".")[0]) < 13):
            return nvcc
    return None


def _nvcc(nvcc: str, target: str) -> Toolchain:
    code = _WITH_ALL_INSTRUCTIONS.get(target, target)
    flags = [*_NVCC_FLAGS, "-gencode", f"arch=compute_{code.removeprefix('sm_')},code={code}"]

    def commands(source: Path, output: Path, folders: Sequence[Path]) -> list[list[str]]:
        return [[nvcc, *flags, *_include([*folders, *paths.cutlass_includes()]), str(source), "-o", str(output)]]

    return Toolchain(f"nvcc {_nvcc_version(nvcc)}", " ".join(flags), ".cu", ".cubin", commands)


@dataclass(frozen=True)
class _Nvrtc:
    """An NVRTC library of pip, its version, and the folders of CUDA's headers."""

    library: Path
    version: str
    headers: tuple[Path, ...]


@cache
def _find_nvrtc(capability: int) -> _Nvrtc | None:
    """Return pip's NVRTC that knows a capability, with CUDA's headers, or None. CUDA 13 has dropped sm_70."""
    packages = [
        (_pip_folder("cuda_nvrtc", "lib", "libnvrtc.so.12"), ["cuda_runtime", "cuda_cccl", "cuda_nvcc"]),
        (_pip_folder("cu13", "lib", "libnvrtc.so.13") if capability >= 75 else None, ["cu13"]),
    ]
    found = []
    for library, names in packages:
        headers = [folder for name in names if (folder := _pip_folder(name, "include"))]
        headers += [cccl for folder in headers if (cccl := folder / "cccl").is_dir()]
        if library and any((folder / "cuda_fp16.h").exists() for folder in headers):
            version = _version([sys.executable, str(_NVRTC_CLI), str(library)], r"([\d.]+)")
            found += [_Nvrtc(library, version, tuple(headers))] if version else []
    return max(found, key=lambda one: _numbers(one.version), default=None)


def _nvrtc(found: _Nvrtc, target: str) -> Toolchain:
    flags = [*_NVRTC_FLAGS, f"--gpu-architecture={_WITH_ALL_INSTRUCTIONS.get(target, target)}"]

    def commands(source: Path, output: Path, folders: Sequence[Path]) -> list[list[str]]:
        include = _include([*folders, *paths.cutlass_includes(), *found.headers])
        # -S: nothing of site-packages is imported, and Python starts in a third of the time.
        return [[sys.executable, "-S", str(_NVRTC_CLI), str(found.library), str(source), str(output), *flags, *include]]

    return Toolchain(f"nvrtc {found.version}", " ".join(flags), ".cu", ".cubin", commands)
