"""Input gradient of a convolution of stride 1 from CUTLASS 3.x for Hopper, fp16 and bf16, NHWC.

The GEMM is M = n*h*w, N = c, K = r*s*k.
"""

from autotune.families.cutlass3 import conv2d_passes
from autotune.ir import Conv2dDgrad

FAMILY = conv2d_passes.family(
    "cutlass3_conv2d_dgrad",
    Conv2dDgrad,
    pass_="kDgrad",
    meanings=("input pixels", "input channels", "output channels"),
    gemm_sizes=lambda x: (x.n * x.h * x.w, x.c, x.k, x.r * x.s),
    dtypes=("f16", "bf16"),
    weight_layouts={"weight": "krsc"},
)
