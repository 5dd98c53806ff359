"""Starts commands whose processes never outlive this one, also if it is killed with SIGKILL.

process_tree_main.py runs between this process and the command.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_MAIN = Path(__file__).with_name("process_tree_main.py")
_POLL_SECONDS = 0.005


class ProcessTree:
    """A running command with all processes below it.

    They form a session of their own, so Ctrl-C in the terminal reaches only this process. All of them have ended as
    soon as the command has, at the end of `stop`, and a few milliseconds after the end of this process.

    Args:
        command: The command with its arguments. Its standard input is empty.
        quiet: Discard its standard output and error.
        pass_fds: File descriptors that it inherits.
        env: Its environment; None for that of this process.
        cores: The cores that it may run on; none for those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        quiet: bool = False,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> None:
        output = subprocess.DEVNULL if quiet else None
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_MAIN), ",".join(map(str, sorted(cores))), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            env=env,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """Process id of the command; None if it has ended."""
        import psutil  # not needed to run a network

        while self.poll() is None:
            with suppress(psutil.NoSuchProcess, ValueError):  # no child: it starts or ends at this moment
                return int(min(psutil.Process(self._supervisor.pid).children(), key=psutil.Process.create_time).pid)
            time.sleep(_POLL_SECONDS)
        return None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while a process of the tree runs."""
        return self._supervisor.poll()

    def wait(self) -> int:
        """Wait for the end of the command, end all processes below it, and return its exit code."""
        return self._supervisor.wait()

    def stop(self) -> None:
        """Kill all processes of the tree and wait for their end. Another thread may call this."""
        assert self._supervisor.stdin
        self._supervisor.stdin.close()
        self._supervisor.wait()
