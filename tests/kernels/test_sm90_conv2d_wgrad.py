"""The Hopper weight gradient: its own text, run on a CPU."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import assert_not_serialized, need_compiler, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM90, FAMILY = architecture("sm90"), family("sm90_conv2d_wgrad")
PLAIN = {
    "filter_rows": 1, "filter_columns": 1, "joined": 0, "tile_k": 64, "tile_c": 64, "images": 16, "slices": 1,
}  # fmt: skip
SQUARE = {"filter_rows": 3, "filter_columns": 3}

CASES = {
    "1x1, several channels": ({"tile_k": 128, "tile_c": 128}, "n=33 h=3 w=5 c=136 k=136 r=1 s=1"),
    "1x1, stride 2": ({"tile_c": 128, "images": 32}, "n=70 h=5 w=7 c=72 k=40 r=1 s=1 stride=2"),
    "3x3, joined": (SQUARE | {"joined": 1}, "n=20 h=6 w=5 c=40 k=72 r=3 s=3 pad=1"),
    "3x3, joined, stride 2": (SQUARE | {"joined": 1}, "n=17 h=9 w=8 c=64 k=64 r=3 s=3 pad=1 stride=2"),
    "3x3, skipped padding": (SQUARE, "n=33 h=2 w=2 c=72 k=64 r=3 s=3 pad=1"),
    "3x3, skipped padding, stride 2": (SQUARE | {"images": 32}, "n=40 h=4 w=4 c=64 k=72 r=3 s=3 pad=1 stride=2"),
    "3x3, dilation": (SQUARE, "n=16 h=9 w=7 c=64 k=64 r=3 s=3 pad=2 dilation=2"),
    "5x2, groups of taps": (
        SQUARE | {"filter_columns": 2, "joined": 1},
        "n=16 h=7 w=6 c=16 k=24 r=5 s=2 pad=2,1 stride=1,2",
    ),
    "5x5, a cluster": (SQUARE | {"slices": 2}, "n=31 h=6 w=5 c=64 k=16 r=5 s=5 pad=2"),
    "3x3, a cluster of eight": (SQUARE | {"joined": 1, "slices": 8}, "n=35 h=5 w=4 c=64 k=64 r=3 s=3 pad=1"),
}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_gradient(case, tmp_path):
    config, text = CASES[case]
    dtype, epilogue = ("bf16", "epilogue=mul_scalar,add") if "stride" in case else ("f16", "")
    problem = parse(f"conv2d_wgrad {text} dtype={dtype} {epilogue}")
    assert FAMILY.why_not_served(problem, SM90) is None
    config = PLAIN | config
    assert config in FAMILY.configs_for(problem, SM90)
    tensors, scalars = random_inputs(problem)
    kernel = Emulated(Kernel.of(FAMILY.name, config, dtype, problem.epilogue, "sm_90"), tmp_path)
    expected = solve(problem, tensors, scalars)["y"]
    launches = FAMILY.launches(problem, config, SM90)
    assert all(0 < kernel.shared_bytes(problem, launch) <= SM90.block_shared for launch in launches)
    span = (config["filter_rows"] - 1) * problem.dilation[0] // problem.stride[0] + 1
    slots = {"dy_slots": span + 1, "x_slots": 2 if config["filter_rows"] == 1 else problem.stride[0] + 1}
    tight = min(launches, key=lambda launch: launch["columns"]) | slots | {"splits": 1}
    for seed, launch in enumerate([*launches[:1], tight, tight | {"columns": 2, "splits": 3}, *launches[-1:]]):
        found = kernel.run(problem, tensors, scalars, launch, config["slices"], seed)["y"]
        assert relative_error(found, expected) < 1e-2, launch


@pytest.mark.compile
@pytest.mark.parametrize("config", [{"tile_k": 128, "tile_c": 256}, SQUARE, SQUARE | {"joined": 1}])
def test_the_products_overlap(config, tmp_path):
    kernel = Kernel.of(FAMILY.name, PLAIN | config, "f16", Epilogue(), "sm_90")
    assert_not_serialized(need_compiler("sm_90", nvcc=True), kernel, tmp_path)
