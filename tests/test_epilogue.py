"""Epilogue chains: their text, the numbering of operands, and what they compute."""

import pytest
import torch

from autotune.epilogue import MAX_SCALARS, STEPS, Epilogue
from autotune.errors import ProblemError


@pytest.mark.parametrize("text", ["none", "relu", "bias,relu", "relu,store,add_scalar", "mul_scalar,add_scalar"])
def test_text_is_read_back_to_the_letter(text):
    assert str(Epilogue.parse(text)) == text


def test_empty_and_none_are_the_same_chain():
    assert Epilogue.parse("") == Epilogue.parse("none") == Epilogue()


@pytest.mark.parametrize("text", ["tanh", "bias,,relu", "bias, relu", "bias,none", "relu,"])
def test_unknown_steps_are_refused(text):
    with pytest.raises(ProblemError, match="choose from bias"):
        Epilogue.parse(text)


def test_too_many_scalars_are_refused():
    assert Epilogue.parse(",".join(["add_scalar"] * MAX_SCALARS)).scalars == MAX_SCALARS
    with pytest.raises(ProblemError, match=f"at most {MAX_SCALARS}"):
        Epilogue.parse(",".join(["mul_scalar"] * (MAX_SCALARS + 1)))


def test_pointers_and_scalars_are_numbered_apart():
    epilogue = Epilogue.parse("add_scalar,bias,relu,store,mul_scalar,add,scale")
    numbered = [(step.name, step.operand, step.index) for step in epilogue.steps]
    assert numbered == [
        ("add_scalar", "scalar", 0),
        ("bias", "vector", 0),
        ("relu", None, 1),
        ("store", "output", 1),
        ("mul_scalar", "scalar", 1),
        ("add", "tensor", 2),
        ("scale", "vector", 3),
    ]
    assert [step.operand_name for step in epilogue.steps if step.operand in ("vector", "tensor", "output")] == [
        "bias0",
        "store1",
        "add2",
        "scale3",
    ]


def test_chain_of_every_step_against_arithmetic_by_hand():
    epilogue = Epilogue.parse("bias,store,mul_scalar,silu,add,scale,store,add_scalar,sigmoid,relu")
    assert set(epilogue.names) == set(STEPS)
    v = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    bias, scale = torch.randn(5), torch.randn(5)
    add = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    result, stored = epilogue.apply(v, {"bias0": bias, "add2": add, "scale3": scale}, (1.5, -0.25))

    kept_first = v + bias.double()
    scaled = kept_first * 1.5
    kept_second = (scaled / (1 + torch.exp(-scaled)) + add) * scale.double()
    expected = (1 / (1 + torch.exp(-(kept_second - 0.25)))).clamp_min(0)
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)
    assert set(stored) == {"store1", "store4"}
    torch.testing.assert_close(stored["store1"], kept_first, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(stored["store4"], kept_second, rtol=1e-14, atol=1e-14)


def test_steps_apply_in_the_order_written():
    v = torch.tensor([-2.0, 3.0])
    assert Epilogue.parse("relu,add_scalar").apply(v, {}, (-1.0,))[0].tolist() == [-1.0, 2.0]
    assert Epilogue.parse("add_scalar,relu").apply(v, {}, (-1.0,))[0].tolist() == [0.0, 2.0]


def test_relu_keeps_nan():
    assert Epilogue.parse("relu").apply(torch.tensor([float("nan")]), {}, ())[0].isnan().all()
