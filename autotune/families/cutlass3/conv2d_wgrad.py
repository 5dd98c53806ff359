"""Weight gradient of a convolution from CUTLASS 3.x for Hopper, fp16 and bf16, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q. Blocks do not split a tile's K, so it suits many channels and few pixels.
"""

from autotune.families.cutlass3 import conv2d_passes
from autotune.ir import Conv2dWgrad

FAMILY = conv2d_passes.family(
    "cutlass3_conv2d_wgrad",
    Conv2dWgrad,
    pass_="kWgrad",
    meanings=("output channels", "input channels", "output pixels"),
    gemm_sizes=lambda x: (x.k, x.c, x.n * x.p * x.q, x.r * x.s),
    dtypes=("f16", "bf16"),
    weight_layouts={},
)
