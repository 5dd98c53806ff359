"""Depthwise convolution on tensor cores: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.mma_depthwise_conv2d import Tile
from autotune.ir import parse

SM80, FAMILY = architecture("sm80"), family("cuda_mma_depthwise_conv2d")
# Rows and columns beyond the last output, two images a tile and an odd number of them, channels that are not full,
# several blocks of channels, tiles in turn that end early, both strides with odd and even sizes, no padding.
CASES = {
    "7x7": ("n=1 h=19 w=21 c=40 k=40 r=7 s=7 pad=3 groups=40 dtype=f16 epilogue=bias,gelu", (7, 1, 16, 2, 32, 2)),
    "5x5, two images": (
        "n=3 h=7 w=7 c=24 k=24 r=5 s=5 pad=2 groups=24 dtype=bf16 epilogue=scale,bias,silu",
        (5, 1, 8, 1, 32, 1),
    ),
    "3x3, wide": ("n=2 h=33 w=35 c=16 k=16 r=3 s=3 pad=1 groups=16 dtype=f16", (3, 1, 32, 4, 16, 4)),
    "7x7, no padding": (
        "n=2 h=12 w=40 c=8 k=8 r=7 s=7 groups=8 dtype=f16 epilogue=add,store,relu",
        (7, 1, 8, 4, 16, 2),
    ),
    "3x3/2": ("n=2 h=15 w=18 c=72 k=72 r=3 s=3 pad=1 stride=2 groups=72 dtype=f16 epilogue=bias", (3, 2, 8, 2, 32, 1)),
    "5x5/2": ("n=1 h=34 w=33 c=16 k=16 r=5 s=5 pad=2 stride=2 groups=16 dtype=bf16", (5, 2, 16, 2, 32, 8)),
    "7x7/2": ("n=1 h=20 w=14 c=16 k=16 r=7 s=7 pad=3 stride=2 groups=16 dtype=f16 epilogue=relu", (7, 2, 16, 1, 16, 1)),
}
LIMIT = {"f16": 1e-3, "bf16": 8e-3}


@pytest.mark.compile
@pytest.mark.parametrize(("text", "shape"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_convolution(text, shape, tmp_path):
    problem = parse(f"conv2d {text}")
    config = dict(zip(Tile.__annotations__, shape, strict=True))
    assert FAMILY.why_illegal(config, SM80, problem.dtype, problem.epilogue) is None
    assert FAMILY.why_not_served(problem, SM80) is None
    kernel = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_80"), tmp_path)
    assert kernel.shared_bytes(problem, {}) == Tile.from_config(config).shared_bytes
    for name, error in relative_errors(kernel, problem, {}).items():
        assert error < LIMIT[problem.dtype], name


def test_what_it_does_not_serve_has_a_reason():
    served = "conv2d n=1 h=9 w=9 c=16 k=16 r=3 s=3 pad=1 groups=16 dtype=f16"
    assert FAMILY.why_not_served(parse(served), SM80) is None
    assert FAMILY.why_not_served(parse(served), architecture("sm75"))
    for before, after, said in (
        ("groups=16", "groups=8", "one channel a group"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=16 k=16", "c=12 k=12", "multiple of 8"),
    ):
        text = served.replace(before, after).replace("groups=16", "groups=12" if "12" in after else "groups=16")
        assert said in FAMILY.why_not_served(parse(text), SM80), after
