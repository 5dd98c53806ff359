"""The input gradient of a batch normalization on a GPU, channels last."""

from autotune.families.cuda.pixel_columns import pixel_columns
from autotune.ir import BatchNormGradient

FAMILY = pixel_columns(BatchNormGradient, tensors=2, channel_floats=4, seconds=0.1)
