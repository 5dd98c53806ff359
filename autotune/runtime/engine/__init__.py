"""The C++ engine: loads binaries, prepares kernels, runs programs. Knows nothing of torch."""

from autotune.runtime.engine._engine import (
    ABI_VERSION,
    DeviceImage,
    EngineError,
    FastPath,
    Graph,
    Prepared,
    Program,
    RefusedError,
    SharedLibrary,
    StateWatch,
    create_stream,
    same_objects,
)
