"""Compares results with those of a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from autotune.ir import BYTE_FORMATS

LIMIT = {"f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, "f32": 4e-6}
"""Largest relative error (see `relative_error`) by dtype: twice the rounding error of factors, sums and output."""


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| (2-norms, float64), or infinity if a value is not finite."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert actual.shape == expected.shape
    difference = (actual - expected).norm()
    if difference == 0:  # also where all expected values are 0, such as the places of a 1x1 window
        return 0.0
    error = float(difference / expected.norm())
    return error if math.isfinite(error) else math.inf


def assert_bytes_are_right(actual: torch.Tensor, expected: torch.Tensor, name: str, error: float = 2e-5) -> None:
    """Check that each value of an 8-bit format is the expected one, rounded.

    Both neighbours of a tie are accepted: of s8 within 1e-3 of it, or within a larger `error`; of e4m3 within `error`
    times the magnitude of the value plus that of its channel. Sums in float32, whose error is the default, leave few
    roundings open.
    """
    if actual.dtype == torch.float8_e4m3fn:
        spread = expected.square().flatten(0, -2).mean(0).sqrt().clamp_min(expected.square().mean().sqrt())
        allowed = error * (expected.abs() + spread)
        low, high = ((expected + side * allowed).clamp(-448, 448).float().to(actual.dtype).double() for side in (-1, 1))
        found = actual.cpu().double()
        wrong = ~((low <= found) & (found <= high))
        assert not wrong.any(), f"{name}: {int(wrong.sum())} of {wrong.numel()} bytes"
        certain = (low == high)[expected.abs() > 8]
        assert certain.double().mean() > (0.8 if error == 2e-5 else 0), "it would prove little to leave them open"
        assert found.std() > 5 and (found.abs() == 448).double().mean() < 0.1, "nor would one of saturated values"
        return
    slack, found = max(error, 1e-3), actual.cpu().double()
    low, high = ((expected + side * slack).clamp(-128, 127).round() for side in (-1, 1))
    wrong = (found < low) | (found > high)
    assert not wrong.any(), f"{name}: {int(wrong.sum())} of {wrong.numel()} bytes"
    assert expected.clamp(-128, 127).std() > 5, "a test of saturated bytes would prove little"


def assert_right(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], dtype: str, said: object = "",
    error: float = 2e-5,
) -> None:  # fmt: skip
    """Check outputs in a dtype, of an 8-bit format each value within `error` of it, and others by LIMIT."""
    for name, value in wanted.items():
        if dtype in BYTE_FORMATS:
            assert_bytes_are_right(found[name], value, f"{name}, {said}", error)
        else:
            assert relative_error(found[name], value) < LIMIT[dtype], f"{name}, {said}"
