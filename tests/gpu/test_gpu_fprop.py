"""The CUTLASS and depthwise convolutions on random small problems: every dtype, access, iterator and kind of group."""

import os
import random

import pytest
import torch
from comparison import LIMIT, assert_bytes_are_right, relative_error
from kernels import built_paths, candidate_of
from reference import solve

from autotune.core import of_capability
from autotune.families import PERMISSIONS, Kernel, family
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d
from autotune.measure import CandidateBench
from autotune.runtime.engine import RefusedError

pytestmark = pytest.mark.gpu

HALF_SUMS = 1e-2

CHAINS = ("none", "bias,relu", "scale,bias,silu,add", "mul_scalar,store,add_scalar,relu")
BYTE_CHAINS = ("scale,bias,relu", "mul_scalar,add,store,add_scalar", "scale,bias,silu")

# (c, k, groups, side of the filter): each asks for another way to read a tile
SIZES = [
    (72, 40, 1, 3),
    (264, 136, 1, 2),
    (20, 36, 1, 3),
    (6, 12, 1, 5),
    (3, 20, 1, 7),
    (8, 32, 1, 3),
    (4, 64, 1, 7),
    (2, 28, 1, 4),
    (16, 24, 1, 33),
    (64, 64, 1, 1),
    (128, 256, 2, 3),
    (96, 96, 12, 3),
    (64, 32, 4, 3),
    (512, 96, 1, 1),
]


def cuda():
    return torch.device("cuda:0")


def capability():
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def random_problem(rng, dtype, sizes):
    c, k, groups, side = sizes
    other = side if side > 7 else rng.choice((side, max(1, side - 1)))
    least = 30 if side > 7 else 0
    chain = rng.choice(BYTE_CHAINS if dtype == "s8" else CHAINS)
    return Conv2d(
        n=rng.randint(1, 3), h=least + rng.randint(7, 15), w=least + rng.randint(7, 15),
        c=c, k=k, r=side, s=other, groups=groups, dtype=dtype, epilogue=Epilogue.parse(chain),
        stride=(rng.randint(1, 2), rng.randint(1, 2)), pad=(rng.randint(0, side // 2), rng.randint(0, other // 2)),
        dilation=(1, 1) if side > 5 else (rng.randint(1, 2), rng.randint(1, 2)),
    )  # fmt: skip


def spread(configs, rng, names):
    """A config for each combination of the parameters that say how a tile is read and summed."""
    kinds = {}
    for config in rng.sample(configs, len(configs)):
        kinds.setdefault(tuple(config.get(name) for name in names), config)
    return list(kinds.values())


KINDS = {
    "cutlass2_conv2d": ("iterator", "groups", "alignment", "accumulator"),
    "cuda_depthwise_conv2d": ("filter", "stride", "vector"),
}


def pairs_of(name, arch, dtype):
    """(problem, kernel) pairs: for each problem a kernel of every kind."""
    found, rng = family(name), random.Random(f"{name} {dtype}")
    pairs = []
    sizes = SIZES if name == "cutlass2_conv2d" else [(c, c, c, side) for c in (24, 40, 7) for side in (3, 5, 2)]
    for size in sizes:
        problem = random_problem(rng, dtype, size)
        if found.why_not_served(problem, arch) is None:
            configs = found.configs_for(problem, arch, tuple(PERMISSIONS))
            for config in spread(configs, rng, KINDS[name])[:6]:
                kernel = Kernel.of(name, config, dtype, problem.epilogue, f"sm_{capability()}")
                pairs.append((problem, kernel))
    return pairs


@pytest.fixture(scope="module")
def built():
    """(family, dtype) -> pairs, and every binary, compiled together."""
    arch = of_capability(capability())
    pairs = {
        (name, dtype): pairs_of(name, arch, dtype)
        for name in KINDS
        for dtype in arch.dtypes
        if dtype in family(name).dtypes
    }
    kernels = (kernel for found in pairs.values() for _, kernel in found)
    return pairs, built_paths(kernels, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32", "s8"])
@pytest.mark.parametrize("name", KINDS)
def test_kernels_of_every_kind_solve_random_problems(name, dtype, built):
    pairs, paths = built
    if not pairs.get((name, dtype)):
        pytest.skip(f"{name} has no kernels in {dtype} here")
    arch, found, kinds = of_capability(capability()), family(name), set()
    for problem, kernel in pairs[name, dtype]:
        case = CandidateBench(problem, cuda(), seed=1)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in found.launches(problem, kernel.values, arch):
            result = case.run(candidate_of(kernel, paths[kernel], launch))
            assert result.status == "ok", f"{problem} {kernel} {launch}: {result.error}"
            half = kernel.values.get("accumulator") == "f16"
            assert half == (result.details["tolerance"] == HALF_SUMS)
            for key, value in expected.items():
                said = f"{key} of {problem} {kernel} {launch}"
                if dtype == "s8":
                    assert_bytes_are_right(case.tensors[key], value, said)
                else:
                    assert relative_error(case.tensors[key], value) < (HALF_SUMS if half else LIMIT[dtype]), said
        kinds.add(tuple(kernel.values[kind] for kind in KINDS[name]))
    assert len(kinds) > 1


def test_what_fits_is_what_the_device_takes(built):
    """No kernel is refused on the device for a problem that it fits."""
    pairs, paths = built
    arch = of_capability(capability())
    for (name, _), found in pairs.items():
        chosen = family(name)
        problems = {problem for problem, _ in found}
        first = {parameter.name: 0 for parameter in chosen.launch_parameters} | {"slices": 1}
        for kernel in {kernel for _, kernel in found}:
            candidate = candidate_of(kernel, paths[kernel], first)
            for problem in problems:
                if chosen.why_unfit(problem, kernel.values, arch) is None and problem.epilogue == kernel.epilogue:
                    bind_or_fail(candidate, problem)


def bind_or_fail(candidate, problem):
    try:
        CandidateBench(problem, cuda()).bind(candidate)
    except RefusedError:
        pytest.fail(f"{problem} was refused by {candidate}")


def test_split_bytes_are_summed_as_whole_numbers(built):
    """The same bits whatever the split: sums of int32 have no order."""
    pairs, paths = built
    arch, found, tried = of_capability(capability()), family("cutlass2_conv2d"), 0
    for problem, kernel in pairs.get(("cutlass2_conv2d", "s8"), []):
        launches = found.launches(problem, kernel.values, arch)
        if {launch["slices"] for launch in launches} == {1}:
            continue
        case, results = CandidateBench(problem, cuda()), []
        for launch in launches:
            assert case.run(candidate_of(kernel, paths[kernel], launch)).status == "ok"
            results.append(case.tensors["y"].clone())
        assert all(torch.equal(results[0], other) for other in results[1:])
        tried += 1
    if arch.capability >= 75:
        assert tried
