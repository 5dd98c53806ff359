"""The `autotune` command: finds the subcommand, runs it, and turns errors and signals into a sentence and an exit code.

A subcommand is a module in commands/ with `main(arguments)`, which returns the exit code or None for 0. The module of
the same name in arguments/ has its `add_arguments(parser)` and the docstring that starts its --help. It does not import
torch, which takes seconds. Only the modules of the chosen subcommand are imported.

Ctrl-C (SIGINT), SIGTERM and SIGHUP each end a command in order, with exit code 128 + their number.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

COMMANDS = {
    "Tune": {
        "tune": "tune a network's layers or single problems",
        "db": "show, merge, sync, pack, export, compare and sign databases",
        "report": "write a database as one HTML page",
        "verify": "run a database's plans here: right, and as fast as recorded?",
        "memory": "show the memory of a database's plans without their GPU",
    },
    "Measure": {
        "bench": "time FusedResNet against eager torch and torch.compile",
        "bench-layers": "compare tuned kernels with cuDNN layer by layer",
        "accuracy": "measure the accuracy of each precision",
        "profile": "list operators and kernels below each module",
        "algorithms": "list and time cuDNN's convolution algorithms",
        "figures": "list, check and measure the figures of README and docs",
    },
}
"""Heading -> subcommand -> line of `autotune --help`."""

NAMES = tuple(name for group in COMMANDS.values() for name in group)
EXIT_USER_ERROR, EXIT_HANGUP, EXIT_BROKEN_PIPE = 2, 129, 141
BY_SIGNAL = 128
"""Exit codes above this one say that a signal has ended a command."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDOUT, _STDERR = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `autotune` command.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        The exit code: 2 for an error that the user can correct, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="autotune",
        usage="autotune COMMAND [options]\n       autotune --version",
        description="Tune kernels for a network's layers, and run the network on the fastest of them.",
        epilog=_command_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("command", nargs="?", choices=NAMES, metavar="COMMAND", help="a command of those below")
    known = parser.parse_args(words[:1])
    if known.version:
        print(f"autotune {_version()}")
        return 0
    if not known.command:
        parser.error("a COMMAND is missing; autotune --help lists them")
    return run_command(known.command, words[1:], f"autotune {known.command}")


def run_script(name: str) -> NoReturn:
    """Run a subcommand with the arguments of the process, whose script is its entry point, and exit."""
    sys.exit(run_command(name, sys.argv[1:], f"python {_own_path()}"))


def run_command(name: str, argv: Sequence[str], program: str) -> int:
    """Run a subcommand; its arguments hold the time.monotonic() of this call as `started`.

    Args:
        name: The subcommand, such as "bench-layers".
        argv: Its arguments.
        program: The text of the command line before them, for the help text.

    Returns:
        The exit code.

    Raises:
        SystemExit: After --help, and for arguments that cannot be parsed.
    """
    started = time.monotonic()  # the import of torch, which takes seconds, counts

    def work() -> int:
        options = importlib.import_module(options_module(name))
        about = (options.__doc__ or "").replace(f"autotune {name} ", f"{program} ")
        arguments = _parsed(program, about, options.add_arguments, argv, started)
        module = importlib.import_module(f"autotune_cli.commands.{_file(name)}")
        with handled_by(interrupt):
            return int(module.main(arguments) or 0)

    return _exit_code(work)


def run_program(
    about: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], object],
    program: Callable[[argparse.Namespace], int | None],
) -> NoReturn:
    """Run a program of the checkout as a command is run, with the arguments of the process, and exit.

    Args:
        about: The description for --help.
        add_arguments: Adds the options.
        program: Takes the arguments and returns the exit code, or None for 0.
    """
    started = time.monotonic()

    def work() -> int:
        arguments = _parsed(f"python {_own_path()}", about or "", add_arguments, sys.argv[1:], started)
        with handled_by(interrupt):
            return int(program(arguments) or 0)

    sys.exit(_exit_code(work))


def _own_path() -> str:
    """Return the path of the process's script: absolute, or relative to the current folder if that is shorter."""
    return min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)


def _parsed(
    program: str,
    about: str,
    add_arguments: Callable[[argparse.ArgumentParser], object],
    argv: Sequence[str],
    started: float,
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    return parser.parse_args(list(argv), argparse.Namespace(started=started))


def _exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of some work; errors that the user can correct become one sentence."""
    try:
        with handled_by(exit_now):
            return work()
    except KeyboardInterrupt as interrupt:
        code = exit_code(interrupt)
        print(sentence(code), file=sys.stderr)
        return code
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if is_lost_terminal(error):
            return EXIT_HANGUP
        if (said := _sentence(error)) is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        return EXIT_USER_ERROR


def options_module(name: str) -> str:
    """Return the name of the module that has the options of a subcommand, and the text of its --help."""
    return f"autotune_cli.arguments.{_file(name)}"


def _file(name: str) -> str:
    return name.replace("-", "_")


def _sentence(error: Exception) -> str | None:
    """Return what a user should read of an error that the user can correct; None for another error."""
    from autotune.core import AutotuneError
    from tuning_db import DatabaseError

    if isinstance(error, (AutotuneError, DatabaseError)):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror}"
    return None


def _command_list() -> str:
    """Return the subcommands by group, a line each."""
    width = max(map(len, NAMES)) + 2
    groups = [
        "\n".join([f"{heading}:", *(f"  {name:{width}}{about}" for name, about in commands.items())])
        for heading, commands in COMMANDS.items()
    ]
    return "\n\n".join([*groups, "autotune COMMAND --help describes a command."])


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("autotune-cutlass")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


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
