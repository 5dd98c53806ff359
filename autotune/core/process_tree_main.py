"""Runs a command and ends it, with every process below it, when the process that started this one has ended.

Run as: python -I -S process_tree_main.py CORES COMMAND... by process_tree.py; CORES are numbers with commas between
them, or none for all that may be used. Standard input is a pipe whose other end only
the starting process holds, so the kernel closes it however that process ends. PR_SET_PDEATHSIG alone would not do: it
reaches direct children only, and fires already when the thread that started the child ends. As a subreaper this process
becomes the parent of every orphan below it, so it finds them whatever process groups and sessions they make.

It imports the standard library alone, so that it starts in some 20 ms.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_STARTER = 0  # standard input
_CAUGHT = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]  # the starting process decides what they mean
_KILL_SECONDS = 0.01  # interval at which the processes that are left are looked for
_STATE, _PARENT = 0, 1  # positions in /proc/PID/stat behind the command: fields 3 (state) and 4 (ppid)


def main(cores: str, command: list[str]) -> NoReturn:
    """Run a command and exit as it does: with its exit code, or by its signal."""
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _CAUGHT)
    child = os.fork()
    if not child:
        # If this process is killed itself, at least the command must not live on.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _execute(command)
    _close_files()  # what was passed on to the command, so that its other end is told when the command ends
    ended: dict[int, int] = {}
    _wait(child, ended)
    _end_processes(ended)
    _exit_as(ended[child])


def _execute(command: list[str]) -> NoReturn:
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STARTER)
        os.execvp(command[0], command)
    finally:
        os._exit(127)  # as a shell does for a command that is not found


def _close_files() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > sys.stderr.fileno():
            with suppress(OSError):  # the listing's own descriptor
                os.close(int(name))


def _wait(child: int, ended: dict[int, int]) -> None:
    """Wait until the command ends, or until the starting process ends or asks to stop."""
    woken, wakes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written to the pipe
    while _reap(ended) and child not in ended:  # it may have ended before there was a handler
        ready, _, _ = select.select([_STARTER, woken], [], [])
        if _STARTER in ready:
            return
        os.read(woken, 4096)


def _reap(ended: dict[int, int]) -> bool:
    """Store the wait status of each child that has ended; return whether others are left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            ended[pid] = status
    except ChildProcessError:
        return False


def _end_processes(ended: dict[int, int]) -> None:
    """Kill all processes below this one, and wait until none is left."""
    while _reap(ended):
        for pid in _descendants():
            with suppress(OSError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_SECONDS)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[_STATE] not in b"ZX":
                children.setdefault(int(fields[_PARENT]), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows meanwhile
        found += children.get(pid, [])
    return found


def _exit_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has written its own
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
