"""Kernels for tests: choose, compile and measure them, and check what the compiler made of them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from reference import solve
from repository import ROOT

from autotune import families
from autotune.codegen import rendering, toolchain
from autotune.codegen.build_queue import build
from autotune.core import Architecture, ToolchainError, architecture
from autotune.families import Config, Kernel, Value, family
from autotune.ir import Epilogue, Problem
from autotune.measure import CandidateBench, Result, Worker
from autotune.measure.verify import random_tensor
from autotune.runtime import Binary, BoundStep, Candidate


def some_kernel(name, epilogue=""):
    """Return a legal kernel of a family: its first config on its newest architecture."""
    found = families.families()[name]
    arch = architecture(found.architectures[-1])
    target = f"sm_{arch.capability}" if arch.is_cuda else "x86-64"
    chain = Epilogue((*Epilogue.parse(epilogue).names, *found.operators[0].anchors))
    return Kernel.of(name, next(iter(found.configs(arch, arch.dtypes[0], chain))), arch.dtypes[0], chain, target)


def config_of(name: str, values: Sequence[Value]) -> dict[str, Value]:
    """Return the config of a family from the values of its parameters, in their order."""
    return dict(zip((parameter.name for parameter in family(name).parameters), values, strict=True))


def fitting(name: str, problem: Problem, config: Config, arch: Architecture) -> Kernel:
    """Return the kernel of a legal config that fits a problem."""
    found = family(name)
    assert found.why_not_served(problem, arch) is None
    assert found.why_illegal(config, arch, problem.dtype, problem.epilogue) is None
    assert found.why_unfit(problem, config, arch) is None
    return Kernel.of(name, config, problem.dtype, problem.epilogue, f"sm_{arch.capability}")


def proposed(name: str, problem: Problem, config: Config, arch: Architecture) -> Kernel:
    """Return the kernel of a config that a family proposes for a problem."""
    assert config in family(name).configs_for(problem, arch)
    return fitting(name, problem, config, arch)


def built_paths(kernels: Iterable[Kernel], jobs: int = 2) -> dict[Kernel, Path]:
    """Build kernels and return the binary of each. All kernels must compile."""
    paths: dict[Kernel, Path] = {}
    for built in build(list(dict.fromkeys(kernels)), jobs):
        assert built.path, built.error
        paths |= dict.fromkeys(built.unit.kernels, built.path)
    return paths


def candidate_of(kernel: Kernel, path: Path, launch: Config) -> Candidate:
    """Return the candidate of a built kernel with one set of launch values."""
    chosen = family(kernel.family)
    values = {parameter.name: int(launch[parameter.name]) for parameter in chosen.launch_parameters}
    layouts = chosen.weight_layouts(kernel.values)
    binary = Binary.of(chosen.kind, path.read_bytes())
    return Candidate(kernel.family, kernel.config, rendering.symbol(kernel), binary, layouts, values, tuple(values))


def random_inputs(problem: Problem, seed: int = 1) -> tuple[dict[str, torch.Tensor], tuple[float, ...]]:
    """Return random inputs by operand name, and random scalars: the operator's own, then those of the epilogue."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [operand for operand in problem.operands() if operand.role != "output"]
    tensors = {operand.name: random_tensor(operand, generator) for operand in inputs}
    own = torch.empty(problem.scalars).uniform_(0.01, 1.0, generator=generator).tolist()
    return tensors, (*own, *problem.epilogue.random_scalars(generator))


def spread_inputs(problem: Problem, seed: int = 1) -> tuple[dict[str, torch.Tensor], tuple[float, ...]]:
    """Return random inputs whose results in an 8-bit format spread over its range: the first step is "scale"."""
    tensors, scalars = random_inputs(problem, seed)
    sums = solve(dataclasses.replace(problem, epilogue=Epilogue()), tensors, ())["y"]
    tensors[problem.epilogue.steps[0].arguments[0].name] *= 2 * 64 / float(sums.square().mean().sqrt())
    return tensors, scalars


def assert_same_bits(case: CandidateBench, step: BoundStep, said: str) -> None:
    """Check that 20 runs on a GPU give correct results with the same bits."""
    stream = torch.cuda.current_stream().cuda_stream
    results = []
    for _ in range(20):
        case.fill_nan()
        step.run(stream)
        torch.cuda.synchronize()
        assert case.check()[1] is None
        results.append(case.tensors["y"].clone())
    assert all(torch.equal(results[0], other) for other in results[1:]), said


def need_compiler(target: str, *, nvcc: bool = False) -> toolchain.Toolchain:
    """Return the compiler for a target; skip the test without one.

    Args:
        target: The architecture to compile for, such as "sm_90".
        nvcc: Accept nvcc only, for tests that read its messages.
    """
    try:
        found = toolchain.for_target(target, prefers_nvcc=nvcc)
    except ToolchainError as error:
        pytest.skip(str(error))
    if nvcc and not found.compiler.startswith("nvcc"):
        pytest.skip("no nvcc")
    return found


def assert_exported(kernels: Iterable[Kernel]) -> None:
    """Build device images and check that each exports its kernel and the `prepare` function of that kernel.

    One job at a time: kernels that share headers are compiled in one translation unit.
    """
    for kernel, path in built_paths(kernels, jobs=1).items():
        binary = path.read_bytes()
        symbol = rendering.symbol(kernel).encode()
        assert binary[:4] == b"\x7fELF"
        assert b"\0" + symbol + b"\0" in binary and b"\0" + symbol + b"_prepare\0" in binary, kernel


def assert_not_serialized(kernel: Kernel, folder: Path) -> None:
    """Compile a kernel and check that ptxas does not warn about serialized wgmma instructions."""
    compiler = need_compiler(kernel.target, nvcc=True)
    source = folder / f"unit{compiler.source_suffix}"
    source.write_text(rendering.unit([kernel]))
    [command] = compiler.commands(source, folder / "unit.cubin", rendering.folders(kernel))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serialized" not in done.stdout + done.stderr


def tried(worker: Worker, problem: Problem, candidates: Sequence[Candidate]) -> list[Result]:
    """Return the results of candidates. All requests are sent before the first answer is read."""
    for chosen in candidates:
        worker.send(problem, chosen)
    return [worker.receive() for _ in candidates]


def documented_family(folder: Path) -> str:
    """Write the files of docs/guide/add-a-family.md to a folder and return the command that tunes them."""
    page = (ROOT / "docs" / "guide" / "add-a-family.md").read_text()
    folder.mkdir()
    for before, text in re.findall(r"(.*?)\n```(?:python|jinja)\n(.*?)```", page, re.DOTALL):
        file = re.findall(r"`(\w+(?:\.\w+)?\.(?:py|j2))`", before)[-1]  # the last file name before the code block
        folder.joinpath(file).write_text(text)
    return re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0]
