"""Operands of se_tail and space_to_depth."""

from autotune.ir import Epilogue
from autotune.ir.operators import SeTail, SpaceToDepth


def test_se_tail_and_space_to_depth_operands():
    tail = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f32", epilogue=Epilogue.parse("add,relu"))
    assert [operand.name for operand in tail.operands()] == ["x", "w1", "b1", "w2", "b2", "y", "add0"]
    shapes = {operand.name: operand.shape for operand in tail.operands()}
    assert (shapes["w1"], shapes["b1"], shapes["w2"], shapes["b2"]) == ((2, 16), (2,), (16, 2), (16,))
    patches = SpaceToDepth(n=2, h=8, w=12, c=3, block=4, dtype="f16")
    assert [operand.shape for operand in patches.operands()] == [(2, 3, 8, 12), (2, 2, 3, 48)]
