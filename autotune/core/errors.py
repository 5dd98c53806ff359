"""Errors that a user can cause. Each message is one sentence: what was given, what is supported, what to do."""


class AutotuneError(Exception):
    """Base class of all errors that this project raises on purpose."""


class UnknownNameError(AutotuneError, ValueError):
    """A name of an architecture, model, family, operator or dtype that does not exist."""


class ProblemError(AutotuneError, ValueError):
    """A problem with invalid sizes or an invalid epilogue."""


class CaptureError(AutotuneError, ValueError):
    """A model that cannot be captured; the message names the submodule."""


class FamilyError(AutotuneError):
    """A user-defined family that cannot be loaded or rendered."""


class ToolchainError(AutotuneError):
    """No usable compiler, or a compiler that does not support the target."""


class LibraryError(AutotuneError):
    """A library such as cuDNN that is not installed, is too old, or cannot solve a problem."""


class WorkerError(AutotuneError):
    """A measuring process that cannot be started."""


class OutOfTimeError(AutotuneError):
    """The deadline of the run has passed while an answer was waited for."""


class LayerError(AutotuneError):
    """A layer of a network whose candidate fails when it runs.

    Args:
        layer: Name of the layer.
        error: The failure.

    Attributes:
        layer: Name of the layer.
    """

    def __init__(self, layer: str, error: Exception) -> None:
        super().__init__(f"the layer '{layer}' fails: {in_one_line(error)}")
        self.layer = layer


def require_one_of(kind: str, name: str, known: list[str]) -> str:
    """Return `name` if it is one of the known names.

    Args:
        kind: Kind of the name, for the message.
        name: The name.
        known: All names of this kind.

    Raises:
        UnknownNameError: The name is not known; the message lists the known ones.
    """
    if name not in known:
        raise UnknownNameError(f"unknown {kind} '{name}': choose one of {', '.join(known)}")
    return name


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that is not empty; the error's type without one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def in_one_line(error: Exception) -> str:
    """Return the type and the first line of an error; the line alone if the error is one of this project."""
    kind, line = type(error).__name__, first_line(error)
    return line if isinstance(error, AutotuneError) or line == kind else f"{kind}: {line}"
