"""The reference that is computed in slices of the batch equals that of the whole batch."""

import pytest
import torch
from kernels import random_inputs
from problems import TEXTS

from autotune.ir import compute, parse, with_batch
from autotune.measure.sliced_reference import sliced_reference

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

    monkeypatch.setattr("autotune.measure.sliced_reference.compute", counted)
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
