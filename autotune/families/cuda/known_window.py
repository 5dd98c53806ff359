"""Windows of pools and depthwise filters that kernels are compiled for: square ones of some sides and strides.

A kernel with filter=0 and stride=0 takes any other window at run time.
"""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.families.cuda.rules import require_access, require_whole_vectors, require_window
from autotune.families.rules import Rules, require
from autotune.ir import Conv2d, Pool2d

POOL_FILTERS = (2, 3)
"""Sides of the windows of pools that kernels are compiled for."""
STRIDES = (1, 2)
"""Strides of both axes that kernels are compiled for."""


def parameters(filters: tuple[int, ...] = POOL_FILTERS, what: str = "window") -> tuple[Parameter, Parameter]:
    """Return the parameters `filter` and `stride`; `what` is the field's word for the window."""
    return (
        Parameter("filter", (0, *filters), f"side of the {what}; 0: any"),
        Parameter("stride", (0, *STRIDES), "stride of both axes; 0: any"),
    )


def require_both(config: Config) -> str | None:
    """Require that a kernel knows both numbers of the window or neither."""
    return require(
        (config["filter"] == 0) == (config["stride"] == 0), "filter and stride must both be given, or both be 0"
    )


def column_rules(config: Config, dtype: str) -> Rules:
    """Yield the rules of a kernel whose threads take `columns` neighbouring windows of a row."""
    yield require_both(config)
    yield require(config["filter"] != 0 or config["columns"] == 1, "columns must be 1 if filter is 0")
    yield require_access(int(config["vector"]), dtype)


def why_unfit(
    problem: Conv2d | Pool2d, config: Config, arch: Architecture, filters: tuple[int, ...] = POOL_FILTERS
) -> str | None:
    """Return why a kernel does not fit a problem: its channels are no whole vectors, or it has another window."""
    return require_whole_vectors(problem.c, int(config["vector"])) or require_window(
        problem, filters, STRIDES, (int(config["filter"]), int(config["stride"]))
    )
