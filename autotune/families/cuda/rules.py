"""Rules of CUDA kernels: accesses, registers, shared memory, and windows known when a kernel is compiled."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Rules, require
from autotune.ir import DTYPES
from autotune.ir.operators import Conv2d

_ACCESS_BYTES = 16  # of the widest load and store of a thread: CUDA C++ Programming Guide, "Device Memory Accesses"


def require_access(elements: int, dtype: str) -> str | None:
    """Require that one access of a thread can hold the elements."""
    return require(
        elements * DTYPES[dtype].itemsize <= _ACCESS_BYTES,
        f"an access has at most {_ACCESS_BYTES} bytes; {elements} elements of {dtype} have more",
    )


def require_clusters(arch: Architecture, blocks: int) -> str | None:
    """Require that an architecture has clusters if a cluster has more than one block."""
    return require(blocks == 1 or (arch.capability or 0) >= 90, "clusters of blocks need sm_90")


def require_registers(arch: Architecture, threads: int, registers: int, most: int) -> str | None:
    """Require that a multiprocessor can hold a block; `registers` are those of a thread, of which it has `most`."""
    fits = min(most, arch.sm_registers // threads)
    return require(registers <= fits, f"a thread must fit {fits} registers; it takes {registers}")


def require_shared(arch: Architecture, size: int) -> str | None:
    """Require that a block's shared memory of `size` bytes fits."""
    return require(
        size <= arch.block_shared, f"a block must fit {arch.block_shared} bytes of shared memory; it takes {size}"
    )


def resident_rules(arch: Architecture, resident: int, shared_bytes: int) -> Rules:
    """Yield that the shared memory of `resident` blocks fits an SM, and that of one block what a block may have."""
    yield require(
        resident * (shared_bytes + arch.reserved_shared) <= arch.sm_shared,
        f"the resident blocks must fit the {arch.sm_shared} bytes of shared memory of an SM",
    )
    yield require_shared(arch, shared_bytes)


def require_whole_vectors(channels: int, vector: int) -> str | None:
    """Require that the channels are whole vectors."""
    return require(channels % vector == 0, f"c must be a multiple of the vector: {channels} is not one of {vector}")


def require_square_window(problem: Conv2d, filters: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
    """Require a dense square filter with one of these sides, and one of these strides along both axes."""
    square = problem.r == problem.s and problem.stride[0] == problem.stride[1]
    return require(
        square and problem.r in filters and problem.stride[0] in strides and problem.dilation == (1, 1),
        f"the filter must be square with a side of {filters} and stride {strides}, dense; "
        f"it is {(problem.r, problem.stride[0])}",
    )
