"""Kernels whose products are those of every GPU from sm_80 on: their own text, run on a CPU."""

import dataclasses

import pytest
import torch
from comparison import LIMIT, assert_right, relative_error
from emulator import Emulated
from kernels import config_of, proposed, random_inputs, spread_inputs
from reference import solve
from reference_steps import run_chain

from autotune.core import architecture, round_up
from autotune.families import family
from autotune.ir import Epilogue, parse

pytestmark = pytest.mark.compile

SM80 = architecture("sm80")

# Rectangles of images and whole images, the last of them fewer; chunks that are not full; more chunks than patches;
# slices; taps together; filters and outputs beyond the last; a gate on images of 16 rows of a product and of fewer.
CONVOLUTIONS = {
    "rectangles": ("n=2 h=11 w=9 c=72 k=40 r=3 s=3 pad=1", (64, 32, 32, 32, 1, 1, 3), "bias,silu,add,store", 2),
    "stride and dilation": (
        "n=1 h=20 w=18 c=64 k=64 r=3 s=3 pad=2 stride=2 dilation=2",
        (64, 64, 32, 32, 1, 3, 2),
        "none",
        1,
    ),
    "images, slices": ("n=7 h=4 w=4 c=136 k=32 r=3 s=3 pad=1", (64, 32, 64, 32, 2, 3, 2), "bias,add,relu", 2),
    "images, all patches": ("n=3 h=8 w=8 c=200 k=72 r=2 s=2 stride=2", (64, 64, 32, 64, 4, 1, 3), "scale,relu", 4),
    "pointwise": ("n=2 h=5 w=13 c=96 k=24", (64, 32, 16, 32, 1, 1, 2), "relu,add_scalar", 2),
}
# The same in bytes: chunks of 128 channels, the last at most half full in all but two; filters of 1, 9 and 49 taps.
BYTES = {
    "rectangles": (
        "n=2 h=11 w=9 c=144 k=40 r=3 s=3 pad=1",
        (64, 32, 32, 32, 1, 1, 3),
        "scale,bias,add,mul_scalar,relu",
        2,
    ),
    "stride and dilation, slices": (
        "n=1 h=15 w=18 c=80 k=64 r=3 s=3 pad=2 stride=2 dilation=2",
        (64, 64, 32, 32, 1, 3, 2),
        "scale,bias,relu",
        1,
    ),
    "images, slices": ("n=5 h=4 w=4 c=272 k=32 r=3 s=3 pad=1", (64, 32, 64, 32, 2, 3, 2), "scale,add,store,relu", 2),
    "images, all patches": ("n=3 h=8 w=8 c=336 k=72 r=2 s=2 stride=2", (64, 64, 32, 64, 4, 1, 3), "scale,bias", 3),
    "pointwise": ("n=2 h=5 w=13 c=352 k=24", (64, 32, 16, 32, 1, 1, 2), "scale,add_scalar,mul_scalar", 2),
    "many taps": ("n=1 h=13 w=12 c=16 k=8 r=7 s=7 pad=3 stride=2", (64, 32, 32, 32, 1, 1, 4), "scale", 1),
}
GATED = {
    "16 x 16": ("n=2 h=16 w=16 c=40 k=64 r=3 s=3 pad=1 hidden=4", (256, 64, 64, 64, 2, 3, 2), "bias,gate,add,relu"),
    "4 x 2": ("n=11 h=4 w=2 c=64 k=56 r=3 s=3 pad=1 hidden=12", (64, 64, 32, 64, 2, 1, 2), "scale,gate,add,store"),
    "8 x 8": ("n=2 h=16 w=16 c=24 k=128 r=3 s=3 pad=1 stride=2 hidden=8", (64, 128, 32, 64, 1, 1, 4), "gate,relu"),
}
# An image of several warps' rows and of one's; channels in two tiles, the last not full; slices.
FOLDED = {
    "8 x 8": ("n=5 h=8 w=8 c=72 k=136 hidden=8", (8, 64, 64, 32, 32, 1, 3, 3), "f16", "bias,gate,add,relu"),
    "4 x 4": ("n=7 h=4 w=4 c=72 k=72 hidden=12", (16, 64, 64, 32, 32, 2, 1, 3), "bf16", "scale,bias,gate,add,store"),
    "16 x 16": ("n=2 h=16 w=16 c=64 k=64 hidden=4", (8, 256, 64, 64, 32, 1, 3, 3), "f16", "add_scalar,gate,add,relu"),
    "8 x 4": ("n=3 h=8 w=4 c=128 k=64 hidden=32", (32, 64, 64, 32, 64, 2, 1, 3), "f16", "gate,silu"),
}
# Channels that are not full; images of a tile, and fewer; an image of several warps.
BLOCKS = {
    "8 x 8": ("n=3 h=8 w=8 c=40 hidden=4", (128, 64, 32, 32, 3, 3), "f16", "bias,relu,conv,bias,gate,add,relu"),
    "16 x 16": ("n=2 h=16 w=16 c=64 hidden=8", (256, 64, 64, 32, 1, 4), "bf16", "silu,conv,gate,add,relu,store"),
    "4 x 8": ("n=1 h=4 w=8 c=24 hidden=12", (64, 32, 16, 32, 1, 2), "f16", "relu,add_scalar,conv,scale,gate"),
}
# The same with stride: an odd width; a chunk of inner values, and several.
DOWN_BLOCKS = {
    "network": (
        "n=2 h=16 w=16 c=64 k=128 hidden=8",
        (64, 128, 32, 32, 3, 2),
        "f16",
        "add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,project,relu,add_scalar",
    ),
    "some images a tile": (
        "n=7 h=8 w=7 c=40 k=136 hidden=12",
        (64, 256, 32, 64, 1, 2),
        "bf16",
        "bias,silu,conv,scale,gate,bias,project,add,store,relu",
    ),
    "few channels": ("n=3 h=4 w=8 c=24 k=40 hidden=4", (128, 64, 64, 32, 1, 3), "f16", "relu,conv,gate,scale,project"),
}
TAILS = {
    "last block": ("n=7 h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu", 512, 1, 2),
    "several images": ("n=11 h=2 w=2 c=64 hidden=12 dtype=bf16 epilogue=bias,add,relu,store", 64, 4, 8),
    "many pixels": ("n=2 h=9 w=7 c=96 hidden=36 dtype=f16 epilogue=add,silu", 256, 4, 1),
    "one pixel": ("n=5 h=1 w=1 c=32 hidden=4 dtype=f16", 128, 1, 2),
}

STEMS = {
    "network": (
        "n=2 h=64 w=64 c=3 k=64 hidden=4",
        (256, 64, 64, 32, 3, 3),
        "f16",
        "relu,keep,add_scalar,conv,add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,add_kept,relu,add_scalar",
    ),
    "some images of one channel a tile, fewer channels than it has": (
        "n=5 h=32 w=16 c=1 k=40 hidden=8",
        (128, 64, 32, 64, 1, 4),
        "bf16",
        "bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,add,store,relu",
    ),
}


def emulated_kernel(name, problem, config, launch, folder):
    assert launch in family(name).launches(problem, config, SM80)
    return Emulated(proposed(name, problem, config, SM80), folder)


def assert_computes(name, problem, config, launch, folder):
    emulated = emulated_kernel(name, problem, config, launch, folder)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)
    for seed in (0, 1):
        assert_right(emulated.run(problem, tensors, scalars, launch, 1, seed), expected, problem.dtype, f"seed {seed}")


def last_launch(problem, config, patches):
    launches = family("cuda_conv2d").launches(problem, config, SM80)
    return [launch for launch in launches if launch["patches"] == patches][-1]


@pytest.mark.parametrize(("sizes", "values", "chain", "patches"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_of_images(sizes, values, chain, patches, tmp_path):
    problem = parse(f"conv2d {sizes} dtype=f16 epilogue={chain}")
    config = config_of("cuda_conv2d", values)
    assert_computes("cuda_conv2d", problem, config, last_launch(problem, config, patches), tmp_path)


def bytes_of(problem, tensors, scalars):
    """Return the outputs as the kernel computes them: whole sums, then float32 after each step, then bytes."""
    sums = solve(dataclasses.replace(problem, epilogue=Epilogue()), tensors, ())["y"]
    given = {name: tensor.float() for name, tensor in tensors.items()}
    outputs = run_chain(problem.epilogue.names, sums.float(), given, scalars)
    return {name: value.round().clamp(-128, 127).to(torch.int8) for name, value in outputs.items()}


def assert_computes_bytes(problem, emulated, launch, tensors, scalars):
    expected = bytes_of(problem, tensors, scalars)
    assert expected["y"].double().std() > 5, "a test of few values would prove little"
    for seed in (0, 1):
        results = emulated.run(problem, tensors, scalars, launch, 1, seed)
        assert results.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(results[key], value), (key, seed)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("sizes", "values", "chain", "patches"), BYTES.values(), ids=BYTES)
def test_convolutions_of_bytes(sizes, values, chain, patches, tmp_path):
    problem = parse(f"conv2d {sizes} dtype=s8 epilogue={chain}")
    config = config_of("cuda_conv2d", values)
    launch = last_launch(problem, config, patches)
    emulated = emulated_kernel("cuda_conv2d", problem, config, launch, tmp_path)
    assert_computes_bytes(problem, emulated, launch, *spread_inputs(problem))


def test_slices_add_sums_beyond_the_precision_of_float32(tmp_path):
    """Both slices' sums are above 2^24 and odd or even: 127 x 127, and a small number from one channel of each."""
    problem = parse("conv2d n=1 h=8 w=8 c=400 k=8 r=3 s=3 dtype=s8 epilogue=add_scalar")
    config = config_of("cuda_conv2d", (64, 32, 64, 32, 2, 3, 2))
    launch, own = last_launch(problem, config, 2), [0, 64]
    tensors = {name: torch.full_like(tensor, 127) for name, tensor in random_inputs(problem)[0].items()}
    tensors["x"][..., own] = torch.arange(128).to(torch.int8).view(1, 8, 8, 2) % 97 - 48
    tensors["weight"][:, own] = 0
    tensors["weight"][:, own, 1, 1] = torch.arange(16).to(torch.int8).view(8, 2) % 5 - 2
    large = torch.tensor(398 * 9 * 127.0**2)
    emulated = emulated_kernel("cuda_conv2d", problem, config, launch, tmp_path)
    assert_computes_bytes(problem, emulated, launch, tensors, (-float(large),))
    odd = dataclasses.replace(problem, c=392)
    assert emulated.refusal(odd, launch) == "c must be a multiple of 16 bytes, and k of 8 channels"


def test_problems_of_bytes_that_are_not_served_have_a_reason():
    text = "conv2d n=1 h=16 w=16 c=64 k=72 r=3 s=3 pad=1 dtype=s8 epilogue=scale"
    found = family("cuda_conv2d")
    assert found.why_not_served(parse(text), SM80) is None
    for before, after, said in (
        ("c=64", "c=72", "c must be a multiple of 16, and k of 8"),
        ("k=72", "k=68", "c must be a multiple of 16, and k of 8"),
        ("c=64", "c=16384", "so that no sum overflows int32"),
        ("conv2d n=1", "conv2d_se hidden=4 n=1", "gates are not computed from bytes"),
    ):
        gate = ",gate" if "_se" in after else ""
        assert said in found.why_not_served(parse(text.replace(before, after) + gate), SM80), after
    config = config_of("cuda_conv2d", (256, 64, 64, 64, 2, 3, 2))
    gated = Epilogue.parse("scale,gate")
    assert found.why_illegal(config, SM80, "f16", gated) is None
    assert found.why_illegal(config, SM80, "s8", gated) == "gates are not computed from bytes"
    for name in ("cuda_folded_conv2d", "cuda_se_block", "cuda_se_down_block", "cuda_stem_se_block"):
        assert "s8" not in family(name).dtypes


def test_the_cost_of_bytes_is_that_of_the_rows_that_are_multiplied():
    """A step takes 128 bytes of channels; of a last chunk of at most 64 channels in int8 it multiplies half."""
    text = "conv2d n=64 h=28 w=28 c={} k=256 r=3 s=3 pad=1 dtype={}"
    config = config_of("cuda_conv2d", (128, 128, 64, 32, 1, 1, 3))
    found = family("cuda_conv2d")

    def cost(channels, dtype):
        return found.cost(parse(text.format(channels, dtype)), config, SM80)

    assert cost(128, "s8") == cost(64, "f16") and cost(256, "s8") == cost(128, "f16")
    assert cost(64, "s8") < cost(80, "s8") == cost(128, "s8") and cost(128, "s8") < cost(192, "s8") < cost(256, "s8")


@pytest.mark.daily(1)
@pytest.mark.parametrize(("sizes", "values", "chain"), GATED.values(), ids=GATED)
def test_convolutions_with_a_gate(sizes, values, chain, tmp_path):
    problem = parse(f"conv2d_se {sizes} dtype=bf16 epilogue={chain}")
    config = config_of("cuda_conv2d", values)
    launch = family("cuda_conv2d").launches(problem, config, SM80)[0]
    assert_computes("cuda_conv2d", problem, config, launch, tmp_path)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("sizes", "values", "dtype", "chain"), FOLDED.values(), ids=FOLDED)
def test_convolutions_with_a_folded_squeeze(sizes, values, dtype, chain, tmp_path):
    problem = parse(f"conv2d_folded_se {sizes} r=3 s=3 pad=1 dtype={dtype} epilogue={chain}")
    config = config_of("cuda_folded_conv2d", values)
    launch = family("cuda_folded_conv2d").launches(problem, config, SM80)[0]
    assert_computes("cuda_folded_conv2d", problem, config, launch, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("sizes", "values", "dtype", "chain"), BLOCKS.values(), ids=BLOCKS)
def test_residual_blocks(sizes, values, dtype, chain, tmp_path):
    problem = parse(f"se_block {sizes} dtype={dtype} epilogue={chain}")
    assert_computes("cuda_se_block", problem, config_of("cuda_se_block", values), {}, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("sizes", "values", "dtype", "chain"), DOWN_BLOCKS.values(), ids=DOWN_BLOCKS)
def test_residual_blocks_that_halve_their_images(sizes, values, dtype, chain, tmp_path):
    problem = parse(f"se_down_block {sizes} dtype={dtype} epilogue={chain}")
    assert_computes("cuda_se_down_block", problem, config_of("cuda_se_down_block", values), {}, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("text", "threads", "keep", "images"), TAILS.values(), ids=TAILS)
def test_tails_of_residual_blocks(text, threads, keep, images, tmp_path):
    problem = parse(f"se_tail {text}")
    config = {"threads": threads, "keep": keep, "hidden": round_up(problem.hidden, 16)}
    assert_computes("cuda_mma_se_tail", problem, config, {"images": images}, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("sizes", "values", "dtype", "chain"), STEMS.values(), ids=STEMS)
def test_residual_blocks_behind_a_stem(sizes, values, dtype, chain, tmp_path):
    problem = parse(f"stem_se_block {sizes} block=4 dtype={dtype} epilogue={chain}")
    config = config_of("cuda_stem_se_block", (*values, problem.c))
    assert family("cuda_stem_se_block").launches(problem, config, SM80) == [{"channels_last": 0}]
    emulated = Emulated(proposed("cuda_stem_se_block", problem, config, SM80), tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)["y"]
    for last in (0, 1):
        x = tensors["x"].permute(0, 2, 3, 1).contiguous() if last else tensors["x"]
        results = emulated.run(problem, {**tensors, "x": x}, scalars, {"channels_last": last}, 1, last)
        assert relative_error(results["y"], expected) < LIMIT[dtype], last
