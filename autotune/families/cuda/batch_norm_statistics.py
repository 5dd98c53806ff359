"""Mean and variance of a batch normalization in training on a GPU, channels last."""

from autotune.families.cuda.pixel_columns import pixel_columns
from autotune.ir import BatchNormStatistics

FAMILY = pixel_columns(BatchNormStatistics, tensors=1, channel_floats=3, seconds=0.2)
