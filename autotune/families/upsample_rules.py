"""The parameter of kernels for Upsample that says whether they interpolate."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.families.rules import require
from autotune.ir import Upsample

LINEAR = Parameter("linear", (0, 1), "1: linear interpolation; 0: the nearest pixel")


def require_mode(problem: Upsample, config: Config, arch: Architecture) -> str | None:
    """Require that a kernel is the one compiled for the problem's mode."""
    return require(
        problem.linear == config["linear"],
        f"this kernel is compiled for linear = {config['linear']}; the problem's mode is {problem.mode}",
    )
