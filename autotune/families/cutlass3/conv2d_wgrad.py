"""Gradient of a convolution by its weight from CUTLASS 3.x for Hopper, fp16 and bf16, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q. No tile's K is split, so it is for many channels and few pixels.
"""

from autotune.families.cutlass3 import passes
from autotune.ir import Conv2dWgrad

FAMILY = passes.family(
    "cutlass3_conv2d_wgrad",
    Conv2dWgrad,
    "kWgrad",
    ("output channels", "input channels", "output pixels"),
    lambda x: (x.k, x.c, x.n * x.p * x.q, x.r * x.s),
    ("f16", "bf16"),
    {},
)
