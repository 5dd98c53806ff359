"""Kernels in 8-bit formats on a GPU that are not convolutions: their own text, run on a CPU, and compiled for GPUs.

On a CPU the conversions are those for hosts; tests/gpu/test_gpu_precision.py runs the GPU's instructions.
"""

import random

import pytest
import torch
from comparison import assert_right
from emulator import Emulated
from kernels import assert_exported, need_compiler, proposed, random_inputs
from reference import solve

from autotune.codegen import rendering
from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, Epilogue, parse

SM90 = architecture("sm90")
# Accesses of whole words and of single bytes, more than one item a thread, all kinds of operands.
PROBLEMS = [
    "cast n=2 h=3 w=5 c=48 result=e4m3 dtype=f16 epilogue=mul_scalar",
    "cast n=1 h=3 w=3 c=13 result=e4m3 dtype=f32 epilogue=mul_scalar,store,add",
    "cast n=2 h=3 w=5 c=48 result=f16 dtype=e4m3 epilogue=mul_scalar",
    "cast n=1 h=3 w=3 c=13 result=f32 dtype=e4m3 epilogue=mul_scalar,add,relu",
    "cast n=1 h=3 w=3 c=32 result=e4m3 dtype=s8 epilogue=mul_scalar",
    "elementwise n=2 h=3 w=4 c=32 dtype=e4m3 epilogue=scale,bias,add,store,relu",
    "max_pool2d n=2 h=9 w=9 c=32 r=3 s=3 stride=2 pad=1 dtype=e4m3",
    "avg_pool2d n=2 h=9 w=8 c=36 r=3 s=2 stride=2 pad=1 dtype=e4m3 epilogue=mul_scalar",
    "adaptive_avg_pool2d n=2 h=7 w=9 c=24 p=5 q=4 dtype=e4m3 epilogue=mul_scalar",
    "global_avg_pool2d n=2 h=5 w=9 c=64 dtype=e4m3 epilogue=mul_scalar",
    "concat n=2 h=5 w=3 pieces=16,32 dtype=e4m3",
    "to_channels_last n=2 h=8 w=8 c=3 to=16 dtype=e4m3",
]


def spread_scalars(problem, scalars):
    """Numbers that leave values where they are: the inputs already spread over the range."""
    gain = {"cast f16": 64.0, "cast f32": 64.0}.get(f"{problem.operator} {problem.dtype}", 1.5)
    return tuple(gain for _ in scalars)


@pytest.mark.compile
@pytest.mark.parametrize("text", PROBLEMS)
def test_the_kernels_text_solves_the_problem(text, tmp_path):
    problem = parse(text)
    chosen = family(f"cuda_{problem.operator}")
    configs = chosen.configs_for(problem, SM90)
    config = random.Random(text).choice([one for one in configs if one["vector"] == max(c["vector"] for c in configs)])
    emulated = Emulated(proposed(chosen.name, problem, config, SM90), tmp_path)
    tensors, scalars = random_inputs(problem)
    scalars = spread_scalars(problem, scalars)
    found = emulated.run(problem, tensors, scalars, chosen.launches(problem, config, SM90)[0], 1)
    assert problem.output_dtype not in BYTE_FORMATS or {y.dtype for y in found.values()} == {torch.float8_e4m3fn}
    assert_right(found, solve(problem, tensors, scalars), problem.output_dtype)


def cast(source, result, vector, epilogue="none", target="sm_90"):
    config = {"result": result, "vector": vector, "items": 1, "threads": 64}
    chain = Epilogue.parse(epilogue)
    arch = architecture(target.replace("_", ""))
    assert family("cuda_cast").why_illegal(config, arch, source, chain) is None
    return Kernel.of("cuda_cast", config, source, chain, target)


def numbers_of(form):
    """Return all numbers of a format, and float32 numbers that are at and beside the middles of two, or far outside."""
    if form == "s8":
        every = torch.arange(-128, 128).to(torch.int8)
        infinity, odd = float("inf"), float("nan")
        outside = torch.tensor([127.5, 128.0, -128.5, -129.0, 1e9, -1e9, 3e38, infinity, -infinity, odd, -0.0, 1e-30])
        values = torch.cat([every.float(), torch.arange(-130, 130) + 0.5, outside])
    else:
        every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
        finite = every[~every.float().isnan()].float()
        ties = (finite.sort().values[1:] + finite.sort().values[:-1]) / 2
        values = torch.cat([finite, ties, torch.tensor([449.0, -1e9, float("inf"), -float("inf")])])
    return every, torch.cat([values, torch.zeros(-len(values) % 16)])


@pytest.mark.compile
@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("form", BYTE_FORMATS)
def test_all_numbers_are_converted(form, vector, tmp_path):
    """The single bytes of `from_float`, and the words that a Pack is converted in."""
    every, values = numbers_of(form)
    for given, source, result in ((every, form, "f32"), (values, "f32", form)):
        problem = parse(f"cast n=1 h=1 w=1 c={len(given)} result={result} dtype={source}")
        folder = tmp_path / source
        folder.mkdir()
        emulated = Emulated(cast(source, result, vector), folder)
        y = emulated.run(problem, {"x": given.view(1, 1, 1, -1)}, (), {}, 1)["y"].flatten().float()
        if result == "f32":
            expected = given.float()
        elif form == "s8":
            expected = given.nan_to_num(0.0).round().clamp(-128, 127)
        else:
            expected = given.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.nan_to_num(1e9), expected.nan_to_num(1e9))


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_89", "sm_90"])
def test_kernels_in_e4m3_compile_for_the_gpus_that_have_it(target):
    need_compiler(target)
    arch, kernels = architecture(target.replace("_", "")), []
    for problem in map(parse, PROBLEMS):
        chosen = family(f"cuda_{problem.operator}")
        config = random.Random(str(problem)).choice(chosen.configs_for(problem, arch))
        kernels.append(Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, target))
    assert_exported(kernels)


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_casts_of_signed_bytes_compile_for_the_gpus_that_have_them(target):
    need_compiler(target)
    assert_exported([cast("f16", "s8", 8, "mul_scalar,relu", target), cast("s8", "f32", 4, "mul_scalar,add", target)])


@pytest.mark.parametrize("form", BYTE_FORMATS)
def test_only_units_with_bytes_include_their_header(form):
    """Units without them keep the digests that databases hold."""
    for source, result in (("f16", "s8"), ("s8", "f16"), ("f16", "e4m3"), ("e4m3", "f16"), ("f32", "f16")):
        text = rendering.unit([cast(source, result, 4)])
        assert (f'#include "common/{form}.cuh"' in text) == (form in (source, result))


def test_convolutions_of_signed_bytes_promote_no_sums():
    bytes_ = {**dict.fromkeys(("cluster_m", "cluster_n", "slices", "merge", "groups"), 1), "tile_m": 64, "tile_n": 32}
    bytes_ |= {"tile_k": 128, "schedule": "cooperative", "activations": "im2col", "weights": "streamed"}
    text = rendering.unit(
        [Kernel.of("sm90_conv2d", bytes_, "s8", parse("gemm m=1 n=1 k=1 dtype=s8").epilogue, "sm_90")]
    )
    assert "e4m3" not in text and "PromotedSum" not in text and "kPromote = 0;" in text
