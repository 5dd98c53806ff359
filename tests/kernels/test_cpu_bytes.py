"""8-bit formats on the CPU: kernels against exact sums, rounding at its edges, and casts."""

import random

import pytest
import torch
from comparison import assert_bytes_are_right, relative_error
from kernels import built_paths, candidate_of
from reference import solve

from autotune.core import AutotuneError
from autotune.families import Kernel, family, serving
from autotune.ir import BYTE_FORMATS, parse
from autotune.measure import CandidateBench

CPU = torch.device("cpu")

# Odd sizes; more channels than the kernels sum up at a time; groups; windows in the padding alone.
OF_BYTES = [
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
    "adaptive_avg_pool2d n=2 h=9 w=8 c=71 p=4 q=3 dtype=s8 epilogue=mul_scalar",
    "clipped_avg_pool2d n=2 h=9 w=8 c=33 r=3 s=3 stride=2 pad=1 ceil=1 dtype=s8",
    "concat n=2 h=5 w=3 pieces=16,24,31 dtype=s8",
]
PROBLEMS = [*OF_BYTES, *(text.replace("s8", "e4m3") for text in OF_BYTES), "cast n=2 h=3 w=4 c=33 result=e4m3 dtype=s8"]


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
                if problem.output_dtype in BYTE_FORMATS:
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


def cast(values, given, result, block, target):
    """Values in a dtype, one after the other, cast by a kernel of the CPU."""
    problem = parse(f"cast n=1 h=1 w=1 c={len(values)} result={result} dtype={given}")
    kernel = Kernel.of("cpu_cast", {"result": result, "block_c": block}, given, problem.epilogue, target)
    case = CandidateBench(problem, CPU)
    case.tensors["x"].view(-1).copy_(values)
    case.fill_nan()
    case.bind(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1})).run()
    return case.tensors["y"].flatten()


@pytest.mark.compile
@pytest.mark.parametrize("block", [8, 64])
def test_e4m3_is_converted_as_torch_does_it(block, cpu_target):
    """All bytes to float; to bytes: each number, all ties and their neighbors, random floats, and what saturates."""
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    to_float = cast(every, "e4m3", "f32", block, cpu_target)
    assert torch.equal(to_float.nan_to_num(1e9), every.float().nan_to_num(1e9)) and to_float.isnan().sum() == 2

    numbers = every.float()[:127]
    ties = (numbers[1:] + numbers[:-1]) / 2
    around = [torch.nextafter(ties, torch.full_like(ties, side)) for side in (0.0, 1e9)]
    drawn = torch.randn(20001, generator=torch.Generator().manual_seed(3))
    drawn *= 10 ** (6 * torch.rand(20001, generator=torch.Generator().manual_seed(4)) - 4)
    edges = torch.tensor([448.0, 463.9, 464.0, 464.1, 1e30, float("inf"), 2**-10, 1.1 * 2**-10, 2**-11, 1e-40])
    positive = torch.cat([numbers, ties, *around, drawn.abs(), edges])
    values = torch.cat([positive, -positive])
    found = cast(values, "f32", "e4m3", block, cpu_target)
    expected = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), "zeros keep their sign, too"
    assert cast(torch.full((8,), float("nan")), "f32", "e4m3", 8, cpu_target).float().isnan().all()


@pytest.mark.compile
@pytest.mark.parametrize("result", BYTE_FORMATS)
def test_a_kernel_that_is_off_by_one_comes_out_as_wrong(result, cpu_target):
    """The poisoned outputs of bytes, and the check of each."""
    problem = parse(f"cast n=1 h=4 w=4 c=32 result={result} dtype=f32 epilogue=mul_scalar")
    other = parse(f"cast n=1 h=4 w=4 c=32 result={result} dtype=f32 epilogue=add_scalar")
    kernel = Kernel.of("cpu_cast", {"result": result, "block_c": 8}, "f32", other.epilogue, cpu_target)
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
