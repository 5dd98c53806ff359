"""Layer normalization over channels on a GPU, channels last."""

from autotune.families.cuda import channel_rows
from autotune.ir import LayerNorm

FAMILY = channel_rows.family("cuda_layer_norm", LayerNorm)
