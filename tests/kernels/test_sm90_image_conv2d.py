"""The kernel of small images for Hopper, its own text, run on a CPU."""

import pytest
from comparison import assert_right
from emulator import Emulated
from kernels import assert_not_serialized, fitting, random_inputs, spread_inputs
from promotion import assert_inexact_sums_are_promoted, bytes_off
from reference import solve
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, Epilogue, parse, sum_error

pytestmark = pytest.mark.compile

SM90, FAMILY, E4M3 = architecture("sm90"), family("sm90_image_conv2d"), family("sm90_e4m3_image_conv2d")
SMALL = {"image": "warps", "hidden": 0, "stride": 1, "tile_n": 32, "peers": 1}

CASES = table_of(__file__)["cases"]
"""Case -> what differs in the config, and the problem."""


@pytest.mark.daily(2)
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_convolution(case, tmp_path):
    _compare(FAMILY, SMALL | CASES[case][0], CASES[case][1], tmp_path)


PROMOTED = {
    "bytes": 0,
    "bytes, wide tiles, shared weights": 0,
    "bytes, stride 2, two owners": 1,
    "bytes, an image of fewer pixels than a tile": 2,
    "bytes, some images in most of a tile": 1,
    "bytes, one pixel, few channels": 4,
}
"""Case of signed bytes -> `promote` in e4m3."""


@pytest.mark.daily(2)
@pytest.mark.parametrize("case", PROMOTED)
def test_the_kernels_text_computes_the_convolution_in_e4m3(case, tmp_path):
    config, text = CASES[case]
    text = text.replace("dtype=s8", "dtype=e4m3")
    _compare(E4M3, SMALL | config | {"tile_k": 128, "promote": PROMOTED[case]}, text, tmp_path)


def _compare(chosen, config, text, folder):
    """Compare a kernel's results with the reference's, for few and for many buffers for weights."""
    problem = parse(text)
    emulated = Emulated(fitting(chosen.name, problem, config, SM90), folder)
    tensors, scalars = (spread_inputs if problem.dtype in BYTE_FORMATS else random_inputs)(problem)
    wanted, of_sums = solve(problem, tensors, scalars), sum_error(problem, config)
    most = max(launch["weight_slots"] for launch in chosen.launches(problem, config, SM90))
    for slots, seed in ((2, 0), (most, 1)):  # transfers late, and at once
        found = emulated.run(problem, tensors, scalars, {"weight_slots": slots}, config["peers"], seed)
        assert_right(found, wanted, problem.dtype, f"{slots} slots, seed {seed}", 2e-5 + of_sums)


@pytest.mark.parametrize(
    ("config", "text", "slot"),
    [
        (*CASES["a projection"], 20_544),
        ({"tile_n": 128}, "conv2d n=5 h=7 w=7 c=1024 k=128 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias", 16_400),
    ],
    ids=["a projection", "bytes"],
)
def test_shared_memory_is_what_the_launches_take_it_for(config, text, slot, tmp_path):
    config, problem = SMALL | config, parse(text)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    most = max(launch["weight_slots"] for launch in FAMILY.launches(problem, config, SM90))
    shared = emulated.shared_bytes(problem, {"weight_slots": most})
    assert SM90.block_shared - 2 * slot < shared <= SM90.block_shared


@pytest.mark.parametrize("chain", ["bias,add,relu", "bias,gate,add,relu", "bias,gate,project,relu"])
@pytest.mark.parametrize(
    "config",
    [{"tile_n": 64, "peers": 2}, {"stride": 2, "tile_n": 128}, {"image": "rows", "stride": 2}],
    ids=["stride 1", "wide", "rows"],
)
def test_the_compiler_does_not_serialize_products(config, chain, tmp_path):
    gated = "gate" in chain
    config = SMALL | config | ({"hidden": 16} if gated else {"image": "warps"})
    kernel = Kernel.of(FAMILY.name, config, "f16", Epilogue.parse(chain), "sm_90")
    assert_not_serialized(kernel, tmp_path)


@pytest.mark.parametrize(
    "config",
    [{"tile_n": 64, "peers": 2}, {"stride": 2, "tile_n": 128}, {"peers": 4}],
    ids=["stride 1", "wide", "narrow"],
)
def test_the_compiler_does_not_serialize_products_of_bytes(config, tmp_path):
    epilogue = Epilogue.parse("scale,bias,add,relu,mul_scalar")
    assert_not_serialized(Kernel.of(FAMILY.name, SMALL | config, "s8", epilogue, "sm_90"), tmp_path)


@pytest.mark.parametrize(
    "config",
    [{"tile_n": 128, "promote": 0}, {"tile_n": 64, "peers": 2, "promote": 1}, {"stride": 2, "promote": 4}],
    ids=["wide", "each step", "narrow"],
)
def test_the_compiler_does_not_serialize_promoted_sums(config, tmp_path):
    epilogue = Epilogue.parse("scale,bias,add,relu,mul_scalar")
    config = SMALL | {"tile_k": 128} | config
    assert_not_serialized(Kernel.of(E4M3.name, config, "e4m3", epilogue, "sm_90"), tmp_path)


def test_promoted_sums_are_more_exact(tmp_path):
    problem = parse("conv2d n=4 h=4 w=4 c=768 k=32 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale")
    off = bytes_off(E4M3.name, SMALL | {"tile_k": 128}, problem, {"weight_slots": 4}, tmp_path)
    assert off[1] < off[0] / 2, off


def test_kernels_in_e4m3_have_the_tiles_of_bytes():
    """Promoted sums do not fit the registers of the widest tiles."""
    epilogue = Epilogue.parse("scale,bias,relu")
    of_bytes = {tuple(config.values()) for config in FAMILY.configs(SM90, "s8", epilogue)}
    found = {tuple(config.values()) for config in E4M3.configs(SM90, "e4m3", epilogue)}
    assert {config[:-2] for config in found if config[-1] == 0} == of_bytes
    for promote in (1, 2, 4):
        narrow = {config[:-2] for config in found if config[-1] == promote}
        assert narrow == {config for config in of_bytes if config[list(SMALL).index("tile_n")] < 128}
    wide = SMALL | {"tile_n": 128, "tile_k": 128, "promote": 1}
    reason = "a thread must have at most 96 sums, or spills; it has 128"
    assert E4M3.why_illegal(wide, SM90, "e4m3", epilogue) == reason
    gated = Epilogue.parse("scale,gate")
    assert E4M3.why_illegal(wide | {"hidden": 8}, SM90, "e4m3", gated) == "gates are not computed from bytes"


def test_sums_that_are_too_inexact_are_promoted():
    """The bound takes a sum for one of all steps, as if a single warpgroup added them."""
    config, few = SMALL | {"tile_k": 128}, parse("conv2d n=8 h=7 w=7 c=512 k=64 r=3 s=3 pad=1 dtype=e4m3")
    assert_inexact_sums_are_promoted(E4M3.name, config)
    assert len({E4M3.cost(few, config | {"promote": often}, SM90) for often in (1, 2, 4, 0)}) == 4


def test_problems_of_bytes_that_no_kernel_solves_are_refused_with_a_reason():
    plain = "conv2d n={n} h={h} w={h} c={c} k=64 r=3 s=3 pad=1 dtype={dtype} epilogue=scale,bias"
    sizes = {"n": 5, "h": 7, "c": 144, "dtype": "s8"}

    def refusal(**others):
        return FAMILY.why_not_served(parse(plain.format(**sizes | others)), SM90)

    assert refusal() is None
    assert refusal(c=136) == "c must be a multiple of 16, and k of 8"
    assert refusal(c=136, dtype="f16") == "the pixels of an output image must divide 64"
    assert refusal(h=14) == "an output image must have at most 64 pixels; it has 196"
    assert refusal(c=16384).endswith("so that no sum overflows int32")
    gated = parse("conv2d_folded_se n=5 h=4 w=4 c=64 k=64 hidden=4 r=3 s=3 pad=1 dtype=s8 epilogue=scale,gate")
    assert FAMILY.why_not_served(gated, SM90) == "gates are not computed from bytes"
    config = SMALL | {"hidden": 8}
    assert FAMILY.why_illegal(config, SM90, "s8", gated.epilogue) == "gates are not computed from bytes"


def test_a_tile_of_bytes_has_as_many_whole_images_as_fit():
    """So that peers are no more than tiles: 5 images of 49 pixels are 5 tiles, of 20 pixels 2."""
    text = "conv2d n=5 h={} w={} c=64 k=64 r=3 s=3 pad=1 dtype=s8 epilogue=scale"
    for sides, tiles in (((7, 7), 5), ((4, 5), 2), ((8, 8), 5)):
        problem = parse(text.format(*sides))
        why = {peers: FAMILY.why_unfit(problem, SMALL | {"peers": peers}, SM90) for peers in (1, 2, 4)}
        assert {peers for peers in why if why[peers] is None} == {peers for peers in why if peers <= tiles}
