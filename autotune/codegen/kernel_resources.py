"""Registers and memory of a compiled kernel, read from its device image.

The numbers are those of `ptxas -v`, which prints them only while a kernel is compiled. A device image has them also on
the disk and in a database. Besides, `-v` changes the images of CUDA 13, which record the options of ptxas.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.codegen.cubin import Cubin

# Attributes of .nv.info, by the names of cuobjdump.
_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT
_FRAME_SIZE = 0x11  # EIATTR_FRAME_SIZE
_ANNOTATIONS = 0x55  # EIATTR_ANNOTATIONS: pairs of a kind and the offset of an instruction
_SPILL = 1  # kind of an annotation: the instruction spills registers ("SpillRefill")

_FIRST_WITH_ANNOTATIONS = 126  # CUDA 12.6; ptxas 12.0, 12.4 and 12.5 write none
_FIRST_WITH_RESERVED_SHARED = 90  # compute capability from which the static shared memory has the reserved bytes
_RESERVED_SHARED_BYTES = 1024  # shared memory that the system keeps for each block

# Machine instructions from sm_70 to sm_120: the lowest 12 bits are the operation, and bits 73 to 75 the type.
_STORE_LOCAL, _LOAD_LOCAL = 0x387, 0x983  # STL, LDL
_TYPE_BYTES = (1, 1, 2, 2, 4, 8, 16)  # U8, S8, U16, S16, 32, 64, 128


@dataclass(frozen=True)
class KernelResources:
    """Registers and memory of a kernel.

    Attributes:
        registers: Registers of a thread.
        spill_store_bytes: Bytes of registers that the instructions of the code spill to local memory, each instruction
            counted once; None if the compiler was too old to tell.
        spill_load_bytes: Bytes of registers that they load back.
        shared_bytes: Static shared memory of a block; a launch adds the dynamic one.
        stack_bytes: Local memory of a thread, for spilled registers and for arrays with indices that are not constant.
    """

    registers: int
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    shared_bytes: int
    stack_bytes: int

    @property
    def spill_bytes(self) -> int | None:
        """Return the bytes of spill stores and loads."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return None
        return self.spill_store_bytes + self.spill_load_bytes


def image_resources(image: bytes) -> Mapping[str, KernelResources]:
    """Return the resources of the functions of a device image by name.

    A kernel is one function, with the kernel's symbol as its name (templates/abi.h). NVIDIA may change the format, and
    a build must not fail then: an image with another format has no resources.
    """
    try:
        cubin = Cubin.read(image)
        return _resources(cubin) if cubin else {}
    except (struct.error, LookupError, ValueError, OverflowError):
        return {}


def _resources(cubin: Cubin) -> dict[str, KernelResources]:
    registers, frames = cubin.values(_REGISTER_COUNT), cubin.values(_FRAME_SIZE)
    reserved = _RESERVED_SHARED_BYTES if cubin.capability >= _FIRST_WITH_RESERVED_SHARED else 0
    found = {}
    for function in cubin.functions():
        shared = cubin.sections.get(f".nv.shared.{function}")
        stored, loaded = _spills(cubin, function) if frames[function] else (0, 0)
        found[function] = KernelResources(
            registers=registers[function],
            spill_store_bytes=stored,
            spill_load_bytes=loaded,
            shared_bytes=shared.size - reserved if shared else 0,
            stack_bytes=frames[function],
        )
    return found


def _spills(cubin: Cubin, function: str) -> tuple[int, int] | tuple[None, None]:
    """Return the bytes of spill stores and of spill loads of a function that has a stack."""
    if cubin.toolkit and cubin.toolkit < _FIRST_WITH_ANNOTATIONS:
        return None, None
    code = cubin.sections[f".text.{function}"].content
    sums = {_STORE_LOCAL: 0, _LOAD_LOCAL: 0}
    for number, value in cubin.attributes(function):
        if number == _ANNOTATIONS:
            for kind, offset in struct.iter_unpack("<II", value):
                if kind == _SPILL:
                    low, high = struct.unpack_from("<QQ", code, offset)
                    sums[low & 0xFFF] += _TYPE_BYTES[high >> 9 & 7]
    return sums[_STORE_LOCAL], sums[_LOAD_LOCAL]
