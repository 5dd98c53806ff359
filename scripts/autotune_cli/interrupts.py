"""Ctrl-C (SIGINT), SIGTERM and SIGHUP: each ends a command in order, with exit code 128 + its number."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

BY_SIGNAL = 128
"""Exit codes above this one say that a signal has ended a command."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDOUT, _STDERR = 1, 2


class Interrupted(KeyboardInterrupt):
    """One of the signals has arrived.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal has ended."""
    return BY_SIGNAL + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


def sentence(code: int) -> str:
    """Return what a command with this exit code prints."""
    number = code - BY_SIGNAL
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def exit_now(number: int, _: FrameType | None = None) -> NoReturn:
    """Exit at once: a handler for the time in which modules are imported, where an exception may be swallowed."""
    replace_lost_terminal()
    os.write(_STDERR, f"{sentence(BY_SIGNAL + number)}\n".encode())
    os._exit(BY_SIGNAL + number)


def interrupt(number: int, _: FrameType | None = None) -> NoReturn:
    """Raise Interrupted: a handler for the time in which there are results to save."""
    replace_lost_terminal()
    raise Interrupted(number)


def is_lost_terminal(error: Exception) -> bool:
    """Return whether an error is that of output to a terminal that was closed, and discard further output to it.

    Such output may come before the SIGHUP, or instead of it.
    """
    return isinstance(error, OSError) and error.errno == errno.EIO and replace_lost_terminal()


def replace_lost_terminal() -> bool:
    """Discard further output to a terminal that was closed, which would fail; return whether there was one."""
    lost = False
    for descriptor in (_STDOUT, _STDERR):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            lost = True
    return lost


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], NoReturn]) -> Iterator[None]:
    """Handle the signals inside, apart from those that the starter of the process ignores, as nohup does."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
