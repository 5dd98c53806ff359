"""Input gradient of a convolution behind a norm for Hopper, as a convolution, with the sums of the norm's gradient."""

from autotune.families.sm90.column_totals import column_totals
from autotune.ir import Conv2dGradientSums

FAMILY = column_totals(Conv2dGradientSums, "gradient_sums", "GradientSumsStore")
