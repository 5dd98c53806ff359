"""stem_se_block problems against their parts."""

from autotune.ir import parse
from autotune.ir.operators import PatchConv2d, SeBlock


def test_a_block_behind_a_stem_is_made_of_both():
    both = parse(
        "stem_se_block n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=bias,keep,conv,conv,gate,add_kept,add"
    )
    names = ["x", "weight", "weight1", "weight2", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in both.operands()] == names
    stem = PatchConv2d(n=2, h=8, w=12, c=3, k=16, block=4, dtype="f16")
    block = SeBlock(n=2, h=2, w=3, c=16, hidden=2, dtype="f16")
    assert both.output_shape == stem.output_shape == block.output_shape
    assert both.flops == stem.flops + block.flops
    assert both.operands()[:9] == (*stem.operands()[:2], *block.operands()[1:])
