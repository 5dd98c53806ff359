"""Reads the machine code of a kernel from a CUDA device image.

A device image (cubin) is a 64-bit ELF file. Function S has the section `.text.S` with its instructions, 16 bytes each
since sm_70, `.nv.shared.S` with the size of its static shared memory, and `.nv.constant*.S` with its constants and the
size of its parameters. The section `.nv.info` has the number of registers of each function. Sources: the ELF-64 object
file format, version 1.5; for `.nv.info` the output of `cuobjdump -elf`, because NVIDIA does not document it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

INSTRUCTION_BYTES = 16
_NO_BITS = 8  # sh_type of a section that takes no bytes in the file
_SYMBOL = struct.Struct("<IBBHQQ")
_SIZED_VALUE = 4  # format of an attribute of .nv.info whose length follows; the others have 4 bytes in all
_REGISTER_COUNT = 0x2F  # attribute of .nv.info: index of a symbol, registers of a thread


@dataclass(frozen=True)
class MachineCode:
    """The code of one function.

    Attributes:
        instructions: The bytes of each instruction, in order.
        resources: What a launch of the function needs: "registers", and section -> bytes or contents.
    """

    instructions: tuple[bytes, ...]
    resources: dict[str, object]

    def differing(self, other: MachineCode) -> int:
        """Return the number of places at which the instructions differ."""
        longest = max(len(self.instructions), len(other.instructions))
        same = sum(a == b for a, b in zip(self.instructions, other.instructions, strict=False))
        return longest - same


class _Section(NamedTuple):
    size: int
    content: bytes


def machine_code(image: bytes, symbol: str) -> MachineCode | None:
    """Return the code of function `symbol` of a device image; None if the image has no such function."""
    if image[:4] != b"\x7fELF":
        return None
    sections = _sections(image)
    if not (text := sections.get(f".text.{symbol}")):
        return None
    resources: dict[str, object] = {"registers": _registers(sections, symbol)}
    for name, section in sections.items():
        kind = name.removesuffix(f".{symbol}")
        if kind == name:
            continue
        if kind == ".nv.shared":
            resources[kind] = section.size
        elif kind.startswith(".nv.constant"):
            resources[kind] = section.content
    code = text.content
    return MachineCode(
        tuple(code[i : i + INSTRUCTION_BYTES] for i in range(0, len(code), INSTRUCTION_BYTES)), resources
    )


def _sections(image: bytes) -> dict[str, _Section]:
    """Return the sections of an ELF file by name."""
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + i * size) for i in range(count)]
    names = image[headers[names_index][4] :]
    return {
        _text(names, name): _Section(length, b"" if kind == _NO_BITS else image[offset : offset + length])
        for name, kind, _, _, offset, length, *_ in headers
    }


def _text(table: bytes, offset: int) -> str:
    """Return the zero-terminated text at an offset of a string table."""
    return table[offset : table.index(b"\0", offset)].decode()


def _registers(sections: dict[str, _Section], symbol: str) -> int | None:
    """Return the registers of a thread of a function; None if the image does not tell."""
    if not {".nv.info", ".symtab", ".strtab"} <= sections.keys():
        return None
    names = sections[".strtab"].content
    symbols = [_text(names, entry[0]) for entry in _SYMBOL.iter_unpack(sections[".symtab"].content)]
    info, at = sections[".nv.info"].content, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == _SIZED_VALUE and attribute == _REGISTER_COUNT:
            index, registers = struct.unpack_from("<II", info, at + 4)
            if symbols[index] == symbol:
                return int(registers)
        at += 4 + (size if form == _SIZED_VALUE else 0)
    return None
