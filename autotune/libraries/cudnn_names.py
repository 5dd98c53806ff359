"""Names of cuDNN's plans in databases, apart from the package `cudnn` so that reading one does not import that."""

FAMILY = "cudnn"
"""Name of the family."""

KIND = "cudnn_plan"
"""Kind of its binaries."""
