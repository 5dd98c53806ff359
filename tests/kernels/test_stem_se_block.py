"""A network's first layer and block in one kernel, and a block alone: their text on a CPU; what the family says."""

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

SM90, FAMILY = architecture("sm90"), family("sm90_stem_se_block")
TEXT = "stem_se_block n={n} h={h} w={w} c={c} k={k} block={block} hidden={hidden} dtype={dtype} epilogue={chain}"
NETWORKS = (
    "relu,keep,add_scalar,conv,add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,add_kept,relu,add_scalar"
)
EVERY_KIND = "bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,add,store,relu"
BLOCK = "se_block n={n} h={h} w={w} c={c} hidden={hidden} dtype={dtype} epilogue={chain}"
# The whole, apart from the order of its sums, is as exact as its values between the convolutions and its output.
LIMIT = {"f16": 1e-3, "bf16": 8e-3}

WHOLE = {"n": 3, "h": 64, "w": 64, "c": 3, "k": 64, "block": 4, "hidden": 4, "dtype": "f16", "chain": NETWORKS}
# One image a tile or several, the last tile not full; more tiles than blocks; a cluster with a block that has no tile.
CASES = {
    "network": (TEXT, WHOLE, {"tile_m": 256, "groups": 4, "cluster": 1}, (0, 2)),
    "depth": (TEXT, {**WHOLE, "c": 1, "dtype": "bf16"}, {"tile_m": 256, "groups": 4, "cluster": 2}, (0, 2)),
    "small": (
        TEXT,
        {**WHOLE, "n": 7, "h": 32, "w": 32, "c": 2, "k": 32, "hidden": 8, "dtype": "bf16", "chain": EVERY_KIND},
        {"tile_m": 256, "groups": 2, "cluster": 2},
        (0, 2),
    ),
    "wide": (
        TEXT,
        {**WHOLE, "h": 32, "c": 4, "chain": EVERY_KIND},
        {"tile_m": 128, "groups": 2, "cluster": 1},
        (1,),
    ),
    "no stem": (
        BLOCK,
        {"n": 5, "h": 8, "w": 16, "c": 64, "hidden": 4, "dtype": "f16", "chain": "relu,conv,bias,gate,add,relu"},
        {"tile_m": 128, "groups": 2, "cluster": 2},
        (0, 2),
    ),
}


# The same by strips: one strip or several; an image of another height than width; a block that has no image.
NO_TENSORS = "bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,relu"
STRIPS = {
    "network": (WHOLE, {"cluster": 1}, (0, 2)),
    "flat": ({**WHOLE, "h": 32, "c": 2, "dtype": "bf16", "hidden": 12, "chain": NO_TENSORS}, {"cluster": 2}, (0, 2)),
    "high": ({**WHOLE, "n": 5, "h": 64, "w": 32, "c": 1, "hidden": 8}, {"cluster": 1}, (2,)),
    "pooled": ({**WHOLE, "n": 5, "h": 32, "hidden": 8, "chain": NO_TENSORS, "pool": 1}, {"cluster": 2}, (2,)),
    "pooled, one strip": ({**WHOLE, "n": 4, "w": 32, "c": 1, "dtype": "bf16", "pool": 1}, {"cluster": 1}, (1, 0)),
}


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "sizes", "config", "grids"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_block(text, sizes, config, grids, tmp_path):
    problem = parse(text.format(**sizes))
    _, h, w, c = problem.output_shape
    stem = {"image": problem.c} if problem.operator == "stem_se_block" else {}
    config = {**config, "pixels": h * w, "channels": c, **stem}
    assert_solved(f"sm90_{problem.operator}", problem, config, grids, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize(("sizes", "config", "grids"), STRIPS.values(), ids=STRIPS)
def test_the_kernels_text_computes_the_block_by_strips(sizes, config, grids, tmp_path):
    pool = sizes.get("pool", 0)
    problem = parse(TEXT.format(**sizes).replace("stem_se_block", "stem_se_block_pool" if pool else "stem_se_block"))
    config = {"height": problem.behind.h, "width": problem.behind.w, "image": problem.c, **config, "pool": pool}
    assert_solved("sm90_strip_se_block", problem, config, grids, tmp_path)


def assert_solved(name, problem, config, grids, folder):
    """That a kernel solves a problem with so many blocks, on images in either order."""
    assert family(name).why_not_served(problem, SM90) is None and config in family(name).configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(name, config, problem.dtype, problem.epilogue, "sm_90"), folder)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)
    for order, (grid, taps) in enumerate((grid, taps) for grid in grids for taps in (9, 0)):  # TMA late, and at once
        launch = {"grid": grid, "early_taps": taps, "channels_last": order % 2}
        given = dict(tensors)
        if problem.operator.startswith("stem") and launch["channels_last"]:
            given["x"] = tensors["x"].permute(0, 2, 3, 1).contiguous()
        found = emulated.run(problem, given, scalars, launch, config["cluster"], order)
        for output, value in expected.items():
            assert relative_error(found[output], value) < LIMIT[problem.dtype], f"{output}, {launch}"
    for launch in family(name).launches(problem, config, SM90):
        assert emulated.shared_bytes(problem, launch) > 0, f"{launch} is refused"


@pytest.mark.parametrize(
    "change",
    [{"h": 48}, {"h": 128}, {"c": 5}, {"k": 128}, {"block": 2}, {"block": 8}, {"hidden": 6}, {"dtype": "f32"}],
)
def test_what_it_has_no_kernels_for_is_refused(change):
    assert FAMILY.why_not_served(parse(TEXT.format(**WHOLE)), SM90) is None
    assert FAMILY.why_not_served(parse(TEXT.format(**WHOLE | change)), SM90)


@pytest.mark.parametrize(
    "chain",
    ["add,keep,conv,conv,gate,add_kept", "keep,store,conv,conv,gate,add_kept", "keep,conv,conv,gate,add,add_kept"],
)
def test_nothing_but_the_last_part_is_at_pixels(chain):
    assert FAMILY.configs_for(parse(TEXT.format(**WHOLE | {"chain": chain})), SM90) == []


def test_more_tiles_than_multiprocessors_are_dealt_to_blocks_that_stay():
    problem = parse(TEXT.format(**WHOLE | {"n": 300}))
    for config in FAMILY.configs_for(problem, SM90):
        assert config["image"] == 3 and config["tile_m"] == 256
        launches = FAMILY.launches(problem, config, SM90)
        assert {launch["grid"] for launch in launches} == {0, SM90.processors_for(int(config["cluster"]))}
        assert {launch["channels_last"] for launch in launches} == {0}
