"""The Hopper input gradient of a strided convolution: its own text, run on a CPU."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import assert_not_serialized, need_compiler, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM90, FAMILY = architecture("sm90"), family("sm90_strided_dgrad")
PLAIN = {"tile_m": 64, "tile_n": 64, "groups": 1, "blocks": 1, "cluster_m": 1}

CASES = {
    "3x3": (PLAIN, "n=3 h=10 w=14 c=64 k=72 r=3 s=3 stride=2 pad=1"),
    "3x3, two warpgroups, odd image": (
        PLAIN | {"tile_m": 256, "groups": 2},
        "n=5 h=15 w=13 c=40 k=136 r=3 s=3 stride=2 pad=1",
    ),
    "3x3, fewer pixels than a tile": (
        PLAIN | {"tile_n": 96, "blocks": 3},
        "n=2 h=6 w=7 c=96 k=64 r=3 s=3 stride=2 pad=1",
    ),
    "1x1, phases without taps": (PLAIN | {"tile_n": 32}, "n=3 h=9 w=8 c=40 k=64 r=1 s=1 stride=2"),
    "7x5, along one axis": (PLAIN | {"tile_n": 32}, "n=1 h=17 w=12 c=24 k=16 r=7 s=5 stride=2,1 pad=3,2"),
    "2x4, no padding": (PLAIN | {"blocks": 2}, "n=2 h=8 w=11 c=64 k=64 r=2 s=4 stride=2"),
    "3x3, dilation 2": (PLAIN, "n=2 h=13 w=12 c=64 k=64 r=3 s=3 stride=2 pad=2 dilation=2"),
    "3x3, dilation 3": (PLAIN | {"tile_m": 128}, "n=2 h=12 w=17 c=64 k=40 r=3 s=3 stride=1,2 pad=3 dilation=3"),
    "3x3, a pair": (PLAIN | {"cluster_m": 2}, "n=3 h=10 w=14 c=72 k=136 r=3 s=3 stride=2 pad=1"),
    "2x2, a cluster of four, one without pixels of its own": (
        PLAIN | {"tile_n": 32, "blocks": 2, "cluster_m": 4},
        "n=7 h=14 w=12 c=40 k=64 r=2 s=2 stride=2",
    ),
    "one pixel": (PLAIN, "n=70 h=1 w=1 c=64 k=64 r=3 s=3 stride=2 pad=1"),
}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_gradient(case, tmp_path):
    config, text = CASES[case]
    dtype, epilogue = ("bf16", "epilogue=mul_scalar,add,relu") if "1x1" in case or "dilation" in case else ("f16", "")
    problem = parse(f"conv2d_dgrad {text} dtype={dtype} {epilogue}")
    assert FAMILY.why_not_served(problem, SM90) is None
    assert config in FAMILY.configs_for(problem, SM90)
    tensors, scalars = random_inputs(problem)
    kernel = Emulated(Kernel.of(FAMILY.name, config, dtype, problem.epilogue, "sm_90"), tmp_path)
    expected = solve(problem, tensors, scalars)["y"]
    launches = FAMILY.launches(problem, config, SM90)
    assert all(0 < kernel.shared_bytes(problem, launch) <= SM90.block_shared for launch in launches)
    for seed, launch in enumerate([*launches, {"slots": 2}]):
        found = kernel.run(problem, tensors, scalars, launch, config["cluster_m"], seed)["y"]
        assert relative_error(found, expected) < 1e-2, launch


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n=2 h=8 w=8 c=64 k=64 r=3 s=3 pad=1", "is a convolution"),
        ("n=2 h=9 w=9 c=64 k=64 r=3 s=3 stride=3", "stride must be at most 2"),
        ("n=2 h=8 w=8 c=60 k=64 r=3 s=3 stride=2 pad=1", "multiples of 8"),
        ("n=2 h=8 w=8 c=64 k=64 r=3 s=3 stride=2 pad=1 groups=2", "groups must be 1"),
    ],
    ids=["stride 1", "stride 3", "channels", "groups"],
)
def test_what_it_does_not_solve_is_said(text, words):
    assert words in FAMILY.why_not_served(parse(f"conv2d_dgrad {text} dtype=f16"), SM90)


@pytest.mark.compile
@pytest.mark.parametrize(
    "config", [PLAIN, PLAIN | {"tile_m": 128, "tile_n": 128, "groups": 2, "blocks": 2, "cluster_m": 2}]
)
def test_the_products_overlap(config, tmp_path):
    kernel = Kernel.of(FAMILY.name, config, "f16", Epilogue(), "sm_90")
    assert_not_serialized(need_compiler("sm_90", nvcc=True), kernel, tmp_path)
