"""Processes that never outlive this one, also if it is killed with SIGKILL: commands, and a child that owns a device.

process_tree_main.py runs between this process and the command, and ends all that is below it.

Work on a device may crash, hang or ruin the device's context. It therefore runs in a child process, and each way in
which the child can fail becomes an `Ended` record instead of an exception.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Ended:
    """The child process ended without an answer, and has been stopped.

    status: "crashed" (the process died) or "timed_out" (it was killed at the deadline).
    reason: one line, such as "the process died: SIGSEGV".
    killed: it was killed from outside, by a user or by the operating system for want of memory.
    code: exit code of the process, negative for a signal; None if it was killed at the deadline.
    """

    status: str
    reason: str
    killed: bool = False
    code: int | None = field(default=None, compare=False)


class ChildProcess:
    """A child process that exchanges messages with this one. It is started on demand and may be started again.

    Args:
        module: Name of the module that the child runs, as for `python -m`. The child gets the file descriptor of its
            connection as its first argument; `accept` opens it.
        arguments: Further arguments of the module.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._module, self._arguments = module, tuple(arguments)
        self._process: ProcessTree | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while no child runs."""
        process = self._process
        return process.pid if process else None

    @property
    def running(self) -> bool:
        """True while a child runs."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def started(self) -> bool:
        """True if a child was started and not stopped since. It may have died meanwhile."""
        return self._process is not None

    def start(self) -> None:
        """Start the child; end one that runs already."""
        self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), *self._arguments]
            # The child imports what this process imports, from the same folders.
            folders = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
            environment = {**os.environ, "PYTHONPATH": folders}
            with _signals_blocked():
                self._process = ProcessTree(command, pass_fds=[theirs.fileno()], env=environment)
        self._connection = Connection(ours.detach())

    def send(self, message: object) -> None:
        """Send a message. If the child has died, nothing is sent and the next `receive` says how it ended."""
        assert self._connection, "the child process was not started"
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    @property
    def has_message(self) -> bool:
        """True if `receive` would return at once: there is a message, or the child has died."""
        try:
            return self._connection is None or self._process is None or self._connection.poll()
        except (BrokenPipeError, ConnectionResetError):
            return True

    def receive(self, deadline: float) -> Any | Ended:
        """Wait for the next message of the child.

        Args:
            deadline: Seconds to wait; after that the child is killed.

        Returns:
            The message, or `Ended` if the child died or missed the deadline.
        """
        connection, process = self._connection, self._process
        if connection is None or process is None:
            return Ended("crashed", "the process was stopped")
        try:
            if not connection.poll(deadline):
                self.stop()
                return Ended("timed_out", f"no answer within {deadline:g} s")
            return connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            code = process.wait()
            killed = code == -signal.SIGKILL and self._process is process  # else `stop` was called
            self.stop()
            return Ended("crashed", f"the process died: {_exit_name(code)}", killed, code)

    def stop(self) -> None:
        """Kill the child, if there is one, and wait for its end.

        Another thread may call this: a `receive` that waits then returns `Ended`.
        """
        process, self._process = self._process, None
        if process is not None:
            process.stop()


def accept(descriptor: str) -> Connection:
    """Open the child's end of the connection. descriptor: the child's first argument."""
    return Connection(int(descriptor))


def _exit_name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals that end this process in order: a child that is started inside inherits that.

    A service manager sends them to all processes of a service. The child's end would look like the fault of what it
    was working on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
