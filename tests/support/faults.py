"""Faulty kernels for a CPU and a GPU: the result that each must have. The kernel after it must still be measured.

The kernels are in tests/kernels/faulty.cpp and faulty.cu.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from kernels import tried
from repository import KERNELS

from autotune.codegen import toolchain
from autotune.core import device_target, paths
from autotune.ir import parse
from autotune.measure import Result, Worker
from autotune.runtime import Binary, Candidate

PROBLEM = parse("avg_pool2d n=2 h=9 w=7 c=7 r=3 s=3 stride=2 pad=1 dtype=f32")

# Kernel -> status and words of the error, for the kernels of both devices.
FAULTS = {
    "does_nothing": ("wrong", "never written"),
    "scaled": ("wrong", "relative error of 1.00e-03"),
    "one_missing": ("wrong", "never written"),
    "one_wrong": ("wrong", "relative error"),
    "writes_behind": ("wrong", "bytes around y were overwritten"),
    "writes_before": ("wrong", "bytes around y were overwritten"),
    "writes_input": ("wrong", "x was overwritten"),
    "made_up": ("wrong", "relative error"),
    "jitters": ("unstable", "the same input gave other results in another run: y differs in 1 of 280 elements"),
    "tires": ("unstable", "after many launches y differs in 1 of 280 elements"),
    "strays": ("wrong", "after many launches x was overwritten"),
    "keeps_largest": ("wrong", "the result depends on what the output held before: y differs in 140 of 280"),
}
DEADLINE = 2.0  # seconds; for the kernel that never ends


def on_gpu(folder: Path) -> Callable[[str], Candidate]:
    """Compile faulty.cu for the first GPU in a folder. Return name -> candidate, all in one device image."""
    path = folder / "faulty.cubin"
    source = KERNELS / "faulty.cu"
    compiler = toolchain.for_target(device_target(torch.device("cuda:0")), prefers_nvcc=True)  # for assert.h
    subprocess.run(compiler.commands(source, path, [paths.templates()])[0], check=True)
    binary = Binary.of("device_image", path.read_bytes())
    return lambda name: Candidate("faulty", "{}", f"at_{name}", binary)


def library(folder: Path) -> Path:
    """Compile faulty.cpp for the CPU in a folder; return the shared library."""
    path = folder / "faulty.so"
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{paths.templates()}"]
    subprocess.run(["g++", *flags, str(KERNELS / "faulty.cpp"), "-o", str(path)], check=True)
    return path


def on_cpu(path: Path) -> Callable[[str], Candidate]:
    """Return name -> candidate of a library that `library` has compiled."""
    binary = Binary.of("shared_library", path.read_bytes())
    return lambda name: Candidate("faulty", "{}", name, binary)


def answers(
    worker: Worker, faulty: Callable[[str], Candidate], names: Iterable[str]
) -> dict[str, tuple[Result, Result]]:
    """Return for each kernel its result and that of the good kernel after it.

    All are queued at once, but for the kernel that never ends.
    """
    wanted = [name for fault in names if fault != "loops" for name in (fault, "good")]
    found = tried(worker, PROBLEM, [faulty(name) for name in wanted])
    assert len(found) == len(wanted)
    told = {name: (found[i], found[i + 1]) for i, name in enumerate(wanted) if not i % 2}
    usual, worker.deadline = worker.deadline, DEADLINE
    [hung] = tried(worker, PROBLEM, [faulty("loops")])
    worker.deadline = usual
    return {**told, "loops": (hung, *tried(worker, PROBLEM, [faulty("good")]))}


def assert_told(answer: Result, status: str, text: str) -> None:
    """Check that a result is a failure with one line of text and without a time."""
    assert (answer.status, answer.median_us, answer.samples_us) == (status, None, []), answer.error
    assert answer.error and text in answer.error
    assert "\n" not in answer.error and "Traceback" not in answer.error
