"""The errors a user can cause. Each message is one sentence: what was wrong, and what to do."""


class AutotuneError(Exception):
    """Base of every error that this project raises on purpose."""


class UnknownNameError(AutotuneError, ValueError):
    """An architecture, model, family, operator or dtype that does not exist."""


class ProblemError(AutotuneError, ValueError):
    """A problem whose sizes or epilogue make no sense."""


class CaptureError(AutotuneError, ValueError):
    """A model that cannot be captured: what stands in the way, and in which submodule."""


class FamilyError(AutotuneError):
    """A user's family that cannot be loaded, or whose template cannot be rendered."""


class ToolchainError(AutotuneError):
    """No usable compiler, or a compiler that cannot serve the target."""


class LibraryError(AutotuneError):
    """A vendor's library that is not installed, is too old, or cannot solve a problem."""


class WorkerError(AutotuneError):
    """The measuring process cannot be started at all."""


def require_one_of(kind: str, name: str, known: list[str]) -> str:
    """Return `name` if it is one of `known`; otherwise raise UnknownNameError that lists what is."""
    if name not in known:
        raise UnknownNameError(f"unknown {kind} '{name}': choose one of {', '.join(known)}")
    return name
