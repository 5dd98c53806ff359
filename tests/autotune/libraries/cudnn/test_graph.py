"""Tensors of a cuDNN graph."""

import pytest
import torch

from autotune.ir import parse
from autotune.libraries.cudnn.graph import arguments, operand_numbers, vector_dtypes


@pytest.mark.parametrize("epilogue", ["none", "bias,scale,add,store,add_scalar,clamp,hardswish"])
@pytest.mark.parametrize("operator", ["conv2d", "conv2d_dgrad", "conv2d_wgrad"])
def test_a_graphs_tensors_follow_from_the_problem(operator, epilogue):
    problem = parse(f"{operator} n=2 h=7 w=5 c=8 k=12 r=3 s=3 pad=1 groups=2 dtype=f16 epilogue={epilogue}")
    tensors = {o.name: torch.randn(o.shape).half() for o in problem.operands()}
    scalars = tuple(torch.rand(problem.epilogue.scalars).tolist())
    plain, own = vector_dtypes(problem) if "bias" in epilogue else ("f16", "f16")
    assert own == ("f32" if "bias" in epilogue else "f16")
    given = arguments(problem, own, tensors, scalars)
    numbers = operand_numbers(problem)
    assert list(numbers.values()) == list(range(1, len(tensors) + 1))
    for name, number in numbers.items():
        assert torch.equal(given[number].to(tensors[name].dtype), tensors[name])
    if "weight" in tensors:
        assert given[numbers["weight"]].is_contiguous(memory_format=torch.channels_last)
    for name in {"bias0", "scale1"} & set(tensors):
        assert given[numbers[name]].dtype == torch.float32
        assert arguments(problem, plain, tensors, scalars)[numbers[name]].dtype == torch.float16
    others = {number: float(tensor) for number, tensor in given.items() if number not in numbers.values()}
    expected = {101 + i: value for i, value in enumerate(scalars)}
    assert others == pytest.approx(expected | ({201: 3.0, 202: 1 / 6} if "hardswish" in epilogue else {}))
