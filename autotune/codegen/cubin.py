"""Reads device images (cubins): ELF files with the machine code of functions and what a launch of each needs.

Function S has the section `.text.S` with its instructions, `.nv.shared.S` with the size of its static shared memory,
and `.nv.constant*.S` with its constants and the size of its parameters. The section `.nv.info` has attributes of all
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
