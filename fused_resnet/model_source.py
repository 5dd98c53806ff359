"""What a FusedResNet computes, and how precisely: a network with a graph of its own, or any module, captured."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import nn

from autotune.core import require_one_of
from autotune.ir import Network
from fused_resnet.networks import se_resnet9_fixup, se_resnet9_fixup_layers
from fused_resnet.torch_op import InputError

TF32, INT8 = "tf32", "int8"
PRECISIONS = {
    TF32: "products of float32 are rounded to TF32",
    INT8: "what gains by it runs in signed bytes",
}
"""What can be chosen beside the dtype of the module's tensors, and what it means."""


class ModelSource(Protocol):
    """name: for messages. module: the network in plain torch. precision: of PRECISIONS, or None for the module's."""

    name: str
    module: nn.Module
    precision: str | None

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """The layers for an input shape; raises InputError or CaptureError."""

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """The result's shape, in torch's order."""


class Named:
    """A network of graph.py, by its name."""

    def __init__(self, name: str, in_channels: int, precision: str | None = None) -> None:
        self.name, self.in_channels, self.precision = name, in_channels, precision
        if precision == INT8:
            raise InputError(
                f"{name} has a graph of its own, in floating point: for bytes take "
                "FusedResNet.from_model(reference.build(...), precision='int8')"
            )
        _products("f32", precision)
        self.module = se_resnet9_fixup.build(name, in_channels)
        self._structure = _structure(self.module)
        self._output = se_resnet9_fixup_layers.network(name, 1, in_channels, "f32").output_shape[1:]

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """The layers for an input (N, in_channels, H, W) of the one size that the network takes."""
        size = int(self.module.input_size)  # type: ignore[arg-type]
        if len(shape) != 4 or shape[1:] != (self.in_channels, size, size) or not shape[0]:
            wanted = f"(N, {self.in_channels}, {size}, {size})"
            raise InputError(f"the input has shape {shape}; {self.name} takes {wanted} with N of at least 1")
        structure = _structure(self.module)
        for part, kind in self._structure.items():
            if structure.get(part) != kind:
                is_now = structure.get(part, "gone")
                raise InputError(f"'{part}' is {is_now}, where {self.name} has {kind}: no kernel computes that")
        return se_resnet9_fixup_layers.network(self.name, shape[0], self.in_channels, _products(dtype, self.precision))

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """(N, K, P, Q)."""
        return (shape[0], *self._output)


class Captured:
    """Any module, captured once for each shape and dtype; and again if a submodule is replaced.

    scales: of activations by name, where the precision is int8.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str = "",
        precision: str | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        self.name, self.module = name or type(module).__name__, module
        self.precision, self.scales = precision, scales
        self._networks: dict[tuple[tuple[int, ...], str], Network] = {}
        self._parts: dict[str, nn.Module] = {}

    @classmethod
    def of(
        cls,
        model: nn.Module,
        replace: Mapping[str, nn.Module],
        name: str = "",
        precision: str | None = None,
        calibration: Iterable[Any] | Mapping[str, float] | None = None,
    ) -> Captured:
        """A copy of a model, in eval mode, with other modules in some places (capture/activation.py).

        precision, calibration: as FusedResNet.from_model has them.
        """
        from fused_resnet.capture import activation
        from fused_resnet.capture.trace import check
        from fused_resnet.quantization.calibrate import calibrate

        _products("f32", precision)
        if (calibration is None) == (precision == INT8):
            raise InputError(
                "precision='int8' needs calibration: some batches like those to come, or what "
                "fused_resnet.quantization.calibrate.calibrate made of them"
                if calibration is None
                else "calibration is for precision='int8' alone"
            )
        module = copy.deepcopy(model)
        activation.replace(module, replace)
        check(module.eval())
        if calibration is None or isinstance(calibration, Mapping):
            return cls(module, name, precision, calibration)
        return cls(module, name, precision, calibrate(module, calibration))

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """The layers for an input of this shape; takes seconds the first time."""
        from fused_resnet.capture import capture
        from fused_resnet.quantization.int8_rewrite import capture_int8

        if 0 in shape or not shape:
            raise InputError(f"the input has shape {shape}: it must hold something")
        self.module.training = False  # of the parts, whoever has them as its own decides
        parts = dict(self.module.named_modules())
        if parts != self._parts:
            self._networks.clear()
            self._parts = parts
        if (shape, dtype) not in self._networks:
            products = _products(dtype, self.precision)
            with ThreadPoolExecutor(1) as untraced:  # whoever traces or compiles us changes torch for its thread alone
                if self.scales is None:
                    captured = untraced.submit(capture, self.module, shape, products)
                else:
                    captured = untraced.submit(capture_int8, self.module, shape, products, self.scales)
            self._networks[shape, dtype] = captured.result()
        return self._networks[shape, dtype]

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """As the captured network has it, which is found even while torch.compile traces."""
        # It holds a lock then, for which operators that would be compiled themselves, such as torch.cond, must not wait
        # in the other thread.
        with torch.compiler.set_stance("force_eager"):
            return self.network(shape, dtype).output_shape


def _products(dtype: str, precision: str | None) -> str:
    """The dtype of a network's problems; raises UnknownNameError, and InputError where the precision is not for it."""
    if precision is not None:
        require_one_of("precision", precision, list(PRECISIONS))
    if precision == TF32 and dtype != "f32":
        raise InputError(f"precision='tf32' is for float32, and the module is in {dtype}: convert it with .float()")
    return TF32 if precision == TF32 else dtype


def _structure(module: nn.Module) -> dict[str, str]:
    """What kind of part each submodule is, and each tensor's shape, in words."""
    parts = {name: f"a {type(part).__name__}" for name, part in module.named_modules() if name}
    return parts | {name: f"of shape {tuple(tensor.shape)}" for name, tensor in module.state_dict().items()}
