"""The three convolutions of an inverted residual block on a GPU: their kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.inverted_residual import Tile, _rows
from autotune.ir import parse

SM80, SM90, FAMILY = architecture("sm80"), architecture("sm90"), family("cuda_inverted_residual")
NAMES = ("tile_h", "tile_w", "images", "chunk", "columns", "strip", "threads", "parts")
STEPS = "epilogue=bias,relu6,conv,bias,relu6,conv,bias"
# Tiles at all borders and images larger than a tile; channels that fill no step, no chunk and no column; whole images,
# several of them, and one that is missing; strides of 1 and 2; clusters that share the chunks equally and not; tensors
# behind the last convolution; strips of rows that end beyond the tile; tiles whose border is padding alone.
CASES = {
    "residual": (f"n=2 h=9 w=10 c=24 hidden=72 k=24 r=3 s=3 pad=1 dtype=f16 {STEPS},add", (8, 8, 1, 48, 32, 2, 128, 1)),
    "5x5, stride 2": (
        "n=1 h=15 w=13 c=8 hidden=72 k=40 r=5 s=5 stride=2 pad=2 dtype=bf16 "
        "epilogue=bias,silu,conv,bias,silu,conv,bias,store,relu",
        (4, 7, 1, 48, 64, 1, 128, 1),
    ),
    "whole images": (
        f"n=3 h=7 w=7 c=40 hidden=144 k=40 r=3 s=3 pad=1 dtype=f16 {STEPS},add",
        (7, 7, 2, 64, 64, 2, 256, 1),
    ),
    "cluster of 2": (
        f"n=1 h=14 w=14 c=16 hidden=200 k=72 r=3 s=3 pad=1 dtype=f16 {STEPS}",
        (14, 14, 1, 48, 96, 2, 256, 2),
    ),
    "cluster of 4": (
        f"n=2 h=7 w=7 c=16 hidden=216 k=320 r=3 s=3 pad=1 dtype=bf16 {STEPS}",
        (4, 7, 1, 48, 320, 2, 256, 4),
    ),
    "cluster of 8": (f"n=1 h=7 w=9 c=24 hidden=488 k=8 r=3 s=3 pad=1 dtype=f16 {STEPS}", (4, 14, 1, 48, 16, 1, 128, 8)),
    "without padding": (
        "n=1 h=19 w=20 c=32 hidden=40 k=16 r=3 s=3 dtype=f16 epilogue=hardswish,conv,conv",
        (14, 14, 1, 48, 16, 4, 128, 1),
    ),
    "7x7, much padding": (
        "n=1 h=6 w=9 c=16 hidden=32 k=136 r=7 s=7 pad=9 dtype=f16 epilogue=conv,bias,conv,scale",
        (8, 8, 1, 64, 160, 1, 256, 1),
    ),
}


@pytest.mark.daily(4)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_three_convolutions(text, shape, tmp_path):
    problem = parse(f"inverted_residual {text}")
    config = {"filter": problem.r, "stride": problem.stride[0], **dict(zip(NAMES, shape, strict=True))}
    assert config in FAMILY.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    tile = Tile.from_config(config)
    assert emulated.shared_bytes(problem, {}) == tile.shared_bytes(_rows(problem, tile), problem.c, problem.dtype)
    for name, error in relative_errors(emulated, problem, {}, config["parts"]).items():
        assert error < {"f16": 2e-3, "bf16": 1.5e-2}[problem.dtype], name


def test_what_it_does_not_serve_has_a_reason():
    problem = parse(f"inverted_residual {CASES['residual'][0]}")
    assert FAMILY.why_not_served(problem, architecture("sm70"))
    assert {config["parts"] for config in FAMILY.configs_for(problem, SM80)} == {1}
    odd = parse(f"inverted_residual n=1 h=9 w=9 c=12 hidden=36 k=8 r=3 s=3 pad=1 dtype=f16 {STEPS}")
    assert "multiples of 8" in FAMILY.why_not_served(odd, SM80)
    wide = parse(f"inverted_residual n=1 h=9 w=9 c=16 hidden=32 k=328 r=3 s=3 pad=1 dtype=f16 {STEPS}")
    assert "at most 320" in FAMILY.why_not_served(wide, SM80)
    early = parse("inverted_residual n=1 h=9 w=9 c=16 hidden=32 k=8 r=3 s=3 pad=1 dtype=f16 epilogue=conv,add,conv")
    assert not FAMILY.configs_for(early, SM90), "a step between the convolutions would need the pixel's position"
