"""Forward pass and gradients of a convolution."""

import pytest

from autotune.core import ProblemError
from autotune.cudnn_algorithms.benchmark import passes
from autotune.ir import parse
from autotune.ir.operators import Conv2dDgrad, Conv2dWgrad


def test_the_passes_of_a_convolution():
    problem = parse("conv2d_wgrad n=2 h=9 w=8 c=4 k=6 r=3 s=3 stride=2 pad=1 dtype=bf16 epilogue=mul_scalar")
    found = passes(problem)
    assert list(found) == ["forward", "backward-data", "backward-filter"]
    assert [type(p) for p in found.values()][1:] == [Conv2dDgrad, Conv2dWgrad]
    assert {str(p).split(" ", 1)[1] for p in found.values()} == {
        "n=2 h=9 w=8 c=4 k=6 r=3 s=3 stride=2,2 pad=1,1 dilation=1,1 groups=1 dtype=bf16 epilogue=none"
    }
    with pytest.raises(ProblemError, match="convolutions"):
        passes(parse("gemm m=1 n=2 k=3 dtype=f16"))
