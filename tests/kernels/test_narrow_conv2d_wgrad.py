"""The weight gradient for few input channels: its own text, run on a CPU."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import assert_not_serialized, need_compiler, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

FAMILY = family("cuda_narrow_conv2d_wgrad")
NAMES = ("instruction", "tile_k", "tile_q", "parts", "together", "stages", "resident")

# Strips that are full and not; one image a block and several; output channels and filter rows beyond the last.
CASES = {
    "7x7, stride 2": ("n=2 h=18 w=34 c=3 k=64 r=7 s=7 stride=2 pad=3", ("mma", 64, 32, 1, 1, 2, 1), "f16", ""),
    "7x7, stride 2, two rows": (
        "n=3 h=9 w=30 c=3 k=72 r=7 s=7 stride=2 pad=3",
        ("mma", 64, 16, 1, 2, 3, 1),
        "bf16",
        "",
    ),
    "7x7, four channels": (
        "n=1 h=11 w=21 c=4 k=24 r=7 s=7 stride=2 pad=3",
        ("mma", 32, 16, 1, 2, 4, 2),
        "f16",
        "mul_scalar",
    ),
    "5x5, parts": ("n=2 h=7 w=60 c=3 k=40 r=5 s=5 pad=2", ("mma", 64, 64, 2, 1, 2, 1), "f16", ""),
    "5x5, stride 2, one channel": (
        "n=2 h=12 w=120 c=1 k=32 r=5 s=5 stride=2 pad=2",
        ("mma", 32, 64, 4, 2, 4, 1),
        "bf16",
        "",
    ),
    "3x3, two channels": ("n=5 h=6 w=14 c=2 k=64 r=3 s=3 stride=2 pad=1", ("mma", 64, 16, 1, 1, 3, 2), "f16", "add"),
    "wgmma, 7x7": ("n=2 h=20 w=34 c=3 k=64 r=7 s=7 stride=2 pad=3", ("wgmma", 64, 32, 1, 1, 4, 1), "f16", ""),
    "wgmma, 7x7, parts": ("n=3 h=9 w=60 c=3 k=72 r=7 s=7 stride=2 pad=3", ("wgmma", 64, 32, 2, 1, 3, 1), "bf16", ""),
    "wgmma, 5x5, two channels": ("n=2 h=7 w=60 c=2 k=64 r=5 s=5 pad=2", ("wgmma", 64, 64, 3, 1, 2, 1), "f16", "scale"),
    "3x3": ("n=4 h=5 w=20 c=3 k=16 r=3 s=3 pad=1", ("mma", 32, 32, 2, 2, 2, 1), "f16", "scale"),
}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_gradient(case, tmp_path):
    text, values, dtype, epilogue = CASES[case]
    problem = parse(f"conv2d_wgrad {text} dtype={dtype} epilogue={epilogue or 'none'}")
    arch = architecture("sm90" if values[0] == "wgmma" else "sm80")
    assert FAMILY.why_not_served(problem, arch) is None
    config = dict(zip(NAMES, values, strict=True)) | {
        "filter": problem.r,
        "stride": problem.stride[0],
        "channels": problem.c,
    }
    assert config in FAMILY.configs_for(problem, arch)
    tensors, scalars = random_inputs(problem)
    kernel = Emulated(Kernel.of(FAMILY.name, config, dtype, problem.epilogue, arch.name.replace("sm", "sm_")), tmp_path)
    expected = solve(problem, tensors, scalars)["y"]
    launches = FAMILY.launches(problem, config, arch)
    assert all(0 < kernel.shared_bytes(problem, launch) <= arch.block_shared for launch in launches)
    for seed, blocks in enumerate((1, 3, launches[0]["blocks"])):  # one; a group; several groups
        found = kernel.run(problem, tensors, scalars, {"blocks": blocks}, 1, seed)["y"]
        assert relative_error(found, expected) < (8e-3 if dtype == "bf16" else 1e-3), blocks


@pytest.mark.compile
def test_the_products_overlap(tmp_path):
    config = dict(zip(NAMES, ("wgmma", 64, 112, 2, 1, 4, 1), strict=True)) | {"filter": 7, "stride": 2, "channels": 3}
    kernel = Kernel.of(FAMILY.name, config, "f16", Epilogue(), "sm_90")
    assert_not_serialized(need_compiler("sm_90", nvcc=True), kernel, tmp_path)
