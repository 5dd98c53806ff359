"""Rates and limits of Hopper that several families' cost models and rules have in common."""

LOADED_BYTES_A_CYCLE = 40
"""Bytes that an SM loads a cycle when all SMs load: an estimate for an H200, for kernels of one network block."""
MAX_CLUSTER = 8
"""Blocks of a cluster: the portable limit of the CUDA C++ Programming Guide."""
