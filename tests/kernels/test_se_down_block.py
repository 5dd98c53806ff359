"""Blocks that halve their image, in one kernel: its own text on a CPU, and what the family says of it."""

import pytest
from comparison import assert_right
from emulator import Emulated
from kernels import proposed, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import family
from autotune.ir import parse

SM90, FAMILY = architecture("sm90"), family("sm90_se_down_block")
BLOCK = "se_down_block n={n} h={h} w={w} c={c} k={k} hidden={hidden} dtype={dtype} epilogue={chain}"
NETWORKS = "add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,project,relu,add_scalar"
EVERY_KIND = "bias,silu,conv,scale,gate,bias,project,add,store,relu"
# Tiles of one image or several, the last not full; blocks of a cluster that share a tile, or the weights, or both.
CASES = [
    (
        {"tile_n": 128, "parts": 1, "peers": 2},
        "f16",
        NETWORKS,
        [
            {"n": 3, "h": 16, "w": 16, "c": 64, "k": 128, "hidden": 8},
            {"n": 5, "h": 8, "w": 15, "c": 128, "k": 128, "hidden": 4},
        ],
    ),
    (
        {"tile_n": 64, "parts": 4, "peers": 2},
        "bf16",
        EVERY_KIND,
        [{"n": 5, "h": 8, "w": 8, "c": 128, "k": 256, "hidden": 16}],
    ),
]


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize(("config", "dtype", "chain", "sizes"), CASES, ids=["peers", "parts"])
def test_the_kernels_text_computes_the_block(config, dtype, chain, sizes, tmp_path):
    for seed, size in enumerate(sizes):
        problem = parse(BLOCK.format(**size, dtype=dtype, chain=chain))
        config = {**config, "out_h": problem.p, "out_w": problem.q}
        folder = tmp_path / str(seed)  # a library of the same path would not be loaded again
        folder.mkdir()
        emulated = Emulated(proposed(FAMILY.name, problem, config, SM90), folder)
        tensors, scalars = random_inputs(problem, seed)
        launches = FAMILY.launches(problem, config, SM90)
        least = min(launches, key=lambda launch: tuple(launch.values()))
        expected = solve(problem, tensors, scalars)
        for order in (0, 1):  # TMA late, and at once
            found = emulated.run(problem, tensors, scalars, least, config["parts"] * config["peers"], order)
            assert_right(found, expected, dtype, f"{problem}, order {order}")
        for launch in launches:
            assert emulated.shared_bytes(problem, launch) > 0, f"{problem} {launch} is refused"


@pytest.mark.parametrize(
    "change",
    [{"h": 17}, {"h": 4, "w": 4}, {"c": 72}, {"k": 96}, {"k": 512}, {"hidden": 6}, {"hidden": 68}, {"dtype": "f32"}],
)
def test_what_it_has_no_kernels_for_is_refused(change):
    whole = {"n": 128, "h": 16, "w": 16, "c": 64, "k": 128, "hidden": 8, "dtype": "f16", "chain": NETWORKS}
    assert FAMILY.why_not_served(parse(BLOCK.format(**whole)), SM90) is None
    assert FAMILY.why_not_served(parse(BLOCK.format(**whole | change)), SM90)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"n": 128, "h": 16, "w": 16, "c": 64, "k": 128, "hidden": 8}, {(128, 1), (64, 2)}),
        ({"n": 128, "h": 8, "w": 8, "c": 128, "k": 256, "hidden": 16}, {(128, 2), (64, 4)}),
        ({"n": 128, "h": 8, "w": 8, "c": 320, "k": 256, "hidden": 16}, {(128, 2)}),
    ],
)
def test_channels_are_dealt_to_the_blocks_of_a_cluster(sizes, parts):
    problem = parse(BLOCK.format(**sizes, dtype="f16", chain=NETWORKS))
    configs = FAMILY.configs_for(problem, SM90)
    assert {(config["tile_n"], config["parts"]) for config in configs} == parts
    assert all(config["parts"] * config["peers"] <= 8 for config in configs)
    one = parse(BLOCK.format(**sizes | {"n": 1}, dtype="f16", chain=NETWORKS))
    assert {config["peers"] for config in FAMILY.configs_for(one, SM90)} == {1}


@pytest.mark.parametrize("chain", ["add,conv,gate,project", "conv,store,gate,project", "conv,gate,add,project"])
def test_nothing_but_the_last_part_is_at_pixels(chain):
    sizes = {"n": 128, "h": 16, "w": 16, "c": 64, "k": 128, "hidden": 8}
    assert FAMILY.configs_for(parse(BLOCK.format(**sizes, dtype="f16", chain=chain)), SM90) == []
