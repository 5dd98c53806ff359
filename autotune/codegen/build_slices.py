"""How compilations are shown in the trace of a tuning run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.codegen.kernel_resources import KernelResources
from autotune.core import timeline
from autotune.families import Kernel

_MAX_ERROR_CHARACTERS = 200  # a trace may hold thousands of units


def show(
    kernels: Sequence[Kernel], started: float, ended: float, error: str, resources: Sequence[KernelResources] = ()
) -> None:
    """Add the compilation of a translation unit to the trace.

    Args:
        kernels: The kernels of the unit, which are of one family.
        started: Wall-clock time of the start.
        ended: Wall-clock time of the end; that of the start if nothing was compiled.
        error: Why there is no binary; empty if there is one.
        resources: Those of each kernel; none if there is no device image.
    """
    if ended <= started or not timeline.is_recording():
        return
    known: dict[str, Any] = {"error": error[:_MAX_ERROR_CHARACTERS]} if error else {}
    if resources:
        known["registers"] = [one.registers for one in resources]
        known["spill_bytes"] = [one.spill_bytes for one in resources]
    count = f", {len(kernels)} kernels" if len(kernels) > 1 else ""
    timeline.add(
        timeline.Lane.COMPILER,
        f"{kernels[0].family}{count}",
        timeline.of_wall_clock(started),
        timeline.of_wall_clock(ended),
        kernels=[str(kernel) for kernel in kernels],
        **known,
    )
