"""Gradient of a convolution of stride 1 by its input from CUTLASS 3.x for Hopper, fp16 and bf16, NHWC.

The GEMM is M = n*h*w, N = c, K = r*s*k.
"""

from autotune.families.cutlass3 import passes
from autotune.ir import Conv2dDgrad

FAMILY = passes.family(
    "cutlass3_conv2d_dgrad",
    Conv2dDgrad,
    "kDgrad",
    ("input pixels", "input channels", "output channels"),
    lambda x: (x.n * x.h * x.w, x.c, x.k, x.r * x.s),
    ("f16", "bf16"),
    {"weight": "krsc"},
)
