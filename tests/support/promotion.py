"""How exact sums of e4m3 products are with promotion and without, in the emulator, which adds as Hopper does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emulator import Emulated
from kernels import spread_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import MAX_SUM_ERROR, Problem, parse, sum_error


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


def assert_inexact_sums_are_promoted(name: str, config: Mapping[str, Any]) -> None:
    """Check that a family of Hopper counts the error of sums without promotion, and refuses one that is too large."""
    found, sm90 = family(name), architecture("sm90")
    few, many = (parse(f"conv2d n=8 h=7 w=7 c={c} k=64 r=3 s=3 pad=1 dtype=e4m3") for c in (512, 1024))
    plain = {**config, "promote": 0}
    assert sum_error(few, plain) == 152 * 2**-12 and sum_error(many, plain) == 296 * 2**-12 > MAX_SUM_ERROR
    assert sum_error(many, plain | {"promote": 2}) == pytest.approx((8 + (288 * 8) ** 0.5) * 2**-12)
    assert found.why_unfit(few, plain, sm90) is None
    assert found.why_unfit(many, plain, sm90).startswith("sums that are promoted so rarely are off by up to 7.23%")
    assert all(found.why_unfit(many, plain | {"promote": often}, sm90) is None for often in (1, 2, 4))
    costs = [found.cost(few, plain | {"promote": often}, sm90) for often in (1, 2, 4, 0)]
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]
