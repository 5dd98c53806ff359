"""Reads the machine code of a kernel from a CUDA device image; kernel_resources.py describes the format."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.codegen.kernel_resources import Cubin, image_resources

INSTRUCTION_BYTES = 16
"""Bytes of an instruction since sm_70."""


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


def machine_code(image: bytes, symbol: str) -> MachineCode | None:
    """Return the code of function `symbol` of a device image; None if the image has no such function."""
    cubin = Cubin.read(image)
    text = cubin.sections.get(f".text.{symbol}") if cubin else None
    if not cubin or not text:
        return None
    found = image_resources(image).get(symbol)
    resources: dict[str, object] = {"registers": found and found.registers}
    for name, section in cubin.sections.items():
        kind = name.removesuffix(f".{symbol}")
        if kind == name:
            continue
        if kind == ".nv.shared":
            resources[kind] = section.size
        elif kind.startswith(".nv.constant"):
            resources[kind] = bytes(section.content)
    code = bytes(text.content)
    return MachineCode(
        tuple(code[i : i + INSTRUCTION_BYTES] for i in range(0, len(code), INSTRUCTION_BYTES)), resources
    )
