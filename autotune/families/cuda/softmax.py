"""Softmax over channels on a GPU, channels last."""

from autotune.families.cuda import channel_rows
from autotune.ir import Softmax

FAMILY = channel_rows.family("cuda_softmax", Softmax)
