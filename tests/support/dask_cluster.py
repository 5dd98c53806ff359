"""A scheduler of Dask and its workers, each in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from repository import ROOT

DASK = [sys.executable, "-m", "dask"]


def free_port() -> int:
    """Return a port that nothing listens on, of those that the system gives to no outgoing connection."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class DaskProcesses:
    """The processes of a cluster; a context manager whose exit kills them.

    Args:
        folder: For the logs, and for what each worker builds.
        tls: Options of the scheduler and the workers for an encrypted connection.
    """

    def __init__(self, folder: Path, tls: tuple[str, ...] = ()) -> None:
        self._folder, self._tls = folder, tls
        self.address = f"{'tls' if tls else 'tcp'}://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start_scheduler()

    def __enter__(self) -> DaskProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self.end(process)

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler, also once more at the same address."""
        port = self.address.rpartition(":")[2]
        return self._start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", *self._tls)

    def start_worker(self, resources: str, threads: int = 4, **variables: str) -> subprocess.Popen[bytes]:
        """Start a worker, which has a folder of its own for what it builds."""
        options = ["--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--nthreads", str(threads)]
        return self._start("worker", self.address, *options, "--resources", resources, *self._tls, **variables)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, which may be stopped, and wait for its end."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        number = len(self._processes)
        environment = {
            **os.environ,
            "AUTOTUNE_GENERATED": str(self._folder / f"generated-{number}"),
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        with (self._folder / f"dask-{number}.log").open("wb") as log:
            command = [*DASK, *words]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._folder))
        return self._processes[-1]


class Proxy:
    """Hands on connections to a port, and cuts them; a context manager.

    Args:
        port: The port.
    """

    def __init__(self, port: int) -> None:
        self._port, self._sockets = port, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> int:
        """Close all connections, and return their number; new ones are accepted."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        return len(sockets) // 2

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one side is closed; then close the other."""
    with suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
