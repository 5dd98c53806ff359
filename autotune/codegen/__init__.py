"""From kernels to binaries: rendering, compilers, ninja."""

from autotune.codegen.build_queue import POLL_SECONDS
from autotune.codegen.ninja_build import kernels_per_unit

__all__ = ["POLL_SECONDS", "kernels_per_unit"]
