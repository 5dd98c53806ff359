"""Expected results: NaN and infinities in the places of the reference, and the reference in slices."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from kernels import random_inputs
from problems import TEXTS

from autotune.ir import Operand, compute, parse, with_batch
from autotune.ir.operators import OperatorCall, TorchCall, ValueRef
from autotune.measure import CandidateBench
from autotune.measure.expected_results import sliced_reference

CPU = torch.device("cpu")
CONV = "conv2d n=3 h=9 w=8 c=5 k=6 r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"


class Step:
    """Solves a problem with torch, and changes the results as it is told: (tensors, output) -> output."""

    def __init__(self, case, change=lambda tensors, y: y):
        self.case, self.change, self.runs = case, change, 0

    def run(self, stream=0):
        self.runs += 1
        tensors = {name: tensor.float() for name, tensor in self.case.tensors.items()}
        for name, value in compute(self.case.problem, tensors, self.case.scalars).items():
            y, output = self.change(tensors, value), self.case.tensors[name]
            output.copy_(y if output.is_floating_point() else y.clamp(-128, 127).round())


def fault_of(problem, change=lambda tensors, y: y):
    case = CandidateBench(parse(problem) if isinstance(problem, str) else problem, CPU)
    step = Step(case, change)
    before = {name: tensor.clone() for name, tensor in case.tensors.items()}
    assert case.verify(step)[1] is None, "for random numbers it is right"
    fault = case.special_fault(step)
    for operand in case.problem.operands():
        if operand.role != "output":
            assert torch.equal(before[operand.name], case.tensors[operand.name])
    return fault


def convolved(tensors):
    return F.conv2d(tensors["x"].movedim(-1, 1), tensors["weight"], None, 1, 1).movedim(1, -1) + tensors["bias0"]


def spread_in_images(tensors, y):
    """NaN of a pixel reaches all pixels of the image, as where an algorithm transforms tiles or whole images."""
    return y + 0 * tensors["x"].flatten(1).sum(1).view(-1, 1, 1, 1)


def spread_to_the_next_image(tensors, y):
    return y + (0 * y.flatten(1).sum(1)).roll(1).view(-1, 1, 1, 1)


def transformed(tensors, y):
    """Infinities become NaN before the ReLU, as where an algorithm subtracts them."""
    sums = convolved(tensors)
    return (sums + (sums - sums)).relu()


WRONG = {
    "a relu that is fmax": (CONV, lambda t, y: convolved(t).fmax(torch.zeros(())), "y is 0 instead of nan", "NaN"),
    "NaN is a number": (CONV, lambda t, y: y.nan_to_num(0.5, math.inf, -math.inf), "is 0.5 instead of nan", "NaN"),
    "another image": (CONV, spread_to_the_next_image, r"y is nan instead of .* at \(1,", "NaN"),
    "large numbers": (CONV, lambda t, y: y.clamp(max=3e38), "instead of inf", "infinities"),
    "the other infinity": (CONV, lambda t, y: torch.where(y.isinf(), -y, y), "is -inf instead of inf", "infinities"),
    "a pool that drops NaN": (
        "max_pool2d n=2 h=8 w=8 c=4 r=2 s=2 stride=2 dtype=f16",
        lambda t, y: torch.where(y.isnan(), 0.0, y),
        "y is 0 instead of nan",
        "NaN",
    ),
    "a pool that starts with a number": (
        "max_pool2d n=1 h=8 w=8 c=4 r=1 s=1 stride=1 dtype=f32",
        lambda t, y: y.clamp(min=-3e38) if not y.isnan().any() else y,
        "instead of -inf",
        "infinities",
    ),
    "a softmax without masks": (
        "softmax n=2 h=3 w=4 c=8 dtype=f32",
        lambda t, y: y + 0 * t["x"].sum(-1, keepdim=True),
        "y is nan instead of",
        "infinities",
    ),
    "one tensor of several": (
        "elementwise n=2 h=3 w=4 c=8 dtype=bf16 epilogue=add,add,relu",
        lambda t, y: (t["x"] + t["add0"] + t["add1"].nan_to_num(0, math.inf, -math.inf)).relu(),
        "y is .* instead of nan",
        "NaN",
    ),
    "bytes that do not saturate": (
        "cast n=1 h=3 w=3 c=8 result=s8 dtype=f32 epilogue=mul_scalar",
        lambda t, y: torch.where(y.isinf(), 0.0, y),
        "y is 0 instead of 127",
        "infinities",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_loses_or_makes_nan_and_infinities_is_wrong(name):
    problem, change, said, given = WRONG[name]
    fault = fault_of(problem, change)
    assert fault and re.search(said, fault) and fault.endswith(f"for {given} in the inputs")


RIGHT = {
    "as in the reference": (CONV, lambda t, y: y),
    "NaN in the whole image": (CONV, spread_in_images),
    "NaN where the reference has infinities": (CONV, transformed),
    "bytes have no NaN": (
        "cast n=2 h=3 w=3 c=8 result=s8 dtype=f16 epilogue=mul_scalar",
        lambda t, y: y.nan_to_num(3.0, math.inf, -math.inf),
    ),
    "no activation holds them": ("elementwise n=2 h=3 w=3 c=8 dtype=s8 epilogue=scale", lambda t, y: y),
    "formats without infinities": ("elementwise n=2 h=3 w=3 c=8 dtype=e4m3 epilogue=scale,relu", lambda t, y: y),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_arithmetic_may_do_is_right(name):
    assert fault_of(*RIGHT[name]) is None


@pytest.mark.parametrize("multiplied", [False, True])
def test_padding_may_be_multiplied_or_left_out(multiplied):
    """NaN in the gradient of a pixel at the border: a kernel may multiply it by padding, which is 0."""
    problem = parse("conv2d_wgrad n=2 h=2 w=2 c=3 k=4 r=3 s=3 pad=1 dtype=f32")
    met_nan = []

    def summed(tensors, y):
        x, dy = F.pad(tensors["x"], (0, 0, 1, 1, 1, 1)), tensors["dy"]
        made = torch.zeros_like(y)
        for i, j in torch.cartesian_prod(torch.arange(3), torch.arange(3)).tolist():
            for p, q in torch.cartesian_prod(torch.arange(2), torch.arange(2)).tolist():
                h, w = p + i, q + j
                if multiplied or (1 <= h < 3 and 1 <= w < 3):
                    made[:, i, j] += torch.einsum("nk,nc->kc", dy[:, p, q], x[:, h, w])
        met_nan.append(int(made.isnan().sum()))
        return made

    assert fault_of(problem, summed) is None
    assert met_nan[1] == (45 if multiplied else 36)  # of NaN in the inputs; all but the products with padding


def runs_on(*calls, shape):
    """Return how often a candidate runs on special values."""
    given = (Operand("x", "input", (6, 6), "f32"), Operand("weight", "weight", (6, 6), "f32"))
    case = CandidateBench(TorchCall(n=6, calls=calls, inputs=given, shape=shape, dtype="f32"), CPU)
    step = Step(case)
    assert case.special_fault(step) is None
    return step.runs


def test_calls_of_torch_are_checked_where_they_take_nan():
    linear = OperatorCall("aten.linear.default", (ValueRef(0), ValueRef(1)))
    assert runs_on(linear, OperatorCall("aten.relu.default", (ValueRef(2),)), shape=(6, 6)) == 2
    indices = (
        OperatorCall("aten.select.int", (ValueRef(0), 1, 0)),
        OperatorCall("aten._to_copy.default", (ValueRef(2),), (("dtype", torch.int64),)),
        OperatorCall("aten.clamp.default", (ValueRef(3), 0, 5)),
    )
    rows = OperatorCall("aten.index_select.default", (ValueRef(0), 0, ValueRef(4)))
    assert runs_on(*indices, rows, shape=(6, 6)) == 0, "NaN as an index would end a process on a GPU"
    assert runs_on(OperatorCall("aten.histc.default", (ValueRef(0), 6)), shape=(6,)) == 0, "it raises an error"


WHOLE_BATCH = {
    *("conv2d_wgrad", "conv2d_statistics", "conv2d_gradient_sums", "batch_norm_statistics"),
    *("batch_norm_gradient_sums", "torch"),
}
"""Operators with a result that all images contribute to, and calls of torch, which may mix images."""


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.split()[0])
def test_slices_give_the_results_of_the_whole_batch(text, monkeypatch):
    problem = parse(text)
    if problem.operator != "torch":
        problem = with_batch(problem, 5)
    inputs, scalars = random_inputs(problem)
    batches = []

    def counted(part, tensors, values):
        batches.append(part.batch)
        return compute(part, tensors, values)

    monkeypatch.setattr("autotune.measure.expected_results.compute", counted)
    expected = compute(problem, {name: tensor.double() for name, tensor in inputs.items()}, scalars)
    number = sum(tensor.numel() for tensor in expected.values())
    found = sliced_reference(problem, inputs, scalars, torch.float64, most_bytes=8 * number // 2)
    assert batches == ([problem.batch] if problem.operator in WHOLE_BATCH else [2, 2, 1])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].double(), tensor.double(), rtol=1e-6, atol=1e-6)


def test_a_small_problem_keeps_its_dtype():
    problem = parse("conv2d n=4 h=4 w=4 c=8 k=8 r=3 s=3 pad=1 dtype=f32")
    inputs, scalars = random_inputs(problem)
    assert sliced_reference(problem, inputs, scalars, torch.float64)["y"].dtype == torch.float64


def test_an_image_with_more_bytes_than_a_slice_may_have_is_a_slice():
    problem = parse("conv2d n=3 h=4 w=4 c=8 k=8 r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu")
    inputs, scalars = random_inputs(problem)
    found = sliced_reference(problem, inputs, scalars, torch.float64, most_bytes=1)["y"]
    expected = compute(problem, {name: tensor.double() for name, tensor in inputs.items()}, scalars)["y"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
