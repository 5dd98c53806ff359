"""Forward convolution from CUTLASS 3.x for Hopper, fp16, bf16 and tf32 with float32 sums, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c.
"""

from autotune.families.cutlass3 import conv2d_passes
from autotune.ir import Conv2d

FAMILY = conv2d_passes.family(
    "cutlass3_conv2d",
    Conv2d,
    pass_="kFprop",
    meanings=("output pixels", "output channels", "input channels"),
    gemm_sizes=lambda x: (x.n * x.p * x.q, x.k, x.c, x.r * x.s),
    dtypes=("f16", "bf16", "tf32"),
    weight_layouts={"weight": "krsc"},
)
