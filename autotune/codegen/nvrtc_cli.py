"""Compiles a CUDA source to a cubin with NVRTC, as a command: nvrtc_cli.py LIBRARY [SOURCE OUTPUT OPTION...].

Without a source it prints the library's version. NVRTC needs neither nvcc nor a host compiler, and its version 12.9
still knows sm_70. The compiler's messages go to stderr; the exit code is 0 or 1.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compile_cubin(library: str, source: Path, output: Path, options: list[str]) -> bool:
    """Compile a CUDA source and, if it compiles, write the cubin.

    Args:
        library: Path of libnvrtc.
        source: The CUDA source.
        output: The cubin.
        options: Options of NVRTC.

    Returns:
        Whether the source compiled.
    """
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC looks for it only where the system's loader does
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), source.name.encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    encoded = [option.encode() for option in options]
    status: int = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    sys.stderr.write(_text(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
    if status == 0:
        output.write_bytes(_text(nvrtc, program, "CUBIN"))
    return status == 0


def main() -> int:
    """Run the command and return its exit code."""
    library, *rest = sys.argv[1:]
    if not rest:
        major, minor = ctypes.c_int(), ctypes.c_int()
        ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        print(f"{major.value}.{minor.value}")
        return 0
    source, output, *options = rest
    return 0 if compile_cubin(library, Path(source), Path(output), options) else 1


if __name__ == "__main__":
    sys.exit(main())
