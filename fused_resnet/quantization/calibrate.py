"""Post-training quantization: scales of activations from example inputs, and the loss of accuracy.

    scales = calibrate(model, batches)
    net = FusedResNet.from_model(model, "tuned.db", precision="int8", calibration=scales)
    print(compare(model(held_out), net(held_out)))

docs/guide/precision.md describes what runs in bytes and how; autotune/ir/int8_numerics.py has the arithmetic.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.core import ProblemError, require_one_of
from autotune.ir import INPUT, TENSOR_DTYPES, Layer, State, compute, evaluate, scale_of
from fused_resnet.capture import capture
from fused_resnet.module_state import module_state
from fused_resnet.quantization.ranges import DEFAULT_METHOD, METHODS, MagnitudeHistogram, range_of
from fused_resnet.quantization.scales import activation


def calibrate(model: nn.Module, batches: Iterable[Any], method: str = DEFAULT_METHOD) -> dict[str, float]:
    """Return the scale of every activation of a module, from its values on some batches.

    A copy of the model runs in float32, in eval mode, on the model's device. Batch-norm and activations are folded into
    layers as they will be in the network that runs; the scales go by the names of these layers.

    Args:
        model: The module.
        batches: Inputs, or tuples that begin with one, as a DataLoader yields them. Some hundred images that look like
            those to come are enough.
        method: What the range of an activation is, a key of `ranges.METHODS`: "max" for the largest magnitude,
            "percentile" for that of 99.99 % of the values, "mse" for the range with the least mean square error.

    Raises:
        CaptureError: The module cannot be captured.
        ProblemError: There are no batches, or a value is not finite.
        UnknownNameError: There is no such method.
    """
    require_one_of("calibration method", method, list(METHODS))
    exact = copy.deepcopy(model).eval().float()
    constants = module_state(exact)
    device = next((tensor.device for tensor in constants.values()), torch.device("cpu"))
    layers: dict[torch.Size, tuple[Layer, ...]] = {}
    histograms: dict[str, MagnitudeHistogram] = {}

    def observe(name: str, values: torch.Tensor) -> None:
        if not values.isfinite().all():
            raise ProblemError(f"calibration: the result of {name} holds values that are not finite: check the batches")
        histograms.setdefault(name, MagnitudeHistogram()).add(values)

    for batch in batches:
        x = (batch[0] if isinstance(batch, list | tuple) else batch).to(device, torch.float32)
        if x.shape not in layers:
            layers[x.shape] = capture(exact, tuple(x.shape), "f32").layers
        _run(layers[x.shape], constants, x, observe)
    if not histograms:
        raise ProblemError("calibration: no batch was given: give at least one batch of inputs")
    return {name: float(scale_of(torch.tensor(range_of(histogram, method)))) for name, histogram in histograms.items()}


@torch.no_grad()
def _run(
    layers: Sequence[Layer], constants: State, x: torch.Tensor, observe: Callable[[str, torch.Tensor], object]
) -> None:
    """Run layers on one input, and call `observe` with the name and the values of each activation."""
    reads = Counter(layer.buffers[operand] for layer in layers for operand in _inputs(layer))
    values = {INPUT: x}
    for layer in layers:
        operands = {operand.name: operand for operand in layer.problem.operands()}
        tensors = {
            name: evaluate(constants, source)
            .to(x.device, TENSOR_DTYPES[operands[name].dtype])
            .reshape(operands[name].shape)
            for name, source in layer.weights.items()
        }
        for name in _inputs(layer):
            tensors[name] = values[layer.buffers[name]].reshape(operands[name].shape)
            reads[layer.buffers[name]] -= 1
            if not reads[layer.buffers[name]]:
                del values[layer.buffers[name]]
        scalars = tuple(float(evaluate(constants, source)) for source in layer.scalars)
        for name, value in compute(layer.problem, tensors, scalars).items():
            values[layer.buffers[name]] = value
            observe(activation(layer, name), value)


def _inputs(layer: Layer) -> list[str]:
    return [operand.name for operand in layer.problem.operands() if operand.role == "input"]


@dataclass(frozen=True)
class Loss:
    """The difference between results and those that were expected.

    Attributes:
        samples: Number of samples.
        agreement: Share of samples with the same largest output (top-1).
        error: Norm of the differences divided by the norm of the expected outputs.
        worst: Largest difference divided by the root mean square of the expected outputs.
    """

    samples: int
    agreement: float
    error: float
    worst: float

    def __str__(self) -> str:
        return (
            f"the same top-1 on {self.agreement:.2%} of {self.samples} samples; relative error {self.error:.2%}, "
            f"largest difference {self.worst:.2g} x the root mean square of the outputs"
        )


def compare(expected: torch.Tensor, actual: torch.Tensor) -> Loss:
    """Compare outputs (n, classes, ...) with those that were expected.

    Raises:
        ProblemError: The shapes differ, or there are no samples.
    """
    if expected.shape != actual.shape or not len(expected):
        raise ProblemError(f"outputs of {tuple(actual.shape)} cannot be compared with {tuple(expected.shape)}")
    expected, actual = (outputs.detach().double().flatten(1) for outputs in (expected, actual.to(expected.device)))
    same = float((expected.argmax(1) == actual.argmax(1)).double().mean())
    difference, norm = actual - expected, expected.norm().clamp_min(1e-300)
    worst = difference.abs().amax() / norm * expected.numel() ** 0.5
    return Loss(len(expected), same, float(difference.norm() / norm), float(worst))
