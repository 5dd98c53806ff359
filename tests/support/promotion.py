"""How exact sums of e4m3 products are with promotion and without, in the emulator, which adds as Hopper does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from emulator import Emulated
from kernels import spread_inputs
from reference import solve

from autotune.families import Kernel
from autotune.ir import Problem


def bytes_off(
    family: str, config: Mapping[str, Any], problem: Problem, launch: Mapping[str, int], folder: Path
) -> dict[int, int]:
    """Return `promote` -> bytes of y that are off, because a sum's error passes the middle of two; for 0 and 1."""
    tensors, scalars = spread_inputs(problem)
    exact = solve(problem, tensors, scalars)["y"].clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
    off = {}
    for promote in (0, 1):
        built = folder / str(promote)
        built.mkdir()
        kernel = Kernel.of(family, {**config, "promote": promote}, problem.dtype, problem.epilogue, "sm_90")
        found = Emulated(kernel, built).run(problem, tensors, scalars, launch, 1)["y"].double()
        off[promote] = int((found != exact).sum())
    return off
