"""The sums of a batch normalization's gradient on a GPU, channels last."""

from autotune.families.cuda.pixel_columns import pixel_columns
from autotune.ir import BatchNormGradientSums

FAMILY = pixel_columns(BatchNormGradientSums, tensors=4, channel_floats=6, seconds=0.4)
