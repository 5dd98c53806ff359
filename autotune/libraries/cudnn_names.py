"""What databases call cuDNN's plans, for those who need not load anything of cuDNN to tell them from others."""

FAMILY = "cudnn"
"""The family's name."""

KIND = "cudnn_plan"
"""The kind of its binaries."""
