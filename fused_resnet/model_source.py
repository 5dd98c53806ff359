"""The source of what a FusedResNet runs: a module, captured once for each kind of call."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autotune.core import CaptureError, of_capability, require_one_of
from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS, CallerTensor, Network, dtype_name
from autotune.runtime.engine import StateWatch
from fused_resnet.call import Result, Signature, check_arguments, joint
from fused_resnet.guards import Guards, guards
from fused_resnet.precisions import PRECISIONS, TF32
from fused_resnet.quantization import CalibratedScales
from fused_resnet.torch_op import InputError

if TYPE_CHECKING:
    from fused_resnet.capture import CapturedModule

__all__ = ["PRECISIONS", "PRODUCTS", "Captured", "check_precision"]

KEPT_CAPTURES = 3
"""Number of captures that are kept for values that may change back, besides the one in use."""

PRODUCTS = {TF32: TF32, **{name: form.dtype for name, form in BYTE_PRECISIONS.items()}}
"""Precision -> the dtype of its products."""
CALIBRATED = " or ".join(f"precision='{name}'" for name in BYTE_PRECISIONS)
"""The precisions that need a calibration, for messages."""


class _Exporting:
    """Holds the lock of torch.export, which is not thread-safe."""

    lock = threading.Lock()


class _Captures:
    """Captures of a module that hold as long as the values that its forward reads stay what they are.

    Attributes:
        guards: These values.
        watch: Tells whether they are what they were.
        modules: The captures, by the arguments.
    """

    def __init__(self, module: nn.Module, modules: Mapping[Signature, CapturedModule] | None = None) -> None:
        self.guards = guards(module)
        self.watch = StateWatch([])
        self.guards.add_to(self.watch)
        self.modules = dict(modules or {})


_CACHE = {"_captures", "_parts", "results"}
"""Attributes of Captured that its module determines. Pickles hold none, because later versions may rename classes."""


class Captured:
    """Any module; captured once for each signature of its arguments, and again if a submodule or a value is changed.

    Pickles refer to this class by its name and module.

    Args:
        module: The module, in eval mode.
        name: For messages; the class name by default.
        precision: One of PRECISIONS, or None.
        scales: Scale of each activation by name, for an 8-bit format.
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
        self.results: dict[str, Result] = {}
        self._forget()

    def _forget(self) -> None:
        self._captures: list[_Captures] = []
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
        """Return a copy of a model with some submodules replaced.

        The arguments and errors are those of `FusedResNet.from_model`.
        """
        from fused_resnet.capture import activation
        from fused_resnet.capture.model_copy import copy_of
        from fused_resnet.quantization.calibrate import calibrate

        check_precision(precision, calibration)
        module = copy_of(model)
        activation.replace(module, replace)
        module.eval()  # only replacements can be in training mode here: `copy_of` refuses such models
        if calibration is None or isinstance(calibration, Mapping):
            return cls(module, name, precision, calibration)
        assert precision
        return cls(module, name, precision, calibrate(module, calibration, precision=precision))

    def network(self, signature: Signature) -> Network:
        """Return the layers for the arguments of a call; takes seconds the first time.

        Raises:
            CaptureError: The module cannot be captured.
            InputError: The module does not take such arguments, an input has no elements, or the precision does not fit
                the dtype or the device.
        """
        _check_device(self.precision, next(self.module.parameters(), torch.empty(0)).device)
        captured = self._capture(signature)
        found = {
            other: one.result
            for other, one in self._captures[-1].modules.items()
            if other.arguments == signature.arguments and other != signature
        }
        found[signature] = captured.result
        result = joint([([one.shape for one in each.tensors], returned) for each, returned in found.items()])
        if result is None:
            raise CaptureError(
                f"forward returns {captured.result} for {signature}, and {next(iter(found.values()))} for other "
                "shapes: it must return the same kind of result, and the same numbers but for sizes of its inputs"
            )
        self.results[signature.arguments] = result
        return captured.network

    @property
    def guards(self) -> Guards:
        """The values that the last capture depends on."""
        return self._captures[-1].guards

    def _capture(self, signature: Signature) -> CapturedModule:
        if not signature.leading.shape or any(0 in tensor.shape for tensor in signature.tensors):
            raise InputError(f"a call has {signature}: inputs must have at least one dimension and one element")
        # A FusedResNet shares this module's submodules and sets their mode, but not that of the module itself.
        self.module.training = False
        parts = dict(self.module.named_modules())
        if parts != self._parts:
            self._forget()
            self._parts = parts
        valid = next((one for one in self._captures if one.watch.unchanged()), None) or _Captures(self.module)
        if signature not in valid.modules:
            valid.modules[signature] = self._trace(signature)
        # The last one is in use; of the others some stay, because values may change back.
        others = [one for one in self._captures if one is not valid]
        self._captures = [*others[-KEPT_CAPTURES:], valid]
        return valid.modules[signature]

    def _trace(self, signature: Signature) -> CapturedModule:
        from fused_resnet.capture import capture_module
        from fused_resnet.capture.export import tracing
        from fused_resnet.dynamo_graph import DynamoGraph

        check_arguments(self.module, signature.arguments)
        form = BYTE_PRECISIONS.get(self.precision or "")
        if form and len(signature.tensors) > 1:
            raise InputError(f"precision='{self.precision}' is for models with one input, and a call has {signature}")
        own = next((one.dtype for one in self.module.parameters() if one.is_floating_point()), torch.float32)
        problem_dtype = _problem_dtype(dtype_name(signature.dtype or own), self.precision)
        # Dynamo holds a lock of its own, and calls this with a graph, which takes no torch.export.
        is_exported = not (tracing.get() or isinstance(self.module, DynamoGraph))
        # A tracer that is active here changes torch for its thread only.
        with _Exporting.lock if is_exported else nullcontext(), ThreadPoolExecutor(1) as untraced:
            if form is None or self.scales is None:
                return untraced.submit(capture_module, self.module, signature, problem_dtype).result()
            from fused_resnet.quantization.byte_rewrite import capture_module_bytes

            return untraced.submit(
                capture_module_bytes, self.module, signature, problem_dtype, self.scales, form
            ).result()

    def tensors(self, signature: Signature) -> tuple[CallerTensor, ...]:
        """Return shape and dtype of each result of the captured network."""
        # torch.compile holds a lock then. An operator that would itself be compiled in the other thread, such as
        # torch.cond, must not wait for it.
        with torch.compiler.set_stance("force_eager"):
            return self.network(signature).results

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _CACHE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"results": {}})
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Captured:
        """Return a copy that keeps the captured networks, which nothing changes."""
        return self.with_module(copy.deepcopy(self.module, memo))

    def with_module(self, module: nn.Module) -> Captured:
        """Return a source for a module that differs in its tensors alone; it keeps the captured networks."""
        copied = Captured(module, self.name, self.precision, self.scales)
        if self._parts == dict(self.module.named_modules()):
            copied._captures = [_Captures(module, one.modules) for one in self._captures if one.watch.unchanged()]
            copied._parts = dict(module.named_modules())
        return copied


def check_precision(precision: str | None, calibration: Iterable[Any] | Mapping[str, float] | None) -> None:
    """Check that a precision exists and that a calibration for it is given if it is an 8-bit format, and only then.

    Raises:
        InputError: Precision and calibration do not fit together.
        UnknownNameError: There is no precision of this name.
    """
    _problem_dtype("f32", precision)
    if precision in BYTE_PRECISIONS and calibration is None:
        raise InputError(
            f"precision='{precision}' needs calibration: give batches of inputs like those to come, or the scales that "
            "fused_resnet.calibrate returned for them"
        )
    if precision not in BYTE_PRECISIONS and calibration is not None:
        raise InputError(f"calibration is for {CALIBRATED} alone, and precision is {precision!r}: leave one out")
    # Plain dictionaries do not say for which one they are.
    of = calibration.precision if isinstance(calibration, CalibratedScales) else precision
    if of != precision:
        raise InputError(
            f"the calibration is for precision='{of}', and precision is '{precision}': call "
            f"calibrate(..., precision='{precision}')"
        )


def _check_device(precision: str | None, device: torch.device) -> None:
    """Raise InputError if a device lacks the instructions of a precision; it says which precisions the device has."""
    form = BYTE_PRECISIONS.get(precision or "")
    if form is None or not form.capability or device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < form.capability:
        dtypes = of_capability(10 * major + minor).dtypes
        has = [repr(name) for name, products in PRODUCTS.items() if products in dtypes]
        raise InputError(
            f"precision='{precision}' needs a GPU of compute capability {form.capability / 10} or more, and "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}: "
            f"it has the precisions {', '.join([*has, 'None'])}, of which None is that of the module's dtype"
        )


def _problem_dtype(dtype: str, precision: str | None) -> str:
    """Return the dtype of a network's problems for a module's dtype and a precision.

    Raises:
        InputError: The precision is not for this dtype.
        UnknownNameError: There is no precision of this name.
    """
    if precision is not None:
        require_one_of("precision", precision, list(PRECISIONS))
    if dtype in BYTE_FORMATS:
        raise InputError(f"the module is in {dtype}: convert it with .half(), and give precision=, which quantizes it")
    if precision == TF32 and dtype != "f32":
        raise InputError(f"precision='tf32' is for float32, and the module is in {dtype}: convert it with .float()")
    return TF32 if precision == TF32 else dtype


def _after_fork() -> None:
    """Replace the lock in a forked process: one that another thread of the parent held is never released there."""
    _Exporting.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
