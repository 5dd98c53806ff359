"""From kernels to binaries: rendering, compilers, ninja."""

from autotune.codegen.ninja_build import POLL_SECONDS, together

__all__ = ["POLL_SECONDS", "together"]
