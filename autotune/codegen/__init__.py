"""From kernels to binaries: rendering, compilers, ninja."""

from autotune.codegen.ninja_build import POLL_SECONDS, kernels_per_unit

__all__ = ["POLL_SECONDS", "kernels_per_unit"]
