"""The problems that compute one pass: its own, and others with the same result."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.ir.operators import Conv2dDgrad, Convolution
from autotune.ir.problem import Problem


@dataclass(frozen=True)
class Form:
    """A problem that computes a pass.

    Attributes:
        problem: The problem.
        turned: Whether its weight is the turned weight of the pass (see `turn_weight`).
    """

    problem: Convolution
    turned: bool = False


def forms(problem: Convolution) -> tuple[Form, ...]:
    """Return the forms of a pass, its own problem first.

    An input gradient with stride 1 is a convolution, too, and there are more kernels for that operator.
    """
    convolution = problem.as_convolution() if isinstance(problem, Conv2dDgrad) else None
    return (Form(problem), *([Form(convolution, turned=True)] if convolution else []))


def all_forms(problem: Problem) -> list[Problem]:
    """Return a problem and, if it is a pass, the problems of its other forms."""
    return [form.problem for form in forms(problem)] if isinstance(problem, Convolution) else [problem]
