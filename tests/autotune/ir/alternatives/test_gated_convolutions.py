"""Layers taken together: which can be, and what becomes of their operands."""

import pytest

from autotune.ir import ConstantExpr, Epilogue, Layer
from autotune.ir.alternatives.gated_convolutions import fold_gate, fuse_projection
from autotune.ir.operators import Conv2d, SeTail


def conv(chain, groups=1, name="conv", **buffers):
    epilogue = Epilogue.parse(chain)
    problem = Conv2d(n=2, h=4, w=4, c=16, k=32, r=3, s=3, pad=(1, 1), groups=groups, dtype="f32", epilogue=epilogue)
    vectors = {a.name: f"{name}.{a.name}" for a in epilogue.arguments if a.kind == "vector"}
    scalars = tuple(f"{name}.scalar{a.index}" for a in epilogue.arguments if a.kind == "scalar")
    return Layer(
        name, problem, {"x": "image", "y": "made", **buffers}, {"weight": f"{name}.weight", **vectors}, scalars
    )


def tail(chain, **buffers):
    problem = SeTail(n=2, h=4, w=4, c=32, hidden=2, dtype="f32", epilogue=Epilogue.parse(chain))
    vectors = {a.name: f"tail.{a.name}" for a in problem.epilogue.arguments if a.kind == "vector"}
    weights = {key: key for key in ("w1", "b1", "w2", "b2")} | vectors
    return Layer("tail", problem, {"x": "made", "y": "out", **buffers}, weights)


def projection(chain="none"):
    problem = Conv2d(n=2, h=4, w=4, c=8, k=32, dtype="f32", epilogue=Epilogue.parse(chain))
    return Layer("projection", problem, {"x": "pooled", "y": "identity"}, {"weight": "projection.weight"})


def test_what_is_linear_before_a_gate_is_folded_into_its_filter():
    one = fold_gate(conv("bias,scale,add_scalar"), tail("add,bias", add0="identity"), "both")
    assert str(one.problem.epilogue) == "bias,scale,add_scalar,gate,add,bias"
    assert one.weights["w1"] == ConstantExpr("squeeze_filter", ("conv.weight", "w1", "conv.scale1"))
    shift = ConstantExpr("sum", (ConstantExpr("product", ("conv.bias0", "conv.scale1")), "conv.scalar0"))
    assert one.weights["b1"] == ConstantExpr("squeeze_bias", ("b1", "w1", shift))
    assert one.buffers == {"x": "image", "y": "out", "add2": "identity"}


@pytest.mark.parametrize(
    "layer", [conv("bias,relu"), conv("add"), conv("bias", groups=2)], ids=["relu", "add", "groups"]
)
def test_what_is_not_linear_is_not_folded(layer):
    assert fold_gate(layer, tail("add,relu"), "both") is None


def test_a_projection_that_is_added_behind_a_gate_joins_it():
    one = fold_gate(conv("bias"), tail("add,scale,relu,store", add0="identity", store2="kept"), "both")
    skip = fuse_projection(one, projection(), "skip")
    assert str(skip.problem.epilogue) == "bias,gate,project,scale,relu,store"
    assert (skip.problem.skip_c, skip.problem.skip_groups) == (8, 1)
    assert skip.buffers == {"x": "image", "y": "out", "skip": "pooled", "store2": "kept"}
    assert skip.weights["projection"] == "projection.weight" and skip.weights["scale1"] == "tail.scale1"


@pytest.mark.parametrize(
    ("chain", "project"),
    [("relu,add", projection()), ("relu", projection()), ("add", projection("bias"))],
    ids=["not at once", "nothing added", "more than a product"],
)
def test_another_projection_does_not(chain, project):
    buffers = {"add0": "identity"} if "add" in chain else {}
    assert fuse_projection(fold_gate(conv("none"), tail(chain, **buffers), "both"), project, "skip") is None


def test_a_projection_of_something_else_does_not():
    assert fuse_projection(fold_gate(conv("none"), tail("add", add0="other"), "both"), projection(), "skip") is None
