"""A 1x1 convolution of concatenated inputs on a GPU: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.concat_conv2d import Tile
from autotune.ir import parse

SM80, FAMILY = architecture("sm80"), family("cuda_concat_conv2d")
# Pieces that end inside a chunk of 64 channels; chunks that are not full, fewer and more of them than buffers; pixels
# and output channels beyond the last; several blocks, warps and blocks of 16 pixels; steps that read an image's or a
# pixel's value, or a tensor, before the convolution and after it.
CASES = {
    "one piece": ("n=2 h=7 w=5 pieces=40 k=40 dtype=f16 epilogue=mul_image,conv,bias,add", (64, 32, 32, 32, 2)),
    "ranges": (
        "n=1 h=9 w=9 pieces=64,0:32/40,8:24/24,72 k=72 dtype=f16 epilogue=scale,bias,relu,conv,bias,relu",
        (32, 64, 16, 32, 3),
    ),
    "eight pieces": (
        "n=3 h=6 w=4 pieces=8,16,8,24,64,8,8,80 k=136 dtype=bf16 "
        "epilogue=add,mul_pixel,silu,conv,scale,store,add_image",
        (64, 128, 64, 32, 4),
    ),
    "nothing before": ("n=1 h=8 w=8 pieces=128,64 k=8 dtype=f16 epilogue=conv", (64, 32, 16, 32, 6)),
}
LIMIT = {"f16": 1e-3, "bf16": 8e-3}


def emulated(problem, shape, folder):
    config = dict(zip(("tile_m", "tile_n", "warp_m", "warp_n", "stages"), shape, strict=True))
    assert config in FAMILY.configs_for(problem, SM80)
    return Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_80"), folder), config


@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_convolution(text, shape, tmp_path):
    problem = parse(f"concat_conv2d {text}")
    kernel, config = emulated(problem, shape, tmp_path)
    assert kernel.shared_bytes(problem, {}) == Tile.from_config(config).shared_bytes
    for name, error in relative_errors(kernel, problem, {}).items():
        assert error < LIMIT[problem.dtype], name


def test_what_it_does_not_serve_has_a_reason():
    assert FAMILY.why_not_served(parse("concat_conv2d n=1 h=4 w=4 pieces=8 k=8 dtype=f16"), architecture("sm70"))
    for pieces, k in (("12,4", 8), ("8:16/20", 8), ("16", 12)):
        odd = parse(f"concat_conv2d n=1 h=4 w=4 pieces={pieces} k={k} dtype=f16")
        assert "multiples of 8" in FAMILY.why_not_served(odd, SM80)


def test_steps_before_the_convolution_store_nothing():
    problem = parse("concat_conv2d n=1 h=4 w=4 pieces=16 k=32 dtype=f16 epilogue=store,conv")
    config = dict(zip(("tile_m", "tile_n", "warp_m", "warp_n", "stages"), (64, 32, 32, 32, 2), strict=True))
    assert "must not store" in FAMILY.why_illegal(config, SM80, "f16", problem.epilogue)
