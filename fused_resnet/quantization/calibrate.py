"""Post-training quantization: scales of activations from example inputs, and the loss of accuracy.

    scales = fused_resnet.calibrate(model, batches)
    net = FusedResNet.from_model(model, "tuned.db", precision="int8", calibration=scales)
    print(compare(model(held_out), net(held_out)))

docs/guide/precision.md describes what runs in bytes and how; autotune/ir/byte_formats.py has the arithmetic.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.core import ProblemError, require_one_of
from autotune.ir import BYTE_PRECISIONS, S8, Layer
from autotune.ir.reference_run import run_layers
from autotune.libraries.aten import full_float32
from fused_resnet.call import Signature, check_arguments, module_state, positions, take_apart
from fused_resnet.capture import capture_module
from fused_resnet.quantization.bias_correction import bias_corrections, has_room
from fused_resnet.quantization.byte_rules import layers_with
from fused_resnet.quantization.ranges import DEFAULT_METHOD, METHODS, MagnitudeHistogram, range_of
from fused_resnet.quantization.scales import CalibratedScales, Corrections, activation
from fused_resnet.quantization.sensitivity import differences, finite_norm, sensitive_layers
from fused_resnet.torch_op import networks


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    method: str = DEFAULT_METHOD,
    max_loss: float | None = None,
    bias_correction: bool = True,
    precision: str = S8.precision,
) -> CalibratedScales:
    """Return the scale of every activation of a module, from its values on some batches.

    A copy of the model runs in float32, in eval mode, on the model's device. Batch-norm and activations are folded into
    layers as they will be in the network that runs; the scales go by the names of these layers.

    Args:
        model: The module.
        batches: Inputs, tuples that begin with one, as a DataLoader yields them, or dictionaries that hold one by the
            name that forward gives it. Some hundred images that look like those to come are enough.
        method: What the range of an activation is, a key of `ranges.METHODS`: "max" for the largest magnitude,
            "percentile" for that of 99.99 % of the values, "mse" for the range with the least mean square error.
        max_loss: Largest loss, such as 0.01: norm of the differences of the results / norm of the results. The layers
            that lose most stay in the module's dtype, as few as the limit requires, by their losses on these batches.
            Measuring them takes a run for each layer. None: no limit.
        bias_correction: Measure the mean error of each output channel on about `bias_correction.IMAGES` inputs of one
            shape, and remove it by the bias of each layer in bytes that has one.
        precision: The precision that the scales are for: "int8" or "fp8".

    Returns:
        The scales, a dictionary, with the layers that stay in the module's dtype, because of `max_loss` or because they
        have infinite values, as the attribute `sensitive`, and what is added to biases as the attribute `corrections`.

    Raises:
        CaptureError: The module cannot be captured.
        InputError: A batch holds no tensor, or forward does not take it.
        ProblemError: There are no batches, a batch has several inputs, an input is empty, not dense or not finite, a
            result is no number, or `max_loss` is not positive.
        UnknownNameError: There is no such method or precision.
    """
    require_one_of("calibration method", method, list(METHODS))
    form = BYTE_PRECISIONS[require_one_of("calibrated precision", precision, list(BYTE_PRECISIONS))]
    if max_loss is not None and not (isinstance(max_loss, int | float) and max_loss > 0):
        raise ProblemError(f"calibration: max_loss must be a positive number, such as 0.01 for 1 %; it is {max_loss!r}")
    if isinstance(batches, torch.Tensor | Mapping):
        kind = "tensor" if isinstance(batches, torch.Tensor) else "dictionary"
        raise ProblemError(f"calibration: it takes batches, and a {kind} was given: give a list of them, such as [x]")
    if not isinstance(batches, Iterable):
        raise ProblemError(
            f"calibration: it takes batches, and a {type(batches).__name__} was given: give a list of them, such as [x]"
        )
    if id(model) in map(id, networks()):
        raise ProblemError("calibration: the model is a FusedResNet already: give the module that it was made from")
    exact = copy.deepcopy(model).eval().float()
    constants = module_state(exact)
    device = next((tensor.device for tensor in constants.values()), torch.device("cpu"))
    with full_float32(), torch.autocast(device.type, enabled=False):
        layers: dict[torch.Size, tuple[Layer, ...]] = {}
        histograms: dict[str, MagnitudeHistogram] = {}
        infinite: set[str] = set()
        seen: list[torch.Tensor] = []
        corrected_on: list[torch.Tensor] = []

        def observe(layer: Layer, operand: str, values: torch.Tensor) -> torch.Tensor:
            name = activation(layer, operand)
            if not values.is_floating_point():
                return values
            if values.isnan().any():
                raise ProblemError(f"calibration: the result of {name} holds values that are no numbers (NaN)")
            finite = values[values.isfinite()]
            if finite.numel() < values.numel():
                infinite.add(name)
            histogram = histograms.setdefault(name, MagnitudeHistogram())
            if finite.numel():
                histogram.add(finite)
            return values

        for batch in batches:
            given, arguments = _input(exact, batch)
            x = _copied(given, device)
            if x.shape not in layers:
                layers[x.shape] = capture_module(exact, Signature.of([x], arguments), "f32").network.layers
            run_layers(layers[x.shape], constants, x, written=observe)
            seen += [x] if max_loss is not None else []
            corrected_on += [x] if bias_correction and has_room(corrected_on, x) else []
        if not histograms:
            raise ProblemError("calibration: no batch was given: give at least one batch of inputs")
        scales = {
            name: float(form.scale_of(torch.tensor(range_of(histogram, method, form), dtype=torch.float64)))
            for name, histogram in histograms.items()
        }

        sensitive: dict[str, str] = {}
        for each in layers.values():
            sensitive |= layers_with(infinite, each, form)

        def corrections(kept: Mapping[str, str]) -> Corrections:
            if not bias_correction:
                return {}
            return bias_corrections(form, layers[corrected_on[0].shape], constants, corrected_on, scales, kept)

        if max_loss is not None:
            sensitive |= sensitive_layers(form, layers, constants, seen, scales, max_loss, corrections, sensitive)
        return CalibratedScales(scales, sensitive, corrections(sensitive), precision)


def _input(model: nn.Module, batch: Any) -> tuple[torch.Tensor, str]:
    """Return the input that a batch holds, and the text of the arguments with which the module takes it."""
    while isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if not isinstance(batch, Mapping):
        arguments, (x,) = take_apart((), (batch,), {})
        return x, arguments
    names = _parameters(model)
    taken = {name: value for name, value in batch.items() if names is None or name in names}
    if not taken:
        raise ProblemError(
            f"calibration: a batch is a dictionary of {', '.join(map(repr, batch)) or 'nothing'}, and forward takes "
            f"{', '.join(map(repr, names or ()))}: give the input by that name, or the tensor itself"
        )
    arguments, tensors = take_apart(positions(model), (), taken)
    if len(tensors) > 1:
        raise ProblemError(
            f"calibration: of a batch forward takes {', '.join(map(repr, taken))}, and 8-bit formats are for models "
            "with one input: leave out the others"
        )
    check_arguments(model, arguments)
    return tensors[0], arguments


def _copied(given: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return an input on a device, in float32 or integers; raises ProblemError if it has no values or infinite ones."""
    if given.layout != torch.strided or given.is_meta:
        kind = "without memory (meta)" if given.is_meta else f"in the layout {given.layout}"
        raise ProblemError(f"calibration: a batch is a tensor {kind}: give dense tensors with values")
    if not given.numel():
        raise ProblemError(f"calibration: a batch of the shape {tuple(given.shape)} is empty: leave it out")
    # A copy, because a generator may fill one tensor again and again.
    x = given.to(device, torch.float32 if given.is_floating_point() else given.dtype, copy=True)
    if not x.isfinite().all():
        raise ProblemError("calibration: a batch holds values that are not finite: check the batches")
    return x


def _parameters(model: nn.Module) -> list[str] | None:
    """Return the names of the arguments of a module's forward; None if it takes any name, or they are not known."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a forward that is no Python function
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters]


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
    difference, norm = differences(actual, expected), finite_norm(expected)
    worst = difference.abs().amax() / norm * expected.numel() ** 0.5
    return Loss(len(expected), same, float(difference.norm() / norm), float(worst))
