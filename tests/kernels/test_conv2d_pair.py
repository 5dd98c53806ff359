"""Two convolutions in one kernel on a GPU: the kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.conv2d_pair import Tile
from autotune.ir import parse

SM80, FAMILY = architecture("sm80"), family("cuda_conv2d_pair")
SHAPE = ("tile_h", "tile_w", "whole", "images", "warps_m", "warps_n", "rows", "columns", "depth", "stages")
# Each kind of filter and stride; tiles with borders on all sides, of the whole width, and of whole images, also several
# of them, the last ones not there; channels that fill no slice and no step; several passes and slices; taps that end
# within a step; tensors behind the second convolution.
CASES = {
    "1x1 and 3x3": (
        "n=2 h=9 w=10 c=40 hidden=32 k=40 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu,conv,bias,relu",
        (4, 4, 0, 1, 2, 2, 2, 32, 32, 3),
    ),
    "1x1 and 3x3, stride 2": (
        "n=1 h=17 w=15 c=24 hidden=48 k=24 r=3 s=3 stride=2 pad=1 dtype=bf16 epilogue=bias,silu,conv,bias,add,relu",
        (4, 7, 0, 1, 4, 1, 4, 32, 64, 3),
    ),
    "1x1 and 3x3, whole width": (
        "n=1 h=9 w=14 c=72 hidden=64 k=64 r=3 s=3 pad=1 dtype=f16 epilogue=scale,bias,relu,conv,bias",
        (7, 14, 1, 1, 4, 2, 2, 32, 64, 2),
    ),
    "two 3x3, whole images": (
        "n=3 h=7 w=7 c=32 hidden=48 k=80 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype=f16 "
        "epilogue=bias,relu,conv,bias,add,relu",
        (7, 7, 2, 2, 4, 2, 2, 32, 64, 3),
    ),
    "two 3x3, narrow": (
        "n=2 h=16 w=16 c=16 hidden=16 k=16 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype=bf16 "
        "epilogue=bias,relu,conv,bias,add,relu",
        (8, 16, 1, 1, 4, 1, 4, 16, 144, 2),
    ),
    "two 3x3, the first with stride 2": (
        "n=2 h=15 w=16 c=16 hidden=32 k=32 first_r=3 first_s=3 first_stride=2 first_pad=1 r=3 s=3 pad=1 dtype=f16 "
        "epilogue=bias,relu,conv,bias,add,store,relu",
        (8, 8, 2, 1, 4, 1, 1, 32, 144, 3),
    ),
    "two 3x3, the second with stride 2": (
        "n=1 h=14 w=14 c=32 hidden=32 k=56 first_r=3 first_s=3 first_pad=1 r=3 s=3 stride=2 pad=1 dtype=f16 "
        "epilogue=conv",
        (7, 7, 2, 1, 2, 2, 4, 32, 32, 2),
    ),
    "3x3 and 1x1": (
        "n=2 h=10 w=9 c=48 hidden=64 k=136 first_r=3 first_s=3 first_stride=2 first_pad=1 dtype=f16 "
        "epilogue=bias,relu,conv,bias,add,relu",
        (4, 4, 0, 1, 1, 4, 1, 32, 64, 3),
    ),
    "without padding": (
        "n=2 h=12 w=11 c=16 hidden=16 k=16 first_r=3 first_s=3 r=3 s=3 dtype=f16 epilogue=bias,relu,conv,bias",
        (8, 8, 0, 1, 4, 1, 2, 16, 64, 3),
    ),
    "more padding": (
        "n=1 h=9 w=9 c=8 hidden=16 k=24 first_pad=1 r=3 s=3 pad=2 dtype=f16 epilogue=bias,conv,bias",
        (14, 14, 2, 1, 4, 1, 4, 32, 32, 3),
    ),
}


def config_of(problem, shape):
    window = {"filter1": problem.first_r, "stride1": problem.first_stride[0]}
    window |= {"filter": problem.r, "stride": problem.stride[0]}
    return {**window, **dict(zip(SHAPE, shape, strict=True))}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_both_convolutions(text, shape, tmp_path):
    problem = parse(f"conv2d_pair {text}")
    config = config_of(problem, shape)
    assert FAMILY.why_illegal(config, SM80, problem.dtype, problem.epilogue) is None
    assert FAMILY.why_unfit(problem, config, SM80) is None
    assert config in FAMILY.configs_for(problem, SM80)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_80"), tmp_path)
    assert emulated.shared_bytes(problem, {}) == Tile.from_config(config).shared_bytes(problem.c, problem.hidden)
    for name, error in relative_errors(emulated, problem, {}).items():
        assert error < {"f16": 1.5e-3, "bf16": 1.2e-2}[problem.dtype], name


@pytest.mark.compile
def test_a_kernel_refuses_other_windows_and_images(tmp_path):
    text, shape = CASES["two 3x3, whole images"]
    problem = parse(f"conv2d_pair {text}")
    kernel = Kernel.of(FAMILY.name, config_of(problem, shape), problem.dtype, problem.epilogue, "sm_80")
    emulated = Emulated(kernel, tmp_path)
    assert "first filter" in emulated.refusal(parse(f"conv2d_pair {text.replace('first_r=3', 'first_r=1')}"), {})
    assert "whole image" in emulated.refusal(parse(f"conv2d_pair {text.replace('h=7', 'h=8')}"), {})
    assert "multiple of 16" in emulated.refusal(parse(f"conv2d_pair {text.replace('hidden=48', 'hidden=40')}"), {})
    assert "shared memory" in emulated.refusal(parse(f"conv2d_pair {text.replace('c=32', 'c=1024')}"), {})


def test_what_it_does_not_serve_has_a_reason():
    text = CASES["1x1 and 3x3"][0]
    assert FAMILY.why_not_served(parse(f"conv2d_pair {text}"), architecture("sm75"))
    assert "multiple of 8" in FAMILY.why_not_served(parse(f"conv2d_pair {text.replace('c=40', 'c=12')}"), SM80)
    assert "square" in FAMILY.why_not_served(parse(f"conv2d_pair {text.replace('s=3', 's=1')}"), SM80)
    both = parse("conv2d_pair n=1 h=4 w=4 c=16 hidden=16 k=16 dtype=f16 epilogue=conv")
    assert "pointwise_pair" in FAMILY.why_not_served(both, SM80)
