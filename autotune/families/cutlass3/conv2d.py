"""Forward convolution from CUTLASS 3.x for Hopper, fp16, bf16 and tf32 with float32 sums, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c.
"""

from autotune.families.cutlass3 import passes
from autotune.ir import Conv2d

FAMILY = passes.family(
    "cutlass3_conv2d",
    Conv2d,
    "kFprop",
    ("output pixels", "output channels", "input channels"),
    lambda x: (x.n * x.p * x.q, x.k, x.c, x.r * x.s),
    ("f16", "bf16", "tf32"),
    {"weight": "krsc"},
)
