"""Conversions of signed bytes in CUDA kernels, in words of four and one by one.

On a CPU the kernel's text runs with the conversions for hosts; tests/gpu/test_gpu_precision.py runs the GPU's
instructions.
"""

import pytest
import torch
from emulator import Emulated
from kernels import assert_exported, need_compiler

from autotune.codegen import rendering
from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse


def cast(source, result, vector, epilogue="none", target="sm_90"):
    config = {"result": result, "vector": vector, "items": 1, "threads": 64}
    chain = Epilogue.parse(epilogue)
    arch = architecture(target.replace("_", ""))
    assert family("cuda_cast").why_illegal(config, arch, source, chain) is None
    return Kernel.of("cuda_cast", config, source, chain, target)


@pytest.mark.compile
@pytest.mark.parametrize("vector", [1, 4])
def test_all_numbers_are_converted(vector, tmp_path):
    every = torch.arange(-128, 128).to(torch.int8)
    infinity, odd = float("inf"), float("nan")
    outside = torch.tensor([127.5, 128.0, -128.5, -129.0, 1e9, -1e9, 3e38, infinity, -infinity, odd, -0.0, 1e-30])
    values = torch.cat([every.float(), torch.arange(-130, 130) + 0.5, outside])
    values = torch.cat([values, torch.zeros(-len(values) % 16)])
    for given, source, result in ((every, "s8", "f32"), (values, "f32", "s8")):
        problem = parse(f"cast n=1 h=1 w=1 c={len(given)} result={result} dtype={source}")
        folder = tmp_path / source
        folder.mkdir()
        emulated = Emulated(cast(source, result, vector), folder)
        y = emulated.run(problem, {"x": given.view(1, 1, 1, -1)}, (), {}, 1)["y"].flatten()
        expected = given.float() if result == "f32" else given.nan_to_num(0.0).round().clamp(-128, 127)
        assert torch.equal(y.float(), expected)


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_kernels_compile_for_the_gpus_that_have_them(target):
    need_compiler(target)
    assert_exported([cast("f16", "s8", 8, "mul_scalar,relu", target), cast("s8", "f32", 4, "mul_scalar,add", target)])


def test_only_units_with_bytes_include_their_header():
    """Units without them keep the digests that databases hold."""
    for source, result in (("f16", "s8"), ("s8", "f16"), ("f32", "f16")):
        text = rendering.unit([cast(source, result, 4)])
        assert ("common/s8.cuh" in text) == ("s8" in (source, result))
