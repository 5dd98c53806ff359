"""Fields of a user's operator, and names of dtypes: types, limits and text."""

from typing import Annotated

import pytest
import torch

from autotune.core import ProblemError, UnknownNameError
from autotune.ir import OPERATORS, Problem, dtype_name, parse
from autotune.ir.problem import DtypeName, FieldType, NonNegative, NonNegativePair, Pair, register


def _color(text):
    if not text.startswith("#"):
        raise ValueError(text)
    return int(text[1:], 16)


@pytest.fixture
def painted():
    """An operator with a field of each type, registered for one test."""

    @register
    class Painted(Problem):
        operator = "painted"
        sizes = "n tile_h tile_w skipped"
        n: int
        tile: Pair
        margin: NonNegativePair = (0, 0)
        skipped: NonNegative = 0
        border: str = "zero"
        result: DtypeName = "f32"
        color: Annotated[int, FieldType("#HEX", "a color such as #ff0000", _color, write="#{:06x}".format)] = 0

        output_shape = property(lambda self: (self.n,))
        flops = 0

        def _inputs(self):
            return ()

    yield Painted
    del OPERATORS["painted"]


def test_a_users_fields_are_read_by_their_types(painted):
    problem = parse("painted n=2 tile=3 margin=0,4 border=wrap result=half dtype=f32 color=#ff")
    assert problem == painted(n=2, tile=(3, 3), margin=(0, 4), border="wrap", result="f16", dtype="f32", color=255)
    text = "painted n=2 tile=3,3 margin=0,4 skipped=0 border=wrap result=f16 color=#0000ff dtype=f32 epilogue=none"
    assert str(problem) == text and parse(text) == problem
    assert problem.struct_values() == (2, 3, 3, 0) and painted.struct == "at_painted"
    assert problem.short_name == text.partition(" dtype")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("n=2 tile=1,2,3", "'tile=1,2,3' in .* is not a whole number, or a pair of them such as 2,1"),
        ("n=2 tile=0,1", "painted: tile=0,1 must be at least 1"),
        ("n=2 tile=1 margin=-1", "painted: margin=-1,-1 must be at least 0"),
        ("n=2 tile=1 skipped=-1", "painted: skipped=-1 must be at least 0"),
        ("n=two tile=1", "'n=two' in .* is not a whole number"),
        ("n=2 tile=1 border=", "border='' must be one word"),
        ("n=2 tile=1 result=f64", "unknown dtype 'f64'"),
        ("n=2 tile=1 color=red", "'color=red' in .* is not a color such as #ff0000"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_expected(painted, words, said):
    with pytest.raises((ProblemError, UnknownNameError), match=said):
        parse(f"painted {words} dtype=f32")


def test_a_word_with_a_space_is_refused(painted):
    with pytest.raises(ProblemError, match="painted: border='a b' must be one word"):
        painted(n=1, tile=(1, 1), border="a b", dtype="f32")


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        *[(alias, "f32") for alias in ("f32", "fp32", "float32", "float", torch.float32)],
        *[(alias, "f16") for alias in ("f16", "fp16", "float16", "half", torch.float16, "torch.half")],
        *[(alias, "bf16") for alias in ("bf16", "bfloat16", torch.bfloat16)],
        *[(alias, "s8") for alias in ("s8", "int8", torch.int8)],
        *[(alias, "e4m3") for alias in ("e4m3", "fp8", "float8", "float8_e4m3fn", torch.float8_e4m3fn)],
        ("tf32", "tf32"),
    ],
)
def test_dtype_aliases(spelled, name):
    assert dtype_name(spelled) == name


@pytest.mark.parametrize("spelled", ["int4", torch.float64, "", "F16"])
def test_unknown_dtype_lists_the_known(spelled):
    with pytest.raises(UnknownNameError, match="f32, f16, bf16"):
        dtype_name(spelled)
