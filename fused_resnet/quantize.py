"""Post-training quantization to signed bytes: calibrated scales, convolutions as `s8` problems, and what it costs.

Everything is symmetric: a value is scale * byte. Weights have a scale for each output channel, activations one for the
whole tensor, from the largest magnitude that calibration met. A convolution's epilogue brings its sums, which are
whole, to its output's: y = round(relu(sum * scale + bias)), with scale = input_scale * weight_scale / output_scale.

    scales = calibrate(model, batches)
    print(compare(model, simulated(model, scales), held_out))

A batch-norm behind a convolution may be folded before or after: it changes a channel's scale and no byte but its sign.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from autotune.epilogue import Epilogue
from autotune.errors import ProblemError
from autotune.problem import Conv2d

LARGEST = 127
"""Of a byte's magnitudes; -128 is left out, so that scales are symmetric."""


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The scale with which values up to `largest` in magnitude fill a byte; 1 where all are zero."""
    return torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))


def to_bytes(values: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """The bytes nearest to values / scale, saturated."""
    return (values / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)


def calibrate(model: nn.Module, batches: Iterable[torch.Tensor]) -> dict[str, float]:
    """The scale of every convolution's and linear layer's input, by the module's name.

    The model runs on each batch as it is, in eval mode and without gradients. Raises ProblemError if a layer was not
    reached, or met values that are not finite.
    """
    layers = _layers(model)
    largest: dict[str, float] = {}

    def observe(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        value = float(inputs[0].detach().abs().amax())
        if not value < float("inf"):
            raise ProblemError(f"calibration: the input of {name} holds values that are not finite")
        largest[name] = max(value, largest.get(name, 0.0))

    hooks = [module.register_forward_pre_hook(partial(observe, name)) for name, module in layers.items()]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    if missed := [name for name in layers if name not in largest]:
        raise ProblemError(f"calibration did not reach {', '.join(missed)}: give batches that the model runs on")
    return {name: float(scale_of(torch.tensor(value))) for name, value in largest.items()}


def _layers(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight's bytes in its own shape, and the scale of each output channel (k,)."""
    scale = scale_of(weight.detach().abs().flatten(1).amax(1).float())
    return to_bytes(weight.detach().float(), scale.view(-1, *[1] * (weight.dim() - 1))), scale


@dataclass(frozen=True)
class QuantizedConv:
    """A convolution of bytes: the operands of an `s8` problem.

    weight: (k, c/groups, r, s) int8. scale, bias: (k,) float32, the vectors of the epilogue's steps of these names.
    """

    conv: nn.Conv2d
    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    relu: bool

    @classmethod
    def of(cls, conv: nn.Conv2d, input_scale: float, output_scale: float, relu: bool = False) -> QuantizedConv:
        """Quantize a convolution whose batch-norm is folded. output_scale: the next layer's input scale.

        Raises ProblemError for what no problem says: padding that is not zeros, or given as a word.
        """
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise ProblemError(f"{conv}: only padding with zeros, given in pixels, can be quantized")
        weight, weight_scale = quantize_weight(conv.weight)
        bias = torch.zeros_like(weight_scale) if conv.bias is None else conv.bias.detach().float()
        return cls(conv, weight, weight_scale * (input_scale / output_scale), bias / output_scale, relu)

    def problem(self, n: int, h: int, w: int) -> Conv2d:
        """The problem for a batch of n images of h x w pixels; its vectors are `scale0` and `bias1`."""
        k, _, r, s = self.weight.shape
        conv = self.conv
        return Conv2d(
            n=n, h=h, w=w, c=conv.in_channels, k=k, r=r, s=s, stride=_pair(conv.stride), pad=_pair(conv.padding),
            dilation=_pair(conv.dilation), groups=conv.groups, dtype="s8",
            epilogue=Epilogue(("scale", "bias", "relu") if self.relu else ("scale", "bias")),
        )  # fmt: skip


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)


class _Simulated(nn.Module):
    """A layer as bytes compute it: whole inputs and weights, exact sums in float32, a result in float32."""

    scale: torch.Tensor
    bias: torch.Tensor

    def __init__(self, layer: nn.Conv2d | nn.Linear, input_scale: float) -> None:
        super().__init__()
        weight, weight_scale = quantize_weight(layer.weight)
        self.layer = copy.deepcopy(layer).float()
        self.layer.weight.data = weight.float()
        self.layer.bias = None
        self.input_scale = input_scale
        shape = (-1, 1, 1) if isinstance(layer, nn.Conv2d) else (-1,)
        self.register_buffer("scale", (weight_scale * input_scale).view(shape))
        bias = torch.zeros_like(weight_scale) if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("bias", bias.view(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result, as near as bytes come to it."""
        sums: torch.Tensor = self.layer(to_bytes(x, self.input_scale).float())
        return (sums * self.scale + self.bias).to(x.dtype)


def simulated(model: nn.Module, scales: Mapping[str, float]) -> nn.Module:
    """A copy of the model in which every layer that has a scale computes in bytes; the others are left as they are.

    Leave names out of `scales` to keep layers exact, such as the first and the last. Raises ProblemError for a name
    that is no convolution or linear layer of the model.
    """
    layers = _layers(model)
    if unknown := [name for name in scales if name not in layers]:
        raise ProblemError(f"the model has no convolution or linear layer {', '.join(unknown)}")
    result = copy.deepcopy(model).eval()
    for name, scale in scales.items():
        parent, _, child = name.rpartition(".")
        setattr(result.get_submodule(parent), child, _Simulated(layers[name], scale))
    return result


@dataclass(frozen=True)
class Loss:
    """What a model lost. agreement: the share of samples with the same largest output; error: relative, of all."""

    samples: int
    agreement: float
    error: float

    def __str__(self) -> str:
        return (
            f"the same top-1 on {self.agreement:.2%} of {self.samples} samples; outputs differ by {self.error:.2%} "
            "of their norm"
        )


@torch.no_grad()
def compare(model: nn.Module, other: nn.Module, batches: Iterable[torch.Tensor]) -> Loss:
    """How far the outputs (n, classes) of `other` are from those of `model`; both in eval mode. Raises ProblemError."""
    samples, same, difference, norm = 0, 0, 0.0, 0.0
    for batch in batches:
        expected, actual = model(batch).double(), other(batch).double()
        samples += len(batch)
        same += int((expected.argmax(1) == actual.argmax(1)).sum())
        difference += float((actual - expected).square().sum())
        norm += float(expected.square().sum())
    if not samples:
        raise ProblemError("there is nothing to compare on: no batch was given")
    return Loss(samples, same / samples, (difference / norm) ** 0.5 if norm else 0.0)
