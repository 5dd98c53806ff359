"""Constants computed from parameters: each rewriting gives the result of what it replaces."""

import pickle

import pytest
import torch
import torch.nn.functional as F

from autotune.core import UnknownNameError
from autotune.ir import ConstantExpr, evaluate


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_plain_source_is_the_parameter_itself() -> None:
    weight = torch.nn.Parameter(random(3, 2))
    assert torch.equal(evaluate({"w": weight}, "w"), weight) and not evaluate({"w": weight}, "w").requires_grad


def test_a_pool_and_a_projection_are_one_convolution() -> None:
    x, weight = random(2, 5, 9, 7), random(4, 5, 1, 1)
    both = F.conv2d(x, evaluate({"w": weight}, ConstantExpr("pool_filter", ("w",), (3, 3))), stride=2, padding=1)
    torch.testing.assert_close(both, F.conv2d(F.avg_pool2d(x, 3, 2, 1), weight))


def test_a_convolution_of_patches_is_one_of_the_image() -> None:
    x, weight = random(2, 3, 8, 12), random(5, 48, 1, 1)
    patches = x.reshape(2, 3, 2, 4, 3, 4).permute(0, 3, 5, 1, 2, 4).reshape(2, 48, 2, 3)
    whole = F.conv2d(x, evaluate({"w": weight}, ConstantExpr("patch_filter", ("w",), (4,))), stride=4)
    torch.testing.assert_close(whole, F.conv2d(patches, weight))


@pytest.mark.parametrize(
    ("h", "w", "r", "s", "pad_h", "pad_w"), [(2, 2, 3, 3, 1, 1), (3, 2, 3, 1, 1, 0), (2, 4, 1, 3, 0, 2)]
)
def test_a_dense_product_is_the_convolution(h: int, w: int, r: int, s: int, pad_h: int, pad_w: int) -> None:
    x, weight = random(3, h, w, 5), random(4, 5, r, s)
    matrix = evaluate({"w": weight}, ConstantExpr("dense", ("w",), (h, w, pad_h, pad_w)))
    expected = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=(pad_h, pad_w)).permute(0, 2, 3, 1)
    torch.testing.assert_close(F.linear(x.reshape(3, -1), matrix).reshape(expected.shape), expected)


def test_a_folded_squeeze_is_the_product_of_the_means() -> None:
    x, weight, w1, b1 = random(3, 5, 4, 6), random(8, 5, 3, 3), random(2, 8), random(2)
    scale, shift = random(8), random(1)
    state = {"w": weight, "w1": w1, "b1": b1, "scale": scale, "shift": shift}
    result = F.conv2d(x, weight, padding=1) * scale[:, None, None] + shift
    expected = F.linear(result.mean((2, 3)), w1, b1)
    filters = evaluate(state, ConstantExpr("squeeze_filter", ("w", "w1", "scale")))
    bias = evaluate(state, ConstantExpr("squeeze_bias", ("b1", "w1", "shift")))
    torch.testing.assert_close(F.conv2d(x, filters, padding=1).mean((2, 3)) + bias, expected)
    as_filter = state | {"w1": w1[:, :, None, None]}  # a gate of 1x1 convolutions
    assert torch.equal(evaluate(as_filter, ConstantExpr("squeeze_filter", ("w", "w1", "scale"))), filters)
    assert torch.equal(evaluate(as_filter, ConstantExpr("squeeze_bias", ("b1", "w1", "shift"))), bias)
    plain = evaluate(state, ConstantExpr("squeeze_filter", ("w", "w1")))
    torch.testing.assert_close(
        plain, evaluate(state | {"one": torch.ones(1)}, ConstantExpr("squeeze_filter", ("w", "w1", "one")))
    )


def test_sources_may_be_derived_themselves() -> None:
    state = {"a": random(2, 3, 1, 1), "b": random(4, 3, 1, 1)}
    both = ConstantExpr(
        "concatenate", (ConstantExpr("pool_filter", ("a",), (3, 3)), ConstantExpr("pool_filter", ("b",), (3, 3)))
    )
    assert evaluate(state, both).shape == (6, 3, 3, 3)


def test_a_reshaped_weight_has_rows_and_columns() -> None:
    weight, scale = random(24), random(4)
    source = ConstantExpr("scale_rows", (ConstantExpr("reshape", ("w",), (4, 2, 3)), "s"))
    expected = weight.view(4, 2, 3) * scale[:, None, None]
    assert torch.equal(evaluate({"w": weight, "s": scale}, pickle.loads(pickle.dumps(source))), expected)


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no_such"):
        ConstantExpr("no_such", ("a",))
