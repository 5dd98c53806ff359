"""Kernels in e4m3 on a GPU that are not convolutions: their own text, run on a CPU and compiled for GPUs that have it.

On a CPU the conversions are those of cuda_fp8.h for hosts; tests/gpu/test_gpu_precision.py runs the GPU's instructions.
"""

import random

import pytest
import torch
from comparison import assert_bytes_are_right, relative_error
from emulator import Emulated
from kernels import assert_exported, need_compiler, random_inputs
from reference import solve

from autotune.codegen import rendering
from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, parse

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
    emulated = Emulated(Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    tensors, scalars = random_inputs(problem)
    scalars = spread_scalars(problem, scalars)
    found = emulated.run(problem, tensors, scalars, chosen.launches(problem, config, SM90)[0], 1)
    for name, value in solve(problem, tensors, scalars).items():
        if problem.output_dtype in BYTE_FORMATS:
            assert found[name].dtype == torch.float8_e4m3fn
            assert_bytes_are_right(found[name], value, name)
        else:
            assert relative_error(found[name], value) < {"f16": 1e-3, "f32": 4e-6}[problem.output_dtype]


@pytest.mark.compile
@pytest.mark.parametrize("block", [1, 16])
def test_all_numbers_are_converted(block, tmp_path):
    """The single bytes of `from_float`, and the words that a Pack is converted in."""
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    finite = every[~every.float().isnan()].float()
    ties = (finite.sort().values[1:] + finite.sort().values[:-1]) / 2
    values = torch.cat([finite, ties, torch.tensor([449.0, -1e9, float("inf"), -float("inf")])])
    values = torch.cat([values, torch.zeros(-len(values) % 16)])
    for given, source, result in ((every, "e4m3", "f32"), (values, "f32", "e4m3")):
        problem = parse(f"cast n=1 h=1 w=1 c={len(given)} result={result} dtype={source}")
        vector = min(block, 4)  # of float32 in an access
        config = {"result": result, "vector": vector, "items": 1, "threads": 64}
        assert family("cuda_cast").why_illegal(config, SM90, source, problem.epilogue) is None
        folder = tmp_path / source
        folder.mkdir()
        emulated = Emulated(Kernel.of("cuda_cast", config, source, problem.epilogue, "sm_90"), folder)
        y = emulated.run(problem, {"x": given.view(1, 1, 1, -1)}, (), {}, 1)["y"].flatten()
        expected = given.float() if result == "f32" else given.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        assert torch.equal(y.float().nan_to_num(1e9), expected.nan_to_num(1e9))


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_89", "sm_90"])
def test_kernels_compile_for_the_gpus_that_have_it(target):
    need_compiler(target)
    arch, kernels = architecture(target.replace("_", "")), []
    for problem in map(parse, PROBLEMS):
        chosen = family(f"cuda_{problem.operator}")
        config = random.Random(str(problem)).choice(chosen.configs_for(problem, arch))
        kernels.append(Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, target))
    assert_exported(kernels)


def test_only_units_with_the_type_include_its_header():
    """Units without it keep the digests that databases hold."""
    header = '#include "common/e4m3.cuh"'
    for result, dtype, included in (("e4m3", "f16", True), ("f16", "e4m3", True), ("s8", "f16", False)):
        config = {"result": result, "vector": 8, "items": 1, "threads": 64}
        kernel = Kernel.of(
            "cuda_cast", config, dtype, parse(f"cast n=1 h=1 w=1 c=8 result={result} dtype={dtype}").epilogue, "sm_90"
        )
        assert (header in rendering.unit([kernel])) == included
    bytes_ = {**dict.fromkeys(("cluster_m", "cluster_n", "slices", "merge", "groups"), 1), "tile_m": 64, "tile_n": 32}
    bytes_ |= {"tile_k": 128, "schedule": "cooperative", "activations": "im2col", "weights": "streamed"}
    text = rendering.unit(
        [Kernel.of("sm90_conv2d", bytes_, "s8", parse("gemm m=1 n=1 k=1 dtype=s8").epilogue, "sm_90")]
    )
    assert "e4m3" not in text and "promote" not in text.lower()
