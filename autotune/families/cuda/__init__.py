"""Families of CUDA kernels that are written for mma and ordinary arithmetic."""
