"""se_block problems against their parts."""

from autotune.ir import parse
from autotune.ir.operators import Conv2d, SeTail


def test_a_blocks_operands_and_work_are_those_of_its_parts():
    block = parse("se_block n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=bias,conv,gate,add")
    names = ["x", "weight1", "weight2", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in block.operands()] == names
    tail = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f16")
    conv = Conv2d(n=2, h=3, w=4, c=16, k=16, r=3, s=3, pad=(1, 1), dtype="f16")
    shapes = {operand.name: operand.shape for part in (conv, tail) for operand in part.operands()}
    shapes |= {"weight1": shapes["weight"], "weight2": shapes["weight"]}
    assert all(operand.shape == shapes[operand.name] for operand in block.operands()[:8])
    assert block.flops == 2 * conv.flops + tail.flops
