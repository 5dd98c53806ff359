"""Registers that a thread can have on Hopper."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div

_SUB_PARTITIONS = 4  # of a multiprocessor: each has a quarter of its registers, and whole warps
_MOST = 255


def thread_registers(arch: Architecture, threads: int, blocks: int = 1) -> int:
    """Return the registers that a thread can have.

    Args:
        arch: The architecture.
        threads: Threads of a block.
        blocks: Blocks that share a multiprocessor.
    """
    warps = ceil_div(threads // 32 * blocks, _SUB_PARTITIONS)
    return min(_MOST, arch.sm_registers // _SUB_PARTITIONS // (32 * warps) // 8 * 8)
