"""The Hopper weight gradient as one matrix product: its own text, run on a CPU."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import assert_not_serialized, need_compiler, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM90, FAMILY = architecture("sm90"), family("sm90_im2col_wgrad")
PLAIN = {"tile_k": 64, "tile_n": 64, "groups": 1, "slices": 1, "cluster_k": 1, "cluster_n": 1}

CASES = {
    "one tile": (PLAIN, "n=5 h=9 w=7 c=64 k=64"),
    "two warpgroups, wide columns": (PLAIN | {"tile_k": 128, "tile_n": 256, "groups": 2}, "n=3 h=8 w=13 c=264 k=136"),
    "several blocks of a warpgroup": (PLAIN | {"tile_k": 256, "groups": 2}, "n=2 h=11 w=12 c=40 k=200"),
    "three warpgroups": (PLAIN | {"tile_k": 192, "tile_n": 128, "groups": 3}, "n=4 h=7 w=7 c=128 k=192"),
    "3x3, tiles of several taps": (PLAIN | {"tile_n": 192}, "n=3 h=9 w=11 c=40 k=64 r=3 s=3 pad=1"),
    "3x3, stride 2": (PLAIN | {"tile_n": 128}, "n=9 h=8 w=7 c=136 k=72 r=3 s=3 pad=1 stride=2"),
    "3x2, dilation, a cluster": (
        PLAIN | {"tile_k": 128, "tile_n": 256, "groups": 2, "slices": 2},
        "n=9 h=10 w=9 c=64 k=104 r=3 s=2 pad=2,1 stride=1,2 dilation=2",
    ),
    "1x1, stride 2": (PLAIN, "n=7 h=9 w=10 c=64 k=64 stride=2"),
    "a cluster": (PLAIN | {"slices": 4}, "n=7 h=10 w=11 c=72 k=24"),
    "two tiles share x": (PLAIN | {"tile_n": 128, "cluster_k": 2}, "n=7 h=9 w=7 c=96 k=104"),
    "four tiles share x, two split the pixels": (
        PLAIN | {"tile_n": 256, "cluster_k": 4, "slices": 2},
        "n=5 h=10 w=9 c=64 k=232 r=2 s=2 pad=1",
    ),
    "two tiles share dy": (
        PLAIN | {"tile_k": 128, "groups": 2, "cluster_n": 2, "slices": 2},
        "n=30 h=9 w=9 c=64 k=128 r=2 s=3 stride=2",
    ),
    "a cluster of eight": (PLAIN | {"tile_k": 128, "slices": 8}, "n=9 h=9 w=9 c=64 k=128"),
}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_gradient(case, tmp_path):
    config, text = CASES[case]
    dtype, epilogue = ("bf16", "epilogue=mul_scalar,add") if "cluster" in case else ("f16", "")
    problem = parse(f"conv2d_wgrad {text} dtype={dtype} {epilogue}")
    assert FAMILY.why_not_served(problem, SM90) is None
    assert config in FAMILY.configs_for(problem, SM90)
    tensors, scalars = random_inputs(problem)
    kernel = Emulated(Kernel.of(FAMILY.name, config, dtype, problem.epilogue, "sm_90"), tmp_path)
    expected = solve(problem, tensors, scalars)["y"]
    launches = FAMILY.launches(problem, config, SM90)
    cluster = config["slices"] * config["cluster_k"] * config["cluster_n"]
    assert all(0 < kernel.shared_bytes(problem, launch) <= SM90.block_shared for launch in launches)
    alone = {"slots": 2, "splits": 1}
    for seed, launch in enumerate(
        [*launches, alone] if config["slices"] == 8 else [*launches, alone, alone | {"splits": 3}]
    ):
        found = kernel.run(problem, tensors, scalars, launch, cluster, seed)["y"]
        assert relative_error(found, expected) < 1e-2, launch


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n=2 h=8 w=8 c=60 k=64", "multiples of 8"),
        ("n=2 h=8 w=8 c=64 k=64 groups=2", "groups must be 1"),
    ],
    ids=["channels", "groups"],
)
def test_what_it_does_not_solve_is_said(text, words):
    assert words in FAMILY.why_not_served(parse(f"conv2d_wgrad {text} dtype=f16"), SM90)


@pytest.mark.compile
@pytest.mark.parametrize(
    "config", [PLAIN, PLAIN | {"tile_k": 128, "tile_n": 256, "groups": 2, "slices": 2, "cluster_k": 2}]
)
def test_the_products_overlap(config, tmp_path):
    kernel = Kernel.of(FAMILY.name, config, "f16", Epilogue(), "sm_90")
    assert_not_serialized(need_compiler("sm_90", nvcc=True), kernel, tmp_path)
