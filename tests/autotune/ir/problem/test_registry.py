"""Registered operators, and problem texts: written and read back, and refused with a reason."""

import re

import pytest
from fuzzing import damaged, epilogues, fuzz, problems
from hypothesis import given
from hypothesis import strategies as st
from problems import TEXTS

from autotune.core import AutotuneError, ProblemError, UnknownNameError
from autotune.ir import OPERATORS, Epilogue, abi, parse
from autotune.ir.operators import AvgPool2d, Concat, ConcatConv2d
from autotune.ir.problem import register


def test_an_operator_may_share_a_struct_with_the_same_fields_only():
    with pytest.raises(ProblemError, match="the struct at_pool2d has the fields n h w c r s p q"):
        register(type("Other", (AvgPool2d,), {"operator": "other", "sizes": "n h", "struct": "at_pool2d"}))
    assert type("Own", (AvgPool2d,), {"operator": "own", "sizes": "n h"}).struct == "at_own"
    assert type("Same", (AvgPool2d,), {"operator": "same"}).struct == "at_pool2d"


def test_no_operator_is_a_kind_of_another():
    """Families, torch's operators and references tell operators apart by their class."""
    kinds = OPERATORS.values()
    assert not [
        (one.operator, other.operator)
        for one in kinds
        for other in kinds
        if one is not other and issubclass(one, other)
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_back_to_the_letter(text):
    assert str(parse(text)) == text


def test_every_operator_has_a_text_here():
    assert {text.split()[0] for text in TEXTS} == set(OPERATORS)


def test_fields_with_a_default_may_be_left_out():
    short = parse("conv2d n=1 h=4 w=4 c=8 k=8 r=3 s=3 stride=2 pad=1 dtype=half")
    full = "conv2d n=1 h=4 w=4 c=8 k=8 r=3 s=3 stride=2,2 pad=1,1 dilation=1,1 groups=1 dtype=f16 epilogue=none"
    assert str(short) == full


CONV = "conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("conv3d n=1", "conv3d"),
        ("", "operator"),
        (f"{CONV} depth=3", "depth=3"),
        (f"{CONV} r", "'r'"),
        ("conv2d n=1 h=4 w=4 c=8 dtype=f32", "k"),
        ("conv2d n=1 h=4 w=4 c=8 k=8", "dtype"),
        (f"{CONV} r=three", "r=three"),
        (f"{CONV} r=", "r="),
        (CONV.replace("n=1", "n=0"), "n=0"),
        (CONV.replace("h=4", "h=-4"), "h=-4"),
        (f"{CONV} stride=0", "stride"),
        (f"{CONV} pad=-1", "pad"),
        (f"{CONV} stride=1,2,3", "stride"),
        (CONV.replace("n=1", "n=1,2"), "n=1,2"),
        (f"{CONV} groups=3", "groups"),
        (f"{CONV} r=5 s=5", "window"),
        (f"{CONV} r=5 s=5".replace("conv2d", "conv2d_dgrad"), "window"),
        (f"{CONV} groups=3".replace("conv2d", "conv2d_wgrad"), "groups"),
        ("avg_pool2d n=1 h=2 w=2 c=1 r=3 s=3 stride=1 dtype=f32", "window"),
        ("max_pool2d n=1 h=8 w=8 c=1 r=3 s=3 stride=2 pad=2 dtype=f32", "half the window"),
        ("to_channels_last n=1 h=8 w=8 c=4 to=3 dtype=f32", "at least c"),
        ("stem n=1 h=8 w=8 c=3 k=8 r=9 s=3 dtype=f32", "window"),
        ("stem n=1 h=8 w=8 c=3 k=8 r=3 s=3 pool=2 pool_pad=2 dtype=f32", "half"),
        ("gemm m=0 n=4 k=4 dtype=f32", "m=0"),
        ("gemm m=4 n=4 dtype=f32", "k"),
        (CONV.replace("f32", "f64"), "f64"),
        (f"{CONV} epilogue=bias,softmax", "softmax"),
        ("space_to_depth n=1 h=6 w=8 c=1 block=4 dtype=f32", "block"),
        ("concat n=1 h=6 w=8 pieces=8,4:12 dtype=f32", "ranges of them"),
        ("concat n=1 h=6 w=8 pieces=8, dtype=f32", "ranges of them"),
        ("concat n=1 h=6 w=8 pieces=4:12/8 dtype=f32", "must have 0 <= first"),
        ("concat n=1 h=6 w=8 pieces=4:4/8 dtype=f32", "4:4/8 must have"),
        ("concat n=1 h=6 w=8 pieces=0 dtype=f32", "must have"),
        ("concat n=1 h=6 w=8 pieces=8,8,8,8,8,8,8,8,8 dtype=f32", "has 9 pieces; 1 to 8"),
        ("concat n=1 h=6 w=8 pieces=8,7 interleave=2 dtype=f32", "groups of equal size"),
        (f"{CONV} epilogue=mul_image", "conv2d cannot read tensors that are broadcast"),
    ],
)
def test_nonsense_is_refused_in_words(text, said):
    with pytest.raises((ProblemError, UnknownNameError), match=said):
        parse(text)


@pytest.mark.parametrize("operator", OPERATORS)
def test_random_problems_are_read_back(operator):
    @fuzz(25)
    @given(problems(OPERATORS[operator]))
    def check(problem):
        assert parse(str(problem)) == problem and str(parse(str(problem))) == str(problem)
        moved = sum(tensor.bytes for tensor in problem.operands())
        assert problem.bytes == moved or (isinstance(problem, Concat | ConcatConv2d) and problem.bytes < moved)
        assert problem.bytes > 0 <= problem.flops
        packed = abi.pack_problem(problem, (0.5,) * (problem.scalars + problem.epilogue.scalars), {"a": 7}, ["a"])
        struct = abi.struct(type(problem)).from_buffer_copy(packed)
        assert tuple(getattr(struct, name) for name in problem.sizes.split()) == problem.struct_values()
        assert struct.launch[0] == 7

    check()


@fuzz(100)
@given(epilogues())
def test_random_chains_are_read_back(chain):
    assert Epilogue.parse(str(chain)) == chain


@fuzz(400)
@given(st.sampled_from(TEXTS).flatmap(damaged))
def test_a_damaged_text_is_read_or_refused_by_a_sentence_that_names_a_part_of_it(text):
    try:
        problem = parse(text)
    except AutotuneError as error:
        message, parts = str(error), [part for part in re.split(r"[\s=,]+", text) if part]
        assert any(part in message for part in parts) or not parts
        assert "\n" not in message
        return
    assert parse(str(problem)) == problem
    try:
        abi.pack_problem(problem, (0.5,) * (problem.scalars + problem.epilogue.scalars), {}, [])
    except AutotuneError as error:
        assert problem.operator in str(error)
