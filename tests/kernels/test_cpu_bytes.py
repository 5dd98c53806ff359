"""Signed bytes on the CPU: kernels against exact sums, rounding at its edges, and casts."""

import random

import pytest
import torch
from kernels import built_paths, candidate_of
from reference import assert_bytes_are_right, relative_error, solve

from autotune.core import AutotuneError
from autotune.families import Kernel, family, serving
from autotune.ir import parse
from autotune.measure import CandidateBench

CPU = torch.device("cpu")

# Odd sizes; more channels than the kernels sum up at a time; groups; windows in the padding alone.
PROBLEMS = [
    "conv2d n=3 h=9 w=7 c=37 k=33 r=3 s=2 stride=2,1 pad=1 dtype=s8 epilogue=scale,bias,add,relu,mul_scalar",
    "conv2d n=2 h=6 w=5 c=600 k=70 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias,store,relu",
    "conv2d n=2 h=3 w=3 c=6 k=18 r=1 s=1 pad=2 groups=2 dtype=s8 epilogue=scale,add_scalar",
    "conv2d n=1 h=8 w=8 c=20 k=16 r=3 s=3 pad=2 dilation=2 dtype=s8 epilogue=mul_scalar,silu",
    "gemm m=5 n=70 k=300 dtype=s8 epilogue=scale,bias",
    "max_pool2d n=2 h=9 w=9 c=33 r=3 s=3 stride=2 pad=1 dtype=s8",
    "avg_pool2d n=2 h=9 w=8 c=71 r=3 s=2 stride=2 pad=1 dtype=s8 epilogue=mul_scalar",
    "global_avg_pool2d n=2 h=5 w=9 c=71 dtype=s8 epilogue=mul_scalar",
    "elementwise n=2 h=4 w=9 c=35 dtype=s8 epilogue=scale,bias,relu,store",
    "cast n=2 h=9 w=4 c=71 result=s8 dtype=f32 epilogue=mul_scalar,store,add",
    "cast n=2 h=9 w=4 c=71 result=f32 dtype=s8 epilogue=mul_scalar,add",
]


@pytest.fixture(scope="module")
def trials(cpu, cpu_target):
    """(problem, kernel, path): two configs of the family that serves each, compiled together."""
    found = []
    for problem in map(parse, PROBLEMS):
        (chosen,) = serving(problem, cpu)
        configs = chosen.configs_for(problem, cpu)
        for config in random.Random(str(problem)).sample(configs, 2 if problem.output_shape[-1] == 33 else 1):
            found.append((problem, Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, cpu_target)))
    paths = built_paths(kernel for _, kernel in found)
    return [(problem, kernel, paths[kernel]) for problem, kernel in found]


@pytest.mark.compile
def test_kernels_give_the_exact_sum_rounded(trials, cpu):
    for problem, kernel, path in trials:
        chosen = family(kernel.family)
        case = CandidateBench(problem, CPU, seed=2)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in chosen.launches(problem, kernel.values, cpu):
            step = case.bind(candidate_of(kernel, path, launch))
            error, complaint = case.verify(step)
            assert complaint is None, f"{problem} {kernel} {launch}: {complaint}"
            assert case.rerun(step, case.copy_outputs()) is None
            for name, value in expected.items():
                if problem.output_dtype == "s8":
                    assert_bytes_are_right(case.tensors[name], value, f"{name} of {problem} {kernel}")
                else:
                    assert relative_error(case.tensors[name], value) < 1e-6 and error < 1e-6


@pytest.mark.compile
def test_sums_are_whole_on_the_way_too(cpu_target):
    """Half of the factors at one extreme and half at the other: what cancels is beyond a float's significand."""
    problem = parse("conv2d n=1 h=3 w=3 c=1500 k=8 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias")
    config = {"block_k": 8, "block_pixels": 4, "unroll_c": 2}
    kernel = Kernel.of("cpu_conv2d", config, "s8", problem.epilogue, cpu_target)
    case = CandidateBench(problem, CPU)
    x, weight = case.tensors["x"], case.tensors["weight"]
    x.fill_(-128)
    weight[:, :750], weight[:, 750:] = -128, 127
    weight[:, 7, 1, 1] = torch.arange(8, dtype=torch.int8) - 127
    x[0, 1, 1, 7] = 1  # so the sums are odd numbers and even ones
    on_the_way, sums = (
        torch.nn.functional.conv2d(x.movedim(-1, 1).double()[:, :c], weight.double()[:, :c], padding=1)[0, :, 1, 1]
        for c in (750, 1500)
    )
    assert on_the_way.abs().min() > 2**26 and sums.abs().max() < 2**23
    case.tensors["scale0"].fill_(1.0)
    case.tensors["bias1"].copy_(5 - sums)
    case.bind(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1, "order": 0})).run()
    assert case.tensors["y"][0, 1, 1].tolist() == [5] * 8


@pytest.mark.compile
def test_rounding_is_to_the_nearest_even_and_saturates(cpu_target):
    problem = parse("cast n=1 h=1 w=1 c=24 result=s8 dtype=f32")
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 126.5, 127.49, 127.5, 128.0, 1e9, float("inf")]
    values += [-127.5, -128.4, -128.5, -129.0, -1e9, -float("inf"), float("nan"), 1e-40, -0.0, 3.0, -77.0]
    expected = [0, 2, 2, 0, -2, -2, 0, 126, 127, 127, 127, 127, 127]
    expected += [-128, -128, -128, -128, -128, -128, 0, 0, 0, 3, -77]
    for block in (8, 16):  # a block of vectors and what is left behind it
        kernel = Kernel.of("cpu_cast", {"result": "s8", "block_c": block}, "f32", problem.epilogue, cpu_target)
        case = CandidateBench(problem, CPU)
        case.tensors["x"].copy_(torch.tensor(values).view(1, 1, 1, 24))
        case.bind(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1})).run()
        assert case.tensors["y"].flatten().tolist() == expected


@pytest.mark.compile
def test_a_kernel_that_is_off_by_one_comes_out_as_wrong(cpu_target):
    """The poisoned outputs of bytes, and the check of each."""
    problem = parse("cast n=1 h=4 w=4 c=32 result=s8 dtype=f32 epilogue=mul_scalar")
    other = parse("cast n=1 h=4 w=4 c=32 result=s8 dtype=f32 epilogue=add_scalar")
    kernel = Kernel.of("cpu_cast", {"result": "s8", "block_c": 8}, "f32", other.epilogue, cpu_target)
    result = CandidateBench(problem, CPU).run(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1}))
    assert result.status == "wrong" and "before rounding" in result.error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cast n=1 h=1 w=1 c=1 result=s9 dtype=f32", "unknown dtype 's9'"),
        ("cast n=1 h=1 w=1 c=1 dtype=f32", "lacks result"),
    ],
)
def test_casts_that_are_none(text, said):
    with pytest.raises(AutotuneError, match=said):
        parse(text)
