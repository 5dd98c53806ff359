"""Compilers: the toolchain of a target, and its commands."""

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
def for_target(target: str) -> Toolchain:
    """Return the toolchain that makes binaries for a target; raises ToolchainError if there is none."""
    if not target.startswith("sm_"):
        return _gpp(target)
    capability = int(target.removeprefix("sm_"))
    nvcc = _find_nvcc(capability)
    return _nvcc(nvcc, target) if nvcc else _nvrtc(target)


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


def _nvrtc(target: str) -> Toolchain:
    capability = int(target.removeprefix("sm_"))
    twelve, thirteen = _pip_folder("cuda_nvrtc", "lib", "libnvrtc.so.12"), _pip_folder("cu13", "lib", "libnvrtc.so.13")
    if twelve and (folder := _pip_folder("cuda_runtime", "include")):
        library, roots = twelve, [folder, *map(_pip_folder, ("cuda_cccl", "cuda_nvcc"), ("include", "include"))]
    elif thirteen and capability >= 75 and (folder := _pip_folder("cu13", "include")):
        library, roots = thirteen, [folder, _pip_folder("cu13", "include", "cccl")]
    else:
        extra = "cuda" if capability >= 75 else "volta"
        raise ToolchainError(
            f"no CUDA compiler for {target}: put an nvcc that knows it on PATH, "
            f"or run pip install 'autotune-cutlass[{extra}]'"
        )
    flags = [*_NVRTC_FLAGS, f"--gpu-architecture={_WITH_ALL_INSTRUCTIONS.get(target, target)}"]

    def commands(source: Path, output: Path, folders: Sequence[Path]) -> list[list[str]]:
        include = _include([*folders, *paths.cutlass_includes(), *filter(None, roots)])
        script = Path(__file__).with_name("nvrtc_cli.py")
        return [[sys.executable, str(script), str(library), str(source), str(output), *flags, *include]]

    version = _version([sys.executable, str(Path(__file__).with_name("nvrtc_cli.py")), str(library)], r"([\d.]+)")
    return Toolchain(f"nvrtc {version}", " ".join(flags), ".cu", ".cubin", commands)
