"""Kernels from CUTLASS 3.x on a GPU: all schedules and sources on odd problems; few, because each compiles for long."""

import os

import pytest
import torch
from comparison import LIMIT, relative_error
from kernels import assert_same_bits, built_paths, candidate_of
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse
from autotune.measure import CandidateBench

pytestmark = pytest.mark.gpu

# (dtype, epilogue) -> labels of configs
KERNELS = {
    "cutlass3_gemm": {
        ("f16", "bias,add,relu"): ["128x128x64 cooperative c2x1 e32 tma", "64x64x64 basic c1x2 e32 tma 2 blocks"],
        ("f16", "bias,silu,add,scale,store,sigmoid"): ["128x256x64 cooperative c1x2 e32"],
        ("f16", "add,swish_b,store,add,bent,gelu"): ["64x192x64 pingpong c2x1 e32 tma"],
        ("bf16", "none"): ["256x128x32 cooperative e32", "128x128x64 pingpong c1x4 e64"],
        ("bf16", "bias,relu"): ["64x32x64 basic e32 3 blocks"],
        ("tf32", "bias,add"): ["128x64x32 cooperative c4x1 e32"],
    },
    "cutlass3_conv2d": {
        ("f16", "bias,add,relu"): ["128x128x64 c2x1 e32 tma"],
        ("f16", "bias,silu,add,scale,store,sigmoid"): ["64x256x64 e64"],
        ("bf16", "add,swish_b,store,add,bent,clamp"): ["64x32x32 c1x2 e32 tma 2 blocks"],
        ("tf32", "none"): ["192x64x32 c2x2 e32"],
    },
    "cutlass3_conv2d_dgrad": {
        ("f16", "scale,add"): ["128x128x64 c2x1 e32 tma"],
        ("bf16", "bias,add_scalar,relu,store"): ["64x64x32 e32 2 blocks"],
    },
    "cutlass3_conv2d_wgrad": {
        ("f16", "bias,store"): ["128x96x64 c1x2 e32"],
        ("bf16", "mul_scalar,add"): ["64x64x128 e32 tma 2 blocks"],
    },
}

SIZES = {
    "cutlass3_gemm": [
        "gemm m=1000 n=520 k=1000",
        "gemm m=300 n=264 k=4104",
        "gemm m=33 n=16 k=56",
        "gemm m=5000 n=1032 k=136",
        "conv2d n=37 h=14 w=13 c=264 k=136",
    ],
    "cutlass3_conv2d": [
        "conv2d n=3 h=13 w=9 c=72 k=40 r=3 s=3 stride=2,1 pad=1,1",
        "conv2d n=2 h=7 w=11 c=264 k=136 r=3 s=2 stride=1,2 pad=2,1",
        "conv2d n=9 h=24 w=24 c=64 k=256 r=3 s=3 pad=1",
        "conv2d n=2 h=20 w=30 c=16 k=24 r=5 s=7 stride=3,2 pad=4,0 dilation=1,3",
    ],
    "cutlass3_conv2d_dgrad": [
        "conv2d_dgrad n=3 h=13 w=9 c=72 k=264 r=3 s=3 pad=1,1",
        "conv2d_dgrad n=2 h=14 w=11 c=40 k=64 r=3 s=2 pad=2,1 dilation=2,1",
        "conv2d_dgrad n=8 h=28 w=28 c=136 k=520 r=5 s=3",
    ],
    "cutlass3_conv2d_wgrad": [
        "conv2d_wgrad n=7 h=33 w=29 c=64 k=72 r=3 s=3 pad=1,1",
        "conv2d_wgrad n=3 h=25 w=22 c=40 k=136 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2",
        "conv2d_wgrad n=4 h=16 w=16 c=264 k=264",
    ],
}


def arch():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("CUTLASS 3.x's kernels are for sm90")
    return architecture("sm90")


def kernels(name):
    """The kernels of a family, each found by its config's label: so all of them are legal."""
    found = family(name)
    for (dtype, chain), labels in KERNELS[name].items():
        epilogue = Epilogue.parse(chain)
        configs = {found.label(config): config for config in found.configs(architecture("sm90"), dtype, epilogue)}
        for label in labels:
            yield Kernel.of(name, configs[label], dtype, epilogue, "sm_90")


@pytest.fixture(scope="module")
def built():
    """Kernels -> binaries, compiled together."""
    arch()
    return built_paths((kernel for name in KERNELS for kernel in kernels(name)), len(os.sched_getaffinity(0)))


def cases(name):
    """(case, kernel, the launch values worth a try)"""
    for kernel in kernels(name):
        for size in SIZES[name]:
            problem = parse(f"{size} dtype={kernel.dtype} epilogue={kernel.epilogue}")
            if family(name).why_unfit(problem, kernel.values, arch()) is None:
                launches = family(name).launches(problem, kernel.values, arch())
                yield CandidateBench(problem, torch.device("cuda:0"), seed=1), kernel, launches


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_solve_odd_problems(name, built):
    launched, solved = set(), set()
    for case, kernel, launches in cases(name):
        expected = solve(case.problem, case.tensors, case.scalars)
        for launch in launches:
            said = f"{case.problem} {kernel} {launch}"
            _, complaint = case.verify(case.bind(candidate_of(kernel, built[kernel], launch)))
            assert complaint is None, f"{said}: {complaint}"
            for key, value in expected.items():
                assert relative_error(case.tensors[key], value) < LIMIT[kernel.dtype], f"{key} of {said}"
            launched |= set(launch.items())
        solved.add(kernel)
    assert solved == set(kernels(name)), "some fit no problem"
    if name == "cutlass3_gemm":
        assert launched > {("stream", 1), ("slices", 4), ("swizzle", 2)}


@pytest.mark.parametrize("how", ["slices", "stream"])
def test_sums_of_several_blocks_give_the_same_bits_each_time(how, built):
    dealt = 0
    for case, kernel, launches in cases("cutlass3_gemm"):
        for launch in [launch for launch in launches if launch[how] > (how == "slices")][-1:]:
            step = case.bind(candidate_of(kernel, built[kernel], launch))
            assert_same_bits(case, step, f"{case.problem} {kernel} {launch}")
            dealt += 1
    assert dealt, f"no launch has {how}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cutlass3_gemm", "conv2d n=1 h=4 w=4 c=16 k=16 r=3 s=3 pad=1 dtype=f16"),
        ("cutlass3_gemm", "gemm m=4 n=16 k=20 dtype=f16"),
        ("cutlass3_conv2d", "conv2d n=1 h=4 w=4 c=16 k=16 groups=2 dtype=f16"),
        ("cutlass3_conv2d_dgrad", "conv2d_dgrad n=1 h=8 w=8 c=16 k=16 stride=2,2 dtype=f16"),
        ("cutlass3_conv2d_wgrad", "conv2d_wgrad n=1 h=4 w=4 c=16 k=20 dtype=f16"),
    ],
)
def test_a_problem_that_a_kernel_cannot_solve_is_refused(name, text, built):
    kernel = next(kernels(name))
    launch = {"swizzle": 0, "slices": 1, "stream": 0}
    case = CandidateBench(parse(f"{text} epilogue={kernel.epilogue}"), torch.device("cuda:0"))
    assert case.run(candidate_of(kernel, built[kernel], launch)).status == "refused"
