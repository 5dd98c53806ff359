"""A network's first layer and block in one kernel: its text on a CPU; what the family says."""

import pytest
from comparison import assert_right
from emulator import Emulated
from kernels import proposed, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import family
from autotune.ir import parse

SM90, FAMILY = architecture("sm90"), family("sm90_strip_se_block")
TEXT = "stem_se_block n={n} h={h} w={w} c={c} k={k} block={block} hidden={hidden} dtype={dtype} epilogue={chain}"
NETWORKS = (
    "relu,keep,add_scalar,conv,add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,add_kept,relu,add_scalar"
)
WHOLE = {"n": 3, "h": 64, "w": 64, "c": 3, "k": 64, "block": 4, "hidden": 4, "dtype": "f16", "chain": NETWORKS}
# One strip or several; an image of another height than width; a block that has no image.
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
@pytest.mark.parametrize(("sizes", "config", "grids"), STRIPS.values(), ids=STRIPS)
def test_the_kernels_text_computes_the_block(sizes, config, grids, tmp_path):
    pool = sizes.get("pool", 0)
    problem = parse(TEXT.format(**sizes).replace("stem_se_block", "stem_se_block_pool" if pool else "stem_se_block"))
    config = {"height": problem.behind.h, "width": problem.behind.w, "image": problem.c, **config, "pool": pool}
    emulated = Emulated(proposed(FAMILY.name, problem, config, SM90), tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)
    for order, (grid, taps) in enumerate((grid, taps) for grid in grids for taps in (9, 0)):  # TMA late, and at once
        launch = {"grid": grid, "early_taps": taps, "channels_last": order % 2}
        given = dict(tensors)
        if launch["channels_last"]:
            given["x"] = tensors["x"].permute(0, 2, 3, 1).contiguous()
        found = emulated.run(problem, given, scalars, launch, config["cluster"], order)
        assert_right(found, expected, problem.dtype, launch)
    for launch in FAMILY.launches(problem, config, SM90):
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
    ["add,keep,conv,conv,gate,add_kept", "keep,conv,conv,gate,store,add_kept", "keep,conv,conv,gate,add_kept,add"],
)
def test_no_step_reads_or_writes_a_tensor(chain):
    assert FAMILY.configs_for(parse(TEXT.format(**WHOLE | {"chain": chain})), SM90) == []


def test_more_images_than_multiprocessors_are_dealt_to_blocks_that_stay():
    problem = parse(TEXT.format(**WHOLE | {"n": 300}))
    configs = FAMILY.configs_for(problem, SM90)
    assert {config["cluster"] for config in configs} == {1, 2, 4}
    for config in configs:
        assert config["image"] == 3 and config["pool"] == 0
        launches = FAMILY.launches(problem, config, SM90)
        assert {launch["grid"] for launch in launches} == {0, SM90.processors_for(int(config["cluster"]))}
        assert {launch["channels_last"] for launch in launches} == {0}
