"""What the CPU families share: how many threads a launch may use."""

from autotune.arch import Architecture
from autotune.families.base import Config, Launch, Parameter
from autotune.problem import Problem

THREADS = Parameter("threads", (0, 1), "0: torch's number of threads; 1: the caller's alone")


def threads(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """All threads, and one."""
    return [{"threads": 0}, {"threads": 1}]
