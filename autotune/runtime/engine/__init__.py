"""The C++ engine: loads binaries, prepares kernels, runs programs. Knows nothing of torch."""

from autotune.runtime.engine._engine import (
    ABI_VERSION,
    Calls,
    DeviceImage,
    EngineError,
    Graph,
    Prepared,
    Program,
    RefusedError,
    SharedLibrary,
    Watch,
)

__all__ = [
    "ABI_VERSION",
    "Calls",
    "DeviceImage",
    "EngineError",
    "Graph",
    "Prepared",
    "Program",
    "RefusedError",
    "SharedLibrary",
    "Watch",
]
