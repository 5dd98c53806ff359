"""Convolution with narrow groups on tensor cores: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.grouped_conv2d import Tile
from autotune.ir import parse

SM80, FAMILY = architecture("sm80"), family("cuda_grouped_conv2d")
# Groups of 1 to 48 channels, rows and columns beyond the last output, channels that are not full, several images, both
# strides with odd and even sizes, no padding, odd and even numbers of units.
CASES = {
    "of 8": ("n=2 h=9 w=21 c=40 k=40 r=3 s=3 pad=1 groups=5 dtype=f16 epilogue=bias,gelu", (3, 1, 8, 32, 8, 16, 4)),
    "of 4": ("n=3 h=7 w=7 c=24 k=24 r=3 s=3 pad=1 groups=6 dtype=bf16 epilogue=scale,bias", (3, 1, 4, 24, 8, 8, 2)),
    "of 16": ("n=1 h=15 w=18 c=48 k=48 r=3 s=3 pad=1 stride=2 groups=3 dtype=f16", (3, 2, 16, 32, 4, 16, 2)),
    "of 24, 5x5": (
        "n=2 h=12 w=10 c=48 k=48 r=5 s=5 groups=2 dtype=f16 epilogue=add,store,relu",
        (5, 1, 24, 24, 8, 8, 4),
    ),
    "of 48": ("n=1 h=8 w=9 c=96 k=96 r=3 s=3 pad=1 groups=2 dtype=f16 epilogue=bias", (3, 1, 48, 96, 4, 8, 2)),
    "of 1": ("n=2 h=9 w=11 c=40 k=40 r=3 s=3 pad=1 groups=40 dtype=f16 epilogue=bias,silu", (3, 1, 1, 32, 8, 8, 2)),
    "of 1, 5x5/2": ("n=1 h=15 w=18 c=24 k=24 r=5 s=5 pad=2 stride=2 groups=24 dtype=bf16", (5, 2, 1, 24, 8, 8, 2)),
    "of 8, 7x7/2": ("n=1 h=20 w=14 c=16 k=16 r=7 s=7 pad=3 stride=2 groups=2 dtype=f16", (7, 2, 8, 16, 8, 8, 2)),
}
LIMIT = {"f16": 1e-3, "bf16": 8e-3}


@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_convolution(text, shape, tmp_path):
    problem = parse(f"conv2d {text}")
    config = dict(zip(Tile.__annotations__, shape, strict=True))
    assert FAMILY.why_illegal(config, SM80, problem.dtype, problem.epilogue) is None
    assert FAMILY.why_not_served(problem, SM80) is None and FAMILY.why_unfit(problem, config, SM80) is None
    kernel = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_80"), tmp_path)
    assert kernel.shared_bytes(problem, {}) == Tile.from_config(config).shared_bytes
    for name, error in relative_errors(kernel, problem, {}).items():
        assert error < LIMIT[problem.dtype], name


def test_what_it_does_not_serve_has_a_reason():
    served = "conv2d n=1 h=9 w=9 c=32 k=32 r=3 s=3 pad=1 groups=4 dtype=f16"
    assert FAMILY.why_not_served(parse(served), SM80) is None
    assert FAMILY.why_not_served(parse(served), architecture("sm75"))
    for before, after, said in (
        ("groups=4", "groups=16", "a group must have"),
        ("groups=4", "groups=1", "several groups"),
        ("k=32", "k=64", "c and k must be equal"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=32 k=32 r=3 s=3 pad=1 groups=4", "c=12 k=12 r=3 s=3 pad=1 groups=3", "multiple of 8"),
    ):
        assert said in FAMILY.why_not_served(parse(served.replace(before, after)), SM80), after


def test_a_kernel_fits_its_own_group_width_only():
    problem = parse("conv2d n=1 h=9 w=9 c=32 k=32 r=3 s=3 pad=1 groups=4 dtype=f16")
    config = dict(zip(Tile.__annotations__, (3, 1, 16, 32, 8, 8, 2), strict=True))
    assert "compiled for groups of 16, not 8" in FAMILY.why_unfit(problem, config, SM80)
