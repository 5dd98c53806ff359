"""Random problems of every CUDA family, on kernels drawn at random too; alone, a program for a checker to watch.

compute-sanitizer python tests/support/random_kernels.py FAMILY ...
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from comparison import LIMIT, assert_bytes_are_right, relative_error
from epilogues import random_epilogue
from kernels import built_paths, candidate_of
from random_sizes import SIZES
from reference import solve
from reference_steps import STEPS

from autotune.core import Architecture, ProblemError, device_target, of_capability, paths
from autotune.families import PERMISSIONS, AnyFamily, Kernel, Launch, family
from autotune.ir import BYTE_FORMATS, Epilogue, Problem, parse, sum_error
from autotune.ir.operators import Conv2dBroadcast
from autotune.measure import CandidateBench
from autotune.measure.verify import HALF_SUMS

_LIMIT = {**LIMIT, HALF_SUMS: 1e-2}
_TRIES = 400  # of sizes, for one that a kernel fits
_BEFORE = [
    name for name in STEPS if name not in ("add", "sub", "mul", "relu_mask", "store")
]  # a place: steps that meet no tensor


# -- kernels and their problems ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A problem, a kernel that fits it, and launch values."""

    problem: Problem
    kernel: Kernel
    launch: Launch

    def __str__(self) -> str:
        return f"{self.problem} {self.kernel} {dict(self.launch)}"


def epilogue(rng: random.Random, problem: Problem) -> Epilogue:
    """Random steps around a problem's places, which only tensors' values behind the last may meet."""
    if {problem.dtype, problem.output_dtype} & set(BYTE_FORMATS):  # a result in bytes is spread by its first scale
        chain = rng.choice(("scale,bias,relu", "mul_scalar,add,store,add_scalar", "mul_scalar,silu"))
        return Epilogue.parse(",".join([*(f"scale,bias,relu,{place}" for place in problem.anchors), chain]))
    names: list[str] = []
    has_gates = isinstance(problem, Conv2dBroadcast)  # by mul_image, which may stand once
    for place in ("mul_image",) if has_gates else problem.anchors:
        names += [*rng.choices(_BEFORE, k=rng.randint(0, 2)), place]
    return Epilogue((*names, *random_epilogue(rng, broadcast=problem.broadcasts and not has_gates).names))


@dataclass(frozen=True)
class Sample:
    """How many kernels and problems are drawn.

    Attributes:
        seed: The same seed gives the same kernels and problems.
        kernels: Kernels of each family.
        problems: Problems of each kernel.
        largest: FLOPs of the largest problem. The kernels do not depend on it.
        dtypes: Only these; all if empty. A family that has none of them is left out.
    """

    seed: int = 0
    kernels: int = 2
    problems: int = 2
    largest: float = math.inf
    dtypes: tuple[str, ...] = ()


def drawn(name: str, arch: Architecture, target: str, sample: Sample) -> Iterator[Drawn]:
    """Some random problems for each of some random kernels of a family."""
    found = family(name)
    dtypes = [dtype for dtype in sample.dtypes or arch.dtypes if dtype in found.dtypes and dtype in arch.dtypes]
    for i in range(sample.kernels if dtypes else 0):
        rng, dtype = random.Random(f"{name} {sample.seed} {i}"), dtypes[i % len(dtypes)]
        chosen = (_kernel(found, arch, target, rng, dtype) for _ in range(_TRIES))
        kernel = next((kernel for kernel in chosen if kernel), None)
        assert kernel, f"{name} fits no random problem in {dtype}"
        yield from islice(_served(kernel, arch, rng, sample.largest), sample.problems)


def _kernel(found: AnyFamily, arch: Architecture, target: str, rng: random.Random, dtype: str) -> Kernel | None:
    """A kernel that solves some random problem; None where the family does not serve that."""
    problem = _sized(found, rng, dtype)
    if problem is None:
        return None
    try:
        problem = replace(problem, epilogue=epilogue(rng, problem))
    except ProblemError:  # more numbers than a kernel takes
        return None
    if found.why_not_served(problem, arch):
        return None
    configs = found.configs_for(problem, arch, tuple(PERMISSIONS))
    return Kernel.of(found.name, rng.choice(configs), dtype, problem.epilogue, target) if configs else None


def _served(kernel: Kernel, arch: Architecture, rng: random.Random, largest: float) -> Iterator[Drawn]:
    """Random problems of up to `largest` FLOPs that a kernel solves."""
    found = family(kernel.family)
    for _ in range(_TRIES):
        plain = _sized(found, rng, kernel.dtype)
        if plain is None or plain.anchors != kernel.epilogue.anchors or plain.flops > largest:
            continue
        problem = replace(plain, epilogue=kernel.epilogue)
        if found.why_not_served(problem, arch) or found.why_unfit(problem, kernel.values, arch):
            continue
        if launches := found.launches(problem, kernel.values, arch):
            yield Drawn(problem, kernel, rng.choice(launches))


def _sized(found: AnyFamily, rng: random.Random, dtype: str) -> Problem | None:
    """A problem without steps, or None where the sizes make none, such as a window that is larger than its image."""
    try:
        return parse(f"{SIZES[found.name](rng)} dtype={dtype}")
    except ProblemError:
        return None


# -- running -----------------------------------------------------------------------------------------------------------


def complaint(case: CandidateBench, found: Drawn, path: Path) -> str | None:
    """What is wrong with a kernel's results by the tuner's checks and by the tests' own reference, if anything is."""
    step = case.bind(candidate_of(found.kernel, path, found.launch))
    halves = "f16_accumulation" in family(found.kernel.family).required_permissions(found.kernel.values)
    of_sums = sum_error(case.problem, found.kernel.values)
    _, said = case.verify(step, HALF_SUMS if halves else "", of_sums)
    if said or (said := (case.rerun(step, case.copy_outputs()) or ("", None))[1]):
        return said
    for key, value in solve(case.problem, case.tensors, case.scalars).items():
        result = case.tensors[key]
        if case.problem.output_dtype in BYTE_FORMATS:
            assert_bytes_are_right(result, value, key, 2e-5 + of_sums)
        elif (error := relative_error(result, value)) > _LIMIT[HALF_SUMS if halves else _least_exact(case.problem)]:
            return f"{key} has a relative error of {error:.2e}"
    return None


def _least_exact(problem: Problem) -> str:
    return max(problem.dtype, problem.output_dtype, key=lambda dtype: LIMIT.get(dtype, 0))


def every(names: Sequence[str], sample: Sample) -> list[Drawn]:
    """Draw from all families of these names that the first GPU can run."""
    target = device_target(torch.device("cuda:0"))
    arch = of_capability(int(target.removeprefix("sm_")))
    names = [name for name in names if arch.name in family(name).architectures]
    return [found for name in names for found in drawn(name, arch, target, sample)]


def built(found: Sequence[Drawn]) -> dict[Kernel, Path]:
    """Build the kernels; those on the disk are not built again."""
    return built_paths((one.kernel for one in found), len(os.sched_getaffinity(0)))


def wrong(names: Sequence[str], sample: Sample) -> tuple[int, list[str]]:
    """Draw, build and solve: the number of problems, and what is wrong with which results."""
    drawn_ones = every(names, sample)
    paths_of = built(drawn_ones)
    complaints = []
    for number, found in enumerate(drawn_ones):
        case = CandidateBench(found.problem, torch.device("cuda:0"), seed=number)
        try:
            if said := complaint(case, found, paths_of[found.kernel]):
                complaints.append(f"{found}: {said}")
        except AssertionError as error:
            complaints.append(f"{found}: {error}")
    return len(drawn_ones), complaints


# -- a program ---------------------------------------------------------------------------------------------------------

_ALIGNED = {
    "common/ptx/cluster.cuh": {"__syncthreads()": 'asm volatile("barrier.sync 0;" ::: "memory")'},
    "common/ptx/mbarrier.cuh": {'"bar.sync %0': '"barrier.sync %0', '"barrier.sync.aligned %0': '"barrier.sync %0'},
}
"""Header -> barriers that loading and multiplying warps reach at different places, and their unaligned form."""


@contextmanager
def unaligned_barriers() -> Iterator[None]:
    """Build kernels from a copy of the templates that says of barriers that warps reach them at different places.

    synccheck ends a kernel at a barrier that is reached at two places, unless it is unaligned. The instruction is the
    same for both forms: `BAR.SYNC`, which counts warps. The compiler lists unaligned ones in `.nv.info`, and converges
    a warp before them where it does not know that the warp is.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        copy = Path(folder, "templates")
        shutil.copytree(paths.templates(), copy)
        for header, barriers in _ALIGNED.items():
            text = (copy / header).read_text()
            for aligned, unaligned in barriers.items():
                assert aligned in text, f"{header} has no {aligned}"
                text = text.replace(aligned, unaligned)
            (copy / header).write_text(text)
        patch.setattr(paths, "templates", lambda: copy)
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=sorted(SIZES))
    parser.add_argument("--kernels", type=int, default=Sample.kernels, help="of each family")
    parser.add_argument("--problems", type=int, default=Sample.problems, help="of each kernel")
    parser.add_argument("--dtypes", nargs="*", default=[], help="only these")
    parser.add_argument("--largest", type=float, default=math.inf, help="FLOPs of the largest problem")
    parser.add_argument("--unaligned", action="store_true", help="barriers in their unaligned form, for synccheck")
    parser.add_argument("--no-cudnn", action="store_true", help="references on torch's own kernels")
    parser.add_argument("--build", action="store_true", help="build the kernels, and no more")
    options = parser.parse_args()
    sample = Sample(
        kernels=options.kernels, problems=options.problems, largest=options.largest, dtypes=tuple(options.dtypes)
    )
    torch.backends.cudnn.enabled = not options.no_cudnn
    total, failed = 0, 0
    with unaligned_barriers() if options.unaligned else nullcontext():
        built(every(options.families, sample))
        for name in [] if options.build else options.families:
            started = time.monotonic()
            count, complaints = wrong([name], sample)
            took = time.monotonic() - started
            print(f"{name}: {count} problems, {len(complaints)} wrong, {took:.1f} s", *complaints, sep="\n", flush=True)
            total, failed = total + count, failed + len(complaints)
    print(f"{total} problems, {failed} wrong")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
