"""Registers and memory of a compiled kernel, read from its device image.

The numbers are those of `ptxas -v`, which prints them only while a kernel is compiled. A device image has them also on
the disk and in a database. Besides, `-v` changes the images of CUDA 13, which record the options of ptxas.

A device image (cubin) is an ELF file with the machine code of functions and what a launch of each needs. Function S has
the section `.text.S` with its instructions, `.nv.shared.S` with the size of its static shared memory, and
`.nv.constant*.S` with its constants and the size of its parameters. The section `.nv.info` has attributes of all
functions, and `.nv.info.S` those of S. Sources: the ELF-64 object file format, version 1.5; for `.nv.info` the output
of `cuobjdump -elf`, because NVIDIA does not document it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_CUDA = 190  # e_machine of device code (EM_CUDA)
_OLD_ABI = 7  # e_ident[EI_ABIVERSION] up to CUDA 12.9, where e_version is ten times the version of the toolkit
_NO_BITS = 8  # sh_type of a section that takes no bytes in the file
_SYMBOL = struct.Struct("<IBBHQQ")
_SIZED_VALUE = 4  # format of an attribute of .nv.info whose length follows; the others have 4 bytes in all


class Section(NamedTuple):
    """A section of a device image.

    Attributes:
        size: Its bytes, also if they are not in the file.
        content: Its bytes in the file.
    """

    size: int
    content: memoryview


@dataclass(frozen=True)
class Cubin:
    """A device image.

    Attributes:
        sections: The sections by name.
        capability: Compute capability times ten.
        toolkit: Ten times the version of the CUDA toolkit that made it, such as 126; None from CUDA 13.0 on.
    """

    sections: Mapping[str, Section]
    capability: int
    toolkit: int | None

    @classmethod
    def read(cls, image: bytes) -> Cubin | None:
        """Return the contents of a device image; None if the bytes are something else, such as a shared library."""
        if image[:4] != b"\x7fELF" or struct.unpack_from("<H", image, 0x12)[0] != _CUDA:
            return None
        (version,), (flags,) = struct.unpack_from("<I", image, 0x14), struct.unpack_from("<I", image, 0x30)
        is_old = image[8] == _OLD_ABI
        capability = flags & 0xFF if is_old else flags >> 8 & 0xFF
        return cls(_sections(image), capability, version if is_old else None)

    def functions(self) -> list[str]:
        """Return the names of the functions."""
        return [name.removeprefix(".text.") for name in self.sections if name.startswith(".text.")]

    def attributes(self, function: str = "") -> Iterator[tuple[int, memoryview]]:
        """Yield number and value of each attribute of a function, or of those that all functions share."""
        section = self.sections.get(f".nv.info.{function}" if function else ".nv.info")
        info, at = section.content if section else memoryview(b""), 0
        while at + 4 <= len(info):
            form, attribute, size = struct.unpack_from("<BBH", info, at)
            end = at + 4 + (size if form == _SIZED_VALUE else 0)
            yield attribute, info[at + 4 : end]
            at = end

    def values(self, attribute: int) -> dict[str, int]:
        """Return the number that `.nv.info` gives each function for an attribute."""
        symbols = self._symbols()
        pairs = [struct.unpack("<II", value) for number, value in self.attributes() if number == attribute]
        return {symbols[index]: value for index, value in pairs}

    def _symbols(self) -> list[str]:
        names = bytes(self.sections[".strtab"].content)
        return [_text(names, entry[0]) for entry in _SYMBOL.iter_unpack(self.sections[".symtab"].content)]


def _sections(image: bytes) -> dict[str, Section]:
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + i * size) for i in range(count)]
    names, view = image[headers[names_index][4] :], memoryview(image)
    return {
        _text(names, name): Section(length, view[:0] if kind == _NO_BITS else view[offset : offset + length])
        for name, kind, _, _, offset, length, *_ in headers
    }


def _text(table: bytes, offset: int) -> str:
    """Return the zero-terminated text at an offset of a string table."""
    return table[offset : table.index(b"\0", offset)].decode()


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
