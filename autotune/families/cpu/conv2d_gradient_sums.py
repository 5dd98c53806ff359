"""Input gradient of a convolution behind a norm on the CPU, as a convolution, then the sums of the norm's gradient."""

from autotune.families.cpu.conv2d_with_norm import conv2d_with_norm
from autotune.ir import Conv2dGradientSums

FAMILY = conv2d_with_norm(Conv2dGradientSums)
