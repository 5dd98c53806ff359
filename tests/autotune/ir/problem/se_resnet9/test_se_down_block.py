"""se_down_block problems against their parts."""

from autotune.ir import parse
from autotune.ir.operators import AvgPool2d, Conv2d, SeTail


def test_a_block_that_halves_its_image_is_made_of_known_parts():
    block = parse("se_down_block n=2 h=7 w=8 c=16 k=24 hidden=2 dtype=f16 epilogue=bias,conv,gate,project,add")
    names = ["x", "weight1", "weight2", "projection", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in block.operands()] == names
    first = Conv2d(n=2, h=7, w=8, c=16, k=24, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype="f16")
    second = Conv2d(n=2, h=4, w=4, c=24, k=24, r=3, s=3, pad=(1, 1), dtype="f16")
    pool = AvgPool2d(n=2, h=7, w=8, c=16, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype="f16")
    projection = Conv2d(n=2, h=4, w=4, c=16, k=24, dtype="f16")
    tail = SeTail(n=2, h=4, w=4, c=24, hidden=2, dtype="f16")
    assert block.output_shape == tail.output_shape
    assert block.flops == sum(part.flops for part in (first, second, pool, projection, tail))
    weights = [part.operands()[1].shape for part in (first, second, projection)]
    assert [operand.shape for operand in block.operands()[1:4]] == weights
