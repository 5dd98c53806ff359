"""Runs kernels without a GPU, most of them for Hopper: their own text, with functions of kernels/emulator for PTX."""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import nvidia
import torch
from comparison import LIMIT, relative_error
from kernels import random_inputs
from reference import solve
from repository import KERNELS, table_of

from autotune.codegen import rendering
from autotune.core import paths
from autotune.families import Kernel, Launch, family
from autotune.ir import DTYPES, Problem, abi, pack_weight
from autotune.measure.expected_results import SpecialValues

FLAGS = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-fPIC", "-w"]

_PTX = table_of(KERNELS / "emulator" / "ptx.toml")
"""A piece of PTX that tells an instruction from others -> what stands for it; empty: it orders, computes nothing."""


def _emulated(text: str) -> str:
    """The text with every asm statement replaced."""

    def replaced(statement: re.Match[str]) -> str:
        ptx = statement[0]
        if '""' in ptx:  # only pins registers
            return ";"
        found = [name for name in _PTX if name in ptx]
        if not found:
            return 'emu::fail("PTX that the emulator does not know");'
        return _PTX[max(found, key=len)] or ";"

    text = text.replace("__noinline__", "inline")  # for g++'s headers it is an attribute, so it cannot be a macro
    return re.sub(r"asm volatile\(.*?\);", replaced, text, flags=re.DOTALL)


def _included(*folders: Path) -> list[str]:
    return [f"-I{path}" for path in (*folders, KERNELS, paths.templates(), _cuda_headers())]


def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _headers() -> Path:
    """The folder of the kernels' headers with every asm statement replaced."""
    folder, templates = _own_folder(), paths.templates()
    for header in (header for name in ("common", "cuda", "sm90") for header in (templates / name).rglob("*.cuh")):
        copy = folder / header.relative_to(templates)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_emulated(header.read_text()))
    return folder


@functools.cache
def _precompiled() -> Path:
    """The emulator's own headers, which g++ reads in half the time when they are compiled once."""
    header = _own_folder() / "launch.h"
    source = KERNELS / "emulator" / "launch.h"
    subprocess.run(["g++", *FLAGS, *_included(), "-x", "c++-header", source, "-o", f"{header}.gch"], check=True)
    return header


class Emulated:
    """A kernel compiled for this machine. folder: where what it is made of is written."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        text, symbol = rendering.unit([kernel]), rendering.symbol(kernel)
        (folder / "kernel.cu").write_text(_emulated(text))
        problem = re.search(rf"{symbol}_prepare\((\w+) ", text) or re.search(r"using Problem = (\w+);", text)
        assert problem
        values = {"SYMBOL": symbol, "PROBLEM": problem[1], **({} if "using Kernel =" in text else {"PLAIN": 1})}
        defined = [f"-DEMULATED_{name}={value}" for name, value in values.items()]
        defined += [] if "using Kernel" in text else ["-DEMULATED_PLAIN"]
        here, library = KERNELS, folder / "kernel.so"
        included = ["-include", _precompiled(), *_included(folder, _headers())]
        command = ["g++", *FLAGS, "-shared", *defined, *included, here / "emulated.cpp", "-o", library]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self._library = ctypes.CDLL(str(library))
        self._library.refusal.restype = ctypes.c_char_p

    def run(
        self, problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float], launch: Launch,
        cluster: int, seed: int = 0, launches: int = 1,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        """Every output of a problem, from operands in the shapes and dtypes of problem.operands().

        cluster: blocks of one. seed: of the order of threads; TMA is late if it is even, and at once if it is odd.
        launches: how often the kernel runs, each time on the workspace that the launch before it left.
        """
        layouts = family(self.kernel.family).weight_layouts(self.kernel.values)
        operands: list[torch.Tensor] = []
        for operand in problem.operands():
            if operand.role == "output":
                dtype = DTYPES[operand.dtype]
                poison = float("nan") if dtype.is_floating_point else -86
                operands.append(torch.full(operand.shape, poison, dtype=dtype))
            elif operand.name in layouts:
                operands.append(
                    pack_weight(tensors[operand.name], layouts[operand.name], getattr(problem, "groups", 1))
                )
            else:
                operands.append(tensors[operand.name].contiguous())
        pointers = (ctypes.c_void_p * abi.MAX_POINTERS)(*(operand.data_ptr() for operand in operands))
        text = ctypes.create_string_buffer(4096)
        packed = self._packed(problem, scalars, launch)
        status = self._library.emulate(packed, pointers, cluster, ctypes.c_uint(seed), text, len(text), launches)
        assert status == 0, f"status {status}: {text.value.decode()}"
        named = zip(problem.operands(), operands, strict=True)
        return {operand.name: tensor for operand, tensor in named if operand.role == "output"}

    def shared_bytes(self, problem: Problem, launch: Launch) -> int:
        """Shared memory that the kernel asks for, or -1 where it refuses the problem."""
        return int(self._library.shared_bytes(self._packed(problem, (), launch)))

    def refusal(self, problem: Problem, launch: Launch) -> str | None:
        """Return the reason with which the kernel refuses the problem, or None."""
        text = self._library.refusal(self._packed(problem, (), launch))
        return text.decode() if text is not None else None

    def _packed(self, problem: Problem, scalars: Sequence[float], launch: Launch) -> bytes:
        names = [parameter.name for parameter in family(self.kernel.family).launch_parameters]
        return abi.pack_problem(problem, scalars, {name: int(launch[name]) for name in names}, names)


def _cuda_headers() -> Path:
    """Those of the pip package that has the compilers."""
    return next(path for root in nvidia.__path__ for path in Path(root).glob("cu13/include"))


def assert_special_values_arrive(
    kernel: Emulated, problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float], launch: Launch,
    cluster: int = 1,
) -> None:  # fmt: skip
    """Check that NaN and infinities in the inputs come out of a kernel where they do in the reference."""
    outputs = [operand for operand in problem.operands() if operand.role == "output"]
    given = {name: tensor.clone() for name, tensor in tensors.items()}
    given |= {operand.name: torch.empty(operand.shape, dtype=DTYPES[operand.dtype]) for operand in outputs}

    def run() -> None:
        for name, tensor in kernel.run(problem, given, scalars, launch, cluster).items():
            given[name].copy_(tensor)

    fault = SpecialValues(problem, given, tuple(scalars)).fault(run)
    assert fault is None, fault


def assert_computes(
    kernel: Emulated, problem: Problem, launch: Launch, cluster: int = 1, seed: int = 0,
    limits: Mapping[str, float] = LIMIT,
) -> None:  # fmt: skip
    """Run a kernel on random inputs, and on special values, and check the relative error of each result."""
    tensors, scalars = random_inputs(problem)
    found = kernel.run(problem, tensors, scalars, launch, cluster, seed)
    assert_special_values_arrive(kernel, problem, tensors, scalars, launch, cluster)
    for name, value in solve(problem, tensors, scalars).items():
        assert relative_error(found[name], value) < limits[problem.dtype], f"{name}, {dict(launch)}"
