"""Rewrites of neighbouring layers into others that compute the same, with weights computed from theirs."""

from __future__ import annotations

from autotune.ir.alternatives.joining import (
    add_arguments,
    fields_without_epilogue,
    joint_problem,
)
from autotune.ir.network import Layer
from autotune.ir.operators import (
    Cast,
    Stem,
    StemCast,
)


def fuse_cast(stem: Layer, cast: Layer, name: str) -> Layer | None:
    """Return a stem and the cast after it as one layer.

    None if a step of the stem accesses a tensor, which would be in another dtype, or if there are too many scalars.
    """
    first, after = stem.problem, cast.problem
    assert isinstance(first, Stem) and isinstance(after, Cast)
    if first.epilogue.accesses_tensors:
        return None
    names = (*first.epilogue.names, *after.epilogue.names)
    problem = joint_problem(StemCast, names, **fields_without_epilogue(first), result=after.result)
    if problem is None:
        return None
    buffers, weights = {"x": stem.buffers["x"], "y": cast.buffers["y"]}, {"weight": stem.weights["weight"]}
    old = [(layer, one) for layer in (stem, cast) for one in layer.problem.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, (*stem.scalars, *cast.scalars))
