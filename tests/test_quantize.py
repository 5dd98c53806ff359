"""Quantization: scales, problems of bytes against the simulation, and what a trained network loses."""

import json

import pytest
import torch
from helpers import relative_error, solve
from torch import nn

from autotune.errors import ProblemError
from autotune.vendor import aten
from fused_resnet.binding import Candidate, bind
from fused_resnet.quantize import QuantizedConv, calibrate, compare, quantize_weight, simulated, to_bytes

CPU = torch.device("cpu")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def test_weights_fill_a_byte_in_every_channel(generator):
    weight = torch.randn(7, 5, 3, 3, generator=generator) * torch.logspace(-3, 3, 7).view(-1, 1, 1, 1)
    weight[4] = 0
    quantized, scale = quantize_weight(weight)
    assert quantized.dtype == torch.int8 and quantized.shape == weight.shape and scale.shape == (7,)
    largest = quantized.abs().flatten(1).amax(1).tolist()
    assert largest == [127, 127, 127, 127, 0, 127, 127]
    back = quantized.float() * scale.view(-1, 1, 1, 1)
    assert ((back - weight).abs() <= 0.5001 * scale.view(-1, 1, 1, 1)).all()


def test_a_batch_norm_may_be_folded_before_or_after(generator):
    weight, gain = torch.randn(6, 4, 3, 3, generator=generator), torch.tensor([2.0, -3.0, 0.1, 7.0, -0.5, 1.0])
    plain, _ = quantize_weight(weight)
    folded, _ = quantize_weight(weight * gain.view(-1, 1, 1, 1))
    assert (folded - plain * gain.sign().view(-1, 1, 1, 1).to(torch.int8)).abs().max() <= 1
    assert (folded.abs() == plain.abs()).double().mean() > 0.99


def test_calibration_finds_the_largest_input_of_each_layer_over_all_batches(generator):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 5)).train()
    batches = [torch.randn(2, 3, 6, 6, generator=generator) * size for size in (1.0, 5.0, 2.0)]
    scales = calibrate(model, iter(batches))
    inner = [model[:3](batch).abs().max().item() for batch in batches]
    assert scales == pytest.approx({"0": max(b.abs().max().item() for b in batches) / 127, "3": max(inner) / 127})
    assert model.training and not model[0]._forward_pre_hooks


def test_calibration_says_what_it_cannot_use():
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    model.spare = nn.Linear(2, 2)
    model.forward = model[0].forward
    with pytest.raises(ProblemError, match="did not reach"):
        calibrate(model, [])
    with pytest.raises(ProblemError, match="input of 0 holds values that are not finite"):
        calibrate(nn.Sequential(nn.Conv2d(3, 8, 3)), [torch.full((1, 3, 4, 4), float("nan"))])
    with pytest.raises(ProblemError, match="no convolution or linear layer 7"):
        simulated(nn.Sequential(nn.Conv2d(3, 8, 3)), {"7": 1.0})
    with pytest.raises(ProblemError, match="padding"):
        QuantizedConv.of(nn.Conv2d(3, 8, 3, padding="same"), 1.0, 1.0)


@pytest.mark.parametrize("relu", [False, True])
def test_a_quantized_convolution_is_a_problem_of_bytes(relu, generator):
    conv = nn.Conv2d(12, 20, (3, 2), (2, 1), (1, 0), (1, 2), groups=2)
    x = torch.randn(2, 12, 9, 7, generator=generator)
    exact = (conv(x).relu() if relu else conv(x)).detach()
    scales = float(x.abs().max()) / 127, float(exact.abs().max()) / 127
    quantized = QuantizedConv.of(conv, *scales, relu=relu)

    problem = quantized.problem(2, 9, 7)
    tensors = {"x": to_bytes(x, scales[0]).movedim(1, -1).contiguous(), "weight": quantized.weight}
    tensors |= {"scale0": quantized.scale, "bias1": quantized.bias}
    tensors["y"] = torch.full(problem.output_shape, 99, dtype=torch.int8)
    assert {operand.name: operand.shape for operand in problem.operands()} == {k: v.shape for k, v in tensors.items()}
    expected = solve(problem, tensors, ())["y"].clamp(-128, 127)
    bind(Candidate(aten.FAMILY, json.dumps(aten.configs(problem)[0]), ""), problem, tensors, (), CPU).run()
    assert (tensors["y"] - expected).abs().max() <= 0.501  # of a byte

    y = tensors["y"].float().movedim(-1, 1) * scales[1]
    assert 1e-4 < relative_error(y, exact) < 0.02
    layer = simulated(nn.Sequential(conv), {"0": scales[0]})
    again = layer(x).relu() if relu else layer(x)
    assert (y - again).abs().max() <= 0.501 * scales[1]  # what rounding the output costs


def pictures(count, generator):
    """Stripes of six directions and any phase, in noise: (count, 3, 12, 12) and their classes."""
    classes = torch.randint(6, (count,), generator=generator)
    angle = classes * (torch.pi / 6)
    across = torch.arange(12.0)
    place = torch.cos(angle)[:, None, None] * across[None, :, None] + torch.sin(angle)[:, None, None] * across
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    stripes = torch.sin(1.1 * place + phase)[:, None]
    return stripes + 0.3 * torch.randn(count, 3, 12, 12, generator=generator), classes


@pytest.fixture(scope="module")
def one_thread():
    """Layers this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(one_thread):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)

    def block(c, k, stride):
        return nn.Sequential(nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU())

    model = nn.Sequential(block(3, 8, 1), block(8, 16, 2), block(16, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(16, 6))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        x, classes = pictures(48, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), classes).backward()
        optimizer.step()
    return model.eval()


def test_a_trained_network_keeps_its_answers_in_bytes(trained, generator):
    x, classes = pictures(1000, generator)
    assert (trained(x).argmax(1) == classes).double().mean() > 0.9, "the network has learnt"
    scales = calibrate(trained, [pictures(64, generator)[0] for _ in range(4)])
    assert len(scales) == 4
    bytes_ = simulated(trained, scales)
    loss = compare(trained, bytes_, x.split(400))
    assert loss.samples == 1000 and loss.agreement > 0.98 and 1e-4 < loss.error < 0.05
    assert (bytes_(x).argmax(1) == classes).double().mean() > 0.9
    assert "same top-1 on" in str(loss) and "of 1000 samples" in str(loss)
    assert compare(trained, trained, [x]) == type(loss)(1000, 1.0, 0.0)

    clipped = simulated(trained, {name: scale / 16 for name, scale in scales.items()})
    coarse = simulated(trained, {name: scale * 16 for name, scale in scales.items()})
    for wrong in (clipped, coarse):
        assert compare(trained, wrong, [x]).error > 3 * loss.error
    some = simulated(trained, {name: scales[name] for name in list(scales)[1:-1]})
    assert compare(trained, some, [x]).error < loss.error
