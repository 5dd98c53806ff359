"""A measuring process whose GPU has no memory at its first starts: full_gpu.py FD COUNTER STARTS [ARGUMENT...].

COUNTER is a file that gets a byte for each start; STARTS is the number of starts without memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.measure.protocol import NO_MEMORY
from autotune.measure.worker_main import main

if __name__ == "__main__":
    descriptor, counter, starts, *arguments = sys.argv[1:]
    with Path(counter).open("a") as file:
        file.write("x")
    if Path(counter).stat().st_size <= int(starts):
        sys.exit(NO_MEMORY)
    sys.argv[1:] = [descriptor, *arguments]
    main()
