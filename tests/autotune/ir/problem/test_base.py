"""Problems: their text, their shapes, the order of their operands, and output extents of windows against torch."""

import copy
import dataclasses
import pickle

import pytest
import torch
from problems import TEXTS

from autotune.core import ProblemError
from autotune.ir import MAX_OPERANDS, Epilogue, limit_us, parse, with_batch
from autotune.ir.epilogue_steps import define_step
from autotune.ir.operators import Conv2d, Elementwise, SeTail
from autotune.ir.problem import output_extent


def test_operands_come_as_inputs_output_and_the_epilogues_in_turn():
    epilogue = Epilogue.parse("bias,relu,store,add_scalar,add,scale")
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=epilogue)
    listed = [(operand.name, operand.role, operand.shape, operand.dtype) for operand in problem.operands()]
    assert listed == [
        ("x", "input", (1, 4, 4, 8), "f16"),
        ("weight", "weight", (16, 8, 1, 1), "f16"),
        ("y", "output", (1, 4, 4, 16), "f16"),
        ("bias0", "vector", (16,), "f32"),
        ("store1", "output", (1, 4, 4, 16), "f16"),
        ("add2", "input", (1, 4, 4, 16), "f16"),
        ("scale3", "vector", (16,), "f32"),
    ]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.split()[0])
def test_a_problem_can_be_copied_and_pickled_but_not_changed(text):
    problem = parse(text)
    for same in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem)), dataclasses.replace(problem)):
        assert same == problem and hash(same) == hash(problem) and str(same) == str(problem)
    for change in (lambda: setattr(problem, "dtype", "f32"), lambda: delattr(problem, "dtype")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="field 'dtype'"):
            change()


def test_a_problem_takes_its_fields_and_no_others():
    with pytest.raises(TypeError, match=r"Elementwise: missing are \['c', 'dtype'\], and unknown are \['k'\]"):
        Elementwise(n=1, h=2, w=3, k=4)


@pytest.mark.parametrize(
    ("operator", "epilogue", "wanted"),
    [
        ("conv2d n=1 h=4 w=4 c=8 k=8", "relu,gate", "of conv2d can have none"),
        ("se_tail n=1 h=4 w=4 c=8 hidden=2", "conv", "of se_tail can have none"),
        ("conv2d_se n=1 h=4 w=4 c=8 k=8 hidden=2", "relu", "of conv2d_se must have gate, once"),
        ("conv2d_se n=1 h=4 w=4 c=8 k=8 hidden=2", "gate,gate", "must have gate, once"),
        ("se_block n=1 h=4 w=4 c=8 hidden=2", "gate,conv", "of se_block must have conv and then gate, once"),
        ("se_block n=1 h=4 w=4 c=8 hidden=2", "conv", "must have conv and then gate, once"),
        (
            "stem_se_block n=1 h=8 w=8 c=3 k=8 block=4 hidden=2",
            "keep,conv,gate,add_kept",
            "conv and then conv and then",
        ),
        ("se_down_block n=1 h=4 w=4 c=8 k=8 hidden=2", "conv,gate", "conv and then gate and then project, once"),
    ],
)
def test_places_in_a_chain_are_the_problems_own(operator, epilogue, wanted):
    with pytest.raises(ProblemError, match=wanted):
        parse(f"{operator} dtype=f16 epilogue={epilogue}")


def test_parameters_of_custom_steps_are_operands():
    step = define_step("two", cuda="x * a + b", torch="x * a + b", params={"a": "channel", "b": "channel"})
    problem = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f16", epilogue=Epilogue(("add", step, "two")))
    assert [operand.name for operand in problem.operands()][5:] == ["y", "add0", "a.1", "b.2", "a.3", "b.4"]
    assert all(o.shape == (16,) and o.dtype == "f32" and o.role == "vector" for o in problem.operands()[7:])


def test_more_tensors_than_a_kernel_takes_are_refused():
    epilogue = Epilogue(("bias",) * (MAX_OPERANDS - 3))
    fits = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=epilogue)
    assert len(fits.operands()) == MAX_OPERANDS
    with pytest.raises(ProblemError, match=f"{MAX_OPERANDS + 1} tensors; at most {MAX_OPERANDS}"):
        Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=Epilogue((*epilogue.names, "add")))


def test_a_problem_of_fewer_tensors_says_how_many_it_may_have():
    class Alone(Elementwise):
        max_operands = 2

    Alone(n=1, h=4, w=4, c=8, dtype="f16")
    with pytest.raises(ProblemError, match="3 tensors; at most 2 are"):
        Alone(n=1, h=4, w=4, c=8, dtype="f16", epilogue=Epilogue(("add",)))


def test_bytes_count_each_operand_once():
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=Epilogue.parse("bias"))
    assert problem.bytes == 2 * (4 * 4 * 8 + 16 * 8 + 4 * 4 * 16) + 4 * 16


def test_limit_is_the_slower_of_arithmetic_and_memory():
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f32")
    assert limit_us(problem, 2.0, 1e30) == problem.flops / 2.0
    assert limit_us(problem, 1e30, 4.0) == problem.bytes / 4.0


@pytest.mark.parametrize("text", TEXTS)
def test_with_batch_changes_the_batch_alone(text):
    problem = parse(text)
    changed = with_batch(problem, 17)
    assert changed.batch == 17
    field = "m" if "gemm" in text else "n"
    assert str(changed) == text.replace(f" {field}={problem.batch} ", f" {field}=17 ")


def test_output_extent_is_torchs_for_every_small_window():
    for size in range(3, 12):
        for kernel, stride, pad, dilation in [(1, 1, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2), (2, 3, 0, 1), (2, 2, 1, 2)]:
            x = torch.randn(1, 1, size)
            expected = torch.nn.functional.conv1d(x, torch.randn(1, 1, kernel), None, stride, pad, dilation).shape[-1]
            assert output_extent(size, kernel, stride, pad, dilation) == expected
