"""How far a result in an 8-bit format may be from the exact one.

A kernel's value before its last rounding may differ from the exact value by an allowance. Rounding is monotonic, so a
right byte lies between the roundings of (exact value - allowance) and (exact value + allowance). Where both are the
same number no other is accepted. Numbers of e4m3 are 6 to 12 % apart, and the allowance is 0.002 % of a value, or up to
6.3 % where tensor cores round the sums.
"""

from __future__ import annotations

import torch

from autotune.ir import S8, ByteFormat

WHOLE_SLACK = 1e-3
"""Error of an int8 result before it is rounded to a whole number.

int8 sums are exact, unless `ir.sum_error` says otherwise. The epilogue runs in float32 and may lose a few roundings of
values up to some hundreds."""
FLOAT_SLACK = 2e-5
"""Error of an e4m3 result before it is rounded, relative to its spread: sums and epilogue run in float32."""


def nominal(form: ByteFormat, of_sums: float) -> float:
    """Return the allowance of a format in one number: absolute for s8, relative to the spread of values for e4m3."""
    return (WHOLE_SLACK if form is S8 else FLOAT_SLACK) + of_sums


def allowance(form: ByteFormat, expected: torch.Tensor, of_sums: float) -> torch.Tensor:
    """Return how far each value may be off before it is rounded; one number if it is the same for all.

    Args:
        form: The format of the result.
        expected: The exact values, channels last.
        of_sums: What `ir.sum_error` returned.
    """
    if form is S8:
        return expected.new_tensor(nominal(form, of_sums))
    # A channel with a large scale has large errors, also where a value is small by chance.
    whole, channels = expected.square().mean().sqrt(), expected.square().flatten(0, -2).mean(0).sqrt()
    return nominal(form, of_sums) * (expected.abs() + channels.clamp_min(whole))


def fault(form: ByteFormat, actual: torch.Tensor, expected: torch.Tensor, of_sums: float) -> str | None:
    """Return what is wrong with a result in an 8-bit format; None if it is right.

    Args:
        form: The format.
        actual: The result in the dtype of `expected`.
        expected: The exact values, channels last; those beyond the range of the format saturate.
        of_sums: What `ir.sum_error` returned.
    """
    allowed = allowance(form, expected, of_sums)
    wrong = (actual < form.rounded(expected - allowed)) | (actual > form.rounded(expected + allowed))
    if not bool(wrong.any()):
        return None
    worst = float((actual - expected.clamp(*form.range))[wrong].abs().max())
    return f"an element that is off by {worst:.3f} before rounding"
