"""Rules and launches of the family sm90_se_block."""

import pytest

from autotune.core import architecture
from autotune.families import family
from autotune.ir import (
    parse,
)

BLOCK = "se_block n={n} h={h} w={w} c={c} hidden={hidden} dtype={dtype} epilogue={chain},gate,add,relu"


WHOLE = {"n": 128, "h": 16, "w": 16, "c": 64, "hidden": 4, "dtype": "f16", "chain": "bias,relu,conv,bias"}


@pytest.mark.parametrize(
    ("change", "tiles"),
    [({}, {256}), ({"h": 8}, {128, 256}), ({"n": 3, "h": 8, "w": 8, "c": 32, "dtype": "bf16"}, {64, 128, 256})],
)
def test_a_block_takes_tiles_of_whole_images(change, tiles):
    chosen, sm90 = family("sm90_se_block"), architecture("sm90")
    problem = parse(BLOCK.format(**WHOLE | change))
    assert chosen.why_not_served(problem, sm90) is None
    configs = chosen.configs_for(problem, sm90)
    assert {config["tile_m"] for config in configs} == tiles
    assert {config["channels"] for config in configs} == {problem.c}
    assert all(problem.n * problem.h * problem.w > config["tile_m"] * (config["cluster"] - 1) for config in configs)


@pytest.mark.parametrize(
    "change", [{"h": 12}, {"h": 4, "w": 64}, {"h": 32}, {"c": 48}, {"c": 128}, {"hidden": 6}, {"dtype": "f32"}]
)
def test_a_block_that_does_not_fit_a_multiprocessor_is_refused(change):
    assert family("sm90_se_block").why_not_served(parse(BLOCK.format(**WHOLE | change)), architecture("sm90"))


@pytest.mark.parametrize("chain", ["add,conv", "conv,store"])
def test_nothing_but_the_last_part_of_a_block_is_at_pixels(chain):
    problem = parse(BLOCK.format(**WHOLE | {"chain": chain}))
    assert family("sm90_se_block").configs_for(problem, architecture("sm90")) == []


def test_more_tiles_than_multiprocessors_are_dealt_to_blocks_that_stay():
    chosen, sm90 = family("sm90_se_block"), architecture("sm90")
    problem = parse(BLOCK.format(**WHOLE | {"n": 300}))
    for config in chosen.configs_for(problem, sm90):
        grids = {launch["grid"] for launch in chosen.launches(problem, config, sm90)}
        assert grids == {0, sm90.processors_for(int(config["cluster"]))}
