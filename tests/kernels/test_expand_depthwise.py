"""A widening convolution with the depthwise convolution after it on a GPU: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.expand_depthwise import Tile
from autotune.ir import parse

SM80, FAMILY = architecture("sm80"), family("cuda_expand_depthwise")
# Tiles at all borders and images larger than a tile; channels that fill no step and no chunk; both numbers of rows that
# a warp multiplies together; strides of 1 and 2; blocks that share a tile; tensors behind the depthwise convolution.
CASES = {
    "3x3": ("n=2 h=9 w=10 c=24 k=40 r=3 s=3 pad=1 dtype=f16 epilogue=bias,silu,conv,bias,silu", (8, 8, 32, 128), 1),
    "5x5, stride 2": (
        "n=1 h=15 w=13 c=8 k=72 r=5 s=5 stride=2 pad=2 dtype=bf16 epilogue=bias,relu,conv,bias,add,store,relu",
        (4, 7, 64, 256),
        2,
    ),
    "without padding": ("n=2 h=11 w=11 c=40 k=16 r=3 s=3 dtype=f16 epilogue=hardswish,conv", (14, 14, 32, 128), 1),
    "7x7": ("n=1 h=7 w=9 c=16 k=136 r=7 s=7 pad=3 dtype=f16 epilogue=conv,bias,relu6", (7, 7, 64, 128), 3),
}


@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape", "parts"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_both_convolutions(text, shape, parts, tmp_path):
    problem = parse(f"expand_depthwise {text}")
    tile = dict(zip(("tile_h", "tile_w", "chunk", "threads"), shape, strict=True))
    config = {"filter": problem.r, "stride": problem.stride[0], **tile}
    assert config in FAMILY.configs_for(problem, SM80)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_80"), tmp_path)
    assert emulated.shared_bytes(problem, {"parts": parts}) > 0
    for name, error in relative_errors(emulated, problem, {"parts": parts}).items():
        assert error < {"f16": 1e-3, "bf16": 8e-3}[problem.dtype], name


@pytest.mark.compile
def test_the_family_counts_the_kernels_shared_memory(tmp_path):
    problem = parse("expand_depthwise n=1 h=28 w=28 c=40 k=240 r=5 s=5 stride=2 pad=2 dtype=f16 epilogue=conv")
    config = {"filter": 5, "stride": 2, "tile_h": 8, "tile_w": 7, "chunk": 64, "threads": 256}
    emulated = Emulated(Kernel.of(FAMILY.name, config, "f16", problem.epilogue, "sm_80"), tmp_path)
    assert emulated.shared_bytes(problem, {"parts": 1}) == Tile.from_config(config).shared_bytes(problem.c, "f16")


def test_what_it_does_not_serve_has_a_reason():
    assert FAMILY.why_not_served(parse(f"expand_depthwise {CASES['3x3'][0]}"), architecture("sm70"))
    odd = parse("expand_depthwise n=1 h=9 w=9 c=12 k=36 r=3 s=3 pad=1 dtype=f16 epilogue=conv")
    assert "multiples of 8" in FAMILY.why_not_served(odd, SM80)
