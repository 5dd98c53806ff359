"""A measuring process whose GPU has no memory at its first starts: full_gpu.py FD COUNTER STARTS CODE [ARGUMENT...].

COUNTER is a file that gets a byte for each start; STARTS is the number of starts without memory; CODE is NO_MEMORY.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    descriptor, counter, starts, code, *arguments = sys.argv[1:]
    with Path(counter).open("a") as file:
        file.write("x")
    if Path(counter).stat().st_size <= int(starts):
        sys.exit(int(code))
    from autotune.measure.worker_main import main  # with torch, whose import takes seconds

    sys.argv[1:] = [descriptor, *arguments]
    main()
