"""Sources of the network that a FusedResNet runs: a network known by name, or any module, captured."""

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
    INT8: "layers that gain by it run in signed bytes",
}
"""Precisions besides that of the module's dtype, and what they mean."""


class ModelSource(Protocol):
    """A network in plain torch and its layers.

    Attributes:
        name: For messages.
        module: The network in plain torch.
        precision: One of PRECISIONS, or None for the precision of the module's dtype.
    """

    name: str
    module: nn.Module
    precision: str | None

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """Return the layers for an input shape; raises InputError or CaptureError."""

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """Return the result's shape for an input shape, in torch's order of dimensions."""


class Named:
    """A network that this project defines layer by layer, by its name.

    Pickles refer to this class by its name and module.

    Args:
        name: A key of `se_resnet9_fixup.MODELS`.
        in_channels: Number of channels of the input.
        precision: "tf32" or None.

    Raises:
        InputError: The precision is "int8", which only a captured module can have.
        UnknownNameError: There is no network or precision of this name.
    """

    def __init__(self, name: str, in_channels: int, precision: str | None = None) -> None:
        self.name, self.in_channels, self.precision = name, in_channels, precision
        if precision == INT8:
            raise InputError(
                f"precision='int8' is not available for model='{name}', whose layers are in floating point: "
                "use FusedResNet.from_model(networks.se_resnet9_fixup.build(...), precision='int8', calibration=...)"
            )
        _problem_dtype("f32", precision)
        self.module = se_resnet9_fixup.build(name, in_channels)
        self._structure = _structure(self.module)
        self._output = se_resnet9_fixup_layers.network(name, 1, in_channels, "f32").output_shape[1:]

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """Return the layers for an input (N, in_channels, H, W), whose H and W are those of the network.

        Raises:
            InputError: The input has another shape, or a part of the module was replaced by another kind of part.
        """
        size = int(self.module.input_size)  # type: ignore[arg-type]
        if len(shape) != 4 or shape[1:] != (self.in_channels, size, size) or not shape[0]:
            wanted = f"(N, {self.in_channels}, {size}, {size})"
            raise InputError(f"the input has shape {shape}; {self.name} takes {wanted} with N of at least 1")
        structure = _structure(self.module)
        for part, kind in self._structure.items():
            if structure.get(part) != kind:
                is_now = structure.get(part, "gone")
                raise InputError(
                    f"'{part}' is {is_now}, where {self.name} has {kind}, and there are no kernels for that: "
                    "use FusedResNet.from_model for a changed module"
                )
        dtype = _problem_dtype(dtype, self.precision)
        return se_resnet9_fixup_layers.network(self.name, shape[0], self.in_channels, dtype)

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """Return (N, K, P, Q)."""
        return (shape[0], *self._output)


class Captured:
    """Any module; captured once for each input shape and dtype, and again if a submodule is replaced.

    Pickles refer to this class by its name and module.

    Args:
        module: The module, in eval mode.
        name: For messages; the class name by default.
        precision: One of PRECISIONS, or None.
        scales: Scale of each activation by name, for int8.
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
        """Return a copy of a model, in eval mode, with some submodules replaced.

        The arguments and errors are those of `FusedResNet.from_model`.
        """
        from fused_resnet.capture import activation
        from fused_resnet.capture.trace import check
        from fused_resnet.quantization.calibrate import calibrate

        _problem_dtype("f32", precision)
        if precision == INT8 and calibration is None:
            raise InputError(
                "precision='int8' needs calibration: give batches of inputs like those to come, or the scales that "
                "fused_resnet.quantization.calibrate.calibrate returned for them"
            )
        if precision != INT8 and calibration is not None:
            raise InputError(
                f"calibration is for precision='int8' alone, and precision is {precision!r}: leave one out"
            )
        module = copy.deepcopy(model)
        activation.replace(module, replace)
        check(module.eval())
        if calibration is None or isinstance(calibration, Mapping):
            return cls(module, name, precision, calibration)
        return cls(module, name, precision, calibrate(module, calibration))

    def network(self, shape: tuple[int, ...], dtype: str) -> Network:
        """Return the layers for an input of this shape; takes seconds the first time.

        Raises:
            CaptureError: The module cannot be captured.
            InputError: The shape has no elements, or the precision does not fit the dtype.
        """
        from fused_resnet.capture import capture
        from fused_resnet.quantization.int8_rewrite import capture_int8

        if 0 in shape or not shape:
            raise InputError(f"the input has shape {shape}: it must have at least one dimension and one element")
        # A FusedResNet shares this module's submodules and sets their mode, but not that of the module itself.
        self.module.training = False
        parts = dict(self.module.named_modules())
        if parts != self._parts:
            self._networks.clear()
            self._parts = parts
        if (shape, dtype) not in self._networks:
            problem_dtype = _problem_dtype(dtype, self.precision)
            with ThreadPoolExecutor(1) as untraced:  # a tracer that is active here changes torch for its thread only
                if self.scales is None:
                    captured = untraced.submit(capture, self.module, shape, problem_dtype)
                else:
                    captured = untraced.submit(capture_int8, self.module, shape, problem_dtype, self.scales)
            self._networks[shape, dtype] = captured.result()
        return self._networks[shape, dtype]

    def output_shape(self, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
        """Return the result's shape as the captured network has it; works while torch.compile traces."""
        # torch.compile holds a lock then. An operator that would itself be compiled in the other thread, such as
        # torch.cond, must not wait for it.
        with torch.compiler.set_stance("force_eager"):
            return self.network(shape, dtype).output_shape

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_networks": {}, "_parts": {}}  # a cache, of classes that later versions may rename

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_networks": {}, "_parts": {}})

    def __deepcopy__(self, memo: dict[int, Any]) -> Captured:
        """Return a copy that keeps the captured networks, which nothing changes."""
        copied = Captured(copy.deepcopy(self.module, memo), self.name, self.precision, self.scales)
        if self._parts == dict(self.module.named_modules()):
            copied._networks = dict(self._networks)
            copied._parts = dict(copied.module.named_modules())
        return copied


def _problem_dtype(dtype: str, precision: str | None) -> str:
    """Return the dtype of a network's problems for a module's dtype and a precision.

    Raises:
        InputError: The precision is not for this dtype.
        UnknownNameError: There is no precision of this name.
    """
    if precision is not None:
        require_one_of("precision", precision, list(PRECISIONS))
    if precision == TF32 and dtype != "f32":
        raise InputError(f"precision='tf32' is for float32, and the module is in {dtype}: convert it with .float()")
    return TF32 if precision == TF32 else dtype


def _structure(module: nn.Module) -> dict[str, str]:
    """Return the kind of each submodule and the shape of each tensor in words, by name."""
    parts = {name: f"a {type(part).__name__}" for name, part in module.named_modules() if name}
    return parts | {name: f"of shape {tuple(tensor.shape)}" for name, tensor in module.state_dict().items()}
