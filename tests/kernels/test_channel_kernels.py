"""CUDA kernels that normalize and move pixels: their own text, run on a CPU."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda import group_norm
from autotune.ir import parse

SM90 = architecture("sm90")
LIMIT = {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}
# Per family: problems, the config of the kernel, and its launch values.
CASES = {
    "layer_norm: a warp's part, last block": (
        "cuda_layer_norm",
        "layer_norm n=1 h=3 w=7 c=96 dtype=f16 epilogue=scale,bias",
        {"vector": 8, "items": 3, "lanes": 4, "threads": 128},
    ),
    "layer_norm: idle lanes": (
        "cuda_layer_norm",
        "layer_norm n=2 h=3 w=5 c=88 dtype=bf16 epilogue=scale,bias,gelu,add",
        {"vector": 8, "items": 1, "lanes": 16, "threads": 128},
    ),
    "layer_norm: several warps a pixel": (
        "cuda_layer_norm",
        "layer_norm n=1 h=1 w=3 c=4096 dtype=f32 epilogue=scale,bias",
        {"vector": 4, "items": 16, "lanes": 64, "threads": 128},
    ),
    "softmax": (
        "cuda_softmax",
        "softmax n=1 h=5 w=5 c=21 dtype=f32 epilogue=mul_scalar",
        {"vector": 1, "items": 1, "lanes": 32, "threads": 128},
    ),
    "group_norm: one group": (
        "cuda_group_norm",
        "group_norm n=2 h=5 w=3 c=40 groups=1 dtype=f16 epilogue=scale,bias,silu",
        {"vector": 8, "threads": 128},
    ),
    "group_norm: more vectors than threads": (
        "cuda_group_norm",
        "group_norm n=1 h=2 w=3 c=392 groups=2 dtype=f32 epilogue=scale,bias",
        {"vector": 1, "threads": 128},
    ),
    "group_norm: groups narrower than a vector": (
        "cuda_group_norm",
        "group_norm n=2 h=6 w=5 c=96 groups=32 dtype=f16 epilogue=bias,add,relu",
        {"vector": 8, "threads": 128},
    ),
    "depth_to_space": (
        "cuda_depth_to_space",
        "depth_to_space n=2 h=3 w=2 c=24 block=2,3 dtype=f16 epilogue=bias,relu,add",
        {"vector": 8, "flat": 0, "threads": 128},
    ),
    "depth_to_space: torch's order": (
        "cuda_depth_to_space",
        "depth_to_space n=1 h=3 w=5 c=8 block=2 inner=1 dtype=f32 epilogue=scale",
        {"vector": 4, "flat": 0, "threads": 128},
    ),
    "depth_to_space: few channels": (
        "cuda_depth_to_space",
        "depth_to_space n=1 h=3 w=4 c=3 block=3,2 inner=1 dtype=f16 epilogue=bias",
        {"vector": 8, "flat": 1, "threads": 128},
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize(("name", "text", "config"), CASES.values(), ids=CASES)
def test_the_kernels_text_solves_the_problem(name, text, config, tmp_path):
    problem, found = parse(text), family(name)
    assert config in found.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)
    for seed, launch in enumerate(found.launches(problem, config, SM90)):
        for output, value in emulated.run(problem, tensors, scalars, launch, 1, seed).items():
            assert relative_error(value, expected[output]) < LIMIT[problem.dtype], f"{output} {launch}"


@pytest.mark.compile
def test_the_count_of_shared_memory_is_the_kernels(tmp_path):
    found = family("cuda_group_norm")
    problem = parse("group_norm n=1 h=9 w=7 c=36 groups=12 dtype=f32")
    kernel = Kernel.of(found.name, {"vector": 4, "threads": 128}, "f32", problem.epilogue, "sm_90")
    emulated = Emulated(kernel, tmp_path)
    for launch in found.launches(problem, kernel.values, SM90):
        counted = group_norm.shared_bytes(problem, kernel.values, launch)
        assert emulated.shared_bytes(problem, launch) == counted
    assert emulated.refusal(problem, {"together": 5, "hold": 0}) == "groups must be a multiple of the groups of a block"
