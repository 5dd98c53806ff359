"""Families of CPU kernels."""
