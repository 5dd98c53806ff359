"""8-bit formats: rounding against torch's own conversion, and quantization."""

import pytest
import torch

from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS, DTYPES, E4M3, S8, evaluate
from autotune.ir.constant_expr import ConstantExpr

F8 = torch.float8_e4m3fn


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def test_formats_are_dtypes_and_have_precisions():
    assert {name: form.tensors for name, form in BYTE_FORMATS.items()} == {"s8": torch.int8, "e4m3": F8}
    assert all(DTYPES[name] is form.tensors for name, form in BYTE_FORMATS.items())
    assert {name: form.dtype for name, form in BYTE_PRECISIONS.items()} == {"int8": "s8", "fp8": "e4m3"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_e4m3_is_rounded_as_torch_rounds(dtype, generator):
    numbers = torch.arange(127).to(torch.uint8).view(F8).float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    drawn = torch.randn(50000, generator=generator) * 10 ** (6 * torch.rand(50000, generator=generator) - 4)
    values = torch.cat([numbers, ties, torch.nextafter(ties, torch.tensor(1e9)), drawn])
    values = torch.cat([values, -values]).clamp(-448, 448)
    assert torch.equal(E4M3.nearest(values.to(dtype)), values.to(F8).to(dtype))
    assert torch.equal(E4M3.stored(values.to(dtype)).view(torch.uint8), values.to(F8).view(torch.uint8))


def test_nothing_becomes_nan_and_nan_stays():
    large = torch.tensor([449.0, 463.0, 464.0, 480.0, 1e30, float("inf")])
    for values in (large, -large):
        assert E4M3.stored(values).float().tolist() == [448.0 * float(values[0].sign())] * len(large)
    assert E4M3.stored(torch.tensor([float("nan")])).float().isnan().all()
    assert S8.stored(torch.tensor([127.5, 1e9, -128.5, -1e9, 2.5])).tolist() == [127, 127, -128, -128, 2]


@pytest.mark.parametrize("form", BYTE_FORMATS.values(), ids=BYTE_FORMATS)
def test_weights_fill_the_range_in_every_channel(form, generator):
    weight = torch.randn(7, 5, 3, 3, generator=generator) * torch.logspace(-3, 3, 7).view(-1, 1, 1, 1)
    weight[4] = 0
    quantized, scale = form.quantize_weight(weight)
    assert quantized.dtype == form.tensors and quantized.shape == weight.shape and scale.shape == (7,)
    largest = quantized.float().abs().flatten(1).amax(1).tolist()
    assert largest == [form.largest] * 4 + [0] + [form.largest] * 2
    step = scale.view(-1, 1, 1, 1)
    error = (quantized.float() * step - weight).abs()
    allowed = 0.5001 * step if form is S8 else (weight.abs() / 16).clamp_min(2**-10 * step) * 1.0001
    assert (error <= allowed).all() and error.max() > 0


def test_the_constants_of_networks_are_those_of_the_format(generator):
    state = {"w": torch.randn(4, 3, 2, 2, generator=generator)}
    for form in BYTE_FORMATS.values():
        weight, factors = ConstantExpr(form.constants[0], ("w",)), ConstantExpr(form.constants[1], ("w",), (0.5,))
        quantized, scale = form.quantize_weight(state["w"])
        assert torch.equal(evaluate(state, weight).float(), quantized.float())
        assert torch.equal(evaluate(state, factors), 0.5 * scale)
    assert S8.constants == ("bytes", "byte_scales"), "names that the keys of stored networks hold"


def test_int8_saturates_within_a_symmetric_range():
    assert S8.quantized(torch.tensor([-9.0, 1.26, 9.0]), 0.05).tolist() == [-127, 25, 127]
    assert E4M3.quantized(torch.tensor([-90.0, 1.26, 90.0]), 0.05).tolist() == [-448, 26, 448]
