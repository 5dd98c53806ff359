"""Networks by the text of --model: one of the project, a torchvision model, an ONNX file, or a function's result.

The default of their dtype is here, too.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib.util
import inspect
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autotune.core import AutotuneError, UnknownNameError
from autotune.ir import BYTE_PRECISIONS, DTYPES, Network, Problem, dtype_name
from autotune.ir.operators import Convolution
from autotune_cli import onnx_model
from autotune_cli.command_line import PRECISION, add_dtype
from autotune_cli.record import one_line
from fused_resnet import FusedResNet
from fused_resnet.capture import capture
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.networks.unet import UNet
from fused_resnet.precisions import TF32
from fused_resnet.quantization import capture_bytes
from fused_resnet.quantization.calibrate import calibrate

__all__ = ["PRECISION", "Model", "add_dtype", "default_dtype", "input_size", "load", "load_model"]

_OTHERS = "torchvision:NAME, FILE.onnx, FILE.py:FUNCTION"
_CAPTURED: dict[str, Callable[[int], nn.Module]] = {"unet": UNet}
"""Networks of the project that are captured as any other model: their name -> function of the input channels."""
_LARGEST_SAMPLE = 2**28
"""Largest number of elements of a sample: the kernels count those of a batch with 32 bits."""
_CALIBRATED = 64
"""Samples that 8-bit precisions are calibrated on: more would take minutes on a CPU and change a range by little."""
_TORCHVISION_SIZES = {"inception_v3": (3, 299, 299), "efficientnet_b3": (3, 300, 300), "fcn_resnet50": (3, 512, 512)}


@dataclass(frozen=True)
class Model:
    """A network in plain torch.

    Attributes:
        name: For file names and titles.
        shape: Of one sample, without the batch.
        module: In eval mode, float32, on the CPU.
    """

    name: str
    shape: tuple[int, ...]
    module: nn.Module

    def network(self, batch: int, dtype: str, precision: str | None = None) -> Network:
        """Return its layers as FusedResNet runs them.

        Args:
            batch: Batch size.
            dtype: Of the network's tensors: "f16", "bf16" or "f32".
            precision: "tf32", "int8", "fp8" or None. The layers are the same for every calibration.

        Raises:
            AutotuneError: The model cannot be captured, or has no layers in this precision.
        """
        self._check_precision(dtype, precision)
        dtype = TF32 if precision == TF32 else dtype
        module, shape = self.module.to(DTYPES[dtype]), (batch, *self.shape)
        if form := BYTE_PRECISIONS.get(precision or ""):
            return capture_bytes(module, shape, dtype, defaultdict(lambda: 1.0), form)
        return capture(module, shape, dtype)

    def step_problems(self, batch: int, dtype: str, precision: str | None = None) -> dict[str, Problem]:
        """Return the problems of a training step, forward and backward, by the names of their layers.

        Args:
            batch: Batch size.
            dtype: Of the products, which torch.autocast may make: "f16", "bf16" or "f32".
            precision: "tf32" or None.

        Raises:
            AutotuneError: The model does not run forward and backward, or there is no training in this precision.
        """
        from fused_resnet.training import step_problems  # imports torch's compiler, which takes seconds

        if precision in BYTE_PRECISIONS:
            raise AutotuneError(f"--precision {precision} is for inference, not for --train")
        self._check_precision(dtype, precision)
        module = copy.deepcopy(self.module).train()
        found = step_problems(module, [torch.empty(batch, *self.shape)], DTYPES[dtype] if dtype != "f32" else None)
        if precision != TF32:
            return found.to_tune()
        return {
            name: dataclasses.replace(problem, dtype=TF32) if isinstance(problem, Convolution) else problem
            for name, problem in found.to_tune().items()
        }

    def call(self, x: torch.Tensor) -> object:
        """Run the module once; raises AutotuneError if it does not accept the input."""
        try:
            with torch.no_grad():
                return self.module(x)
        except Exception as error:  # a user's module may raise anything
            shape = "x".join(map(str, x.shape))
            raise AutotuneError(f"{self.name} does not take an input of {shape}: {one_line(error)}") from error

    def fused(
        self,
        database: str,
        precision: str | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> FusedResNet:
        """Return a FusedResNet on a tuning database, with the module's weights, in float32 on the CPU.

        Args:
            database: The tuning database.
            precision: "tf32", "int8", "fp8" or None.
            scales: For an 8-bit precision: what `calibrate` returned.
        """
        return FusedResNet.from_model(self.module, database, name=self.name, precision=precision, calibration=scales)

    def fused_for(self, x: torch.Tensor, database: str, precision: str | None) -> FusedResNet:
        """Return a FusedResNet for inputs like x, on its device and in its dtype.

        Args:
            x: An input. An 8-bit precision is calibrated on its first samples, on its device.
            database: The tuning database.
            precision: "tf32", "int8", "fp8" or None.

        Raises:
            AutotuneError: The model cannot be captured, or the precision is not for it or for the dtype.
        """
        self._check_precision(dtype_name(x.dtype), precision)
        scales = None
        if precision in BYTE_PRECISIONS:
            module = copy.deepcopy(self.module).to(x.device)
            scales = calibrate(module, [x[:_CALIBRATED]], precision=precision)
        return self.fused(database, precision, scales).to(x.device, x.dtype)

    def _check_precision(self, dtype: str, precision: str | None) -> None:
        if precision == TF32 and dtype != "f32":
            raise AutotuneError(f"--precision tf32 is for --dtype f32, not {dtype}")


def default_dtype(device: torch.device, precision: str | None) -> str:
    """Return the dtype of a network's tensors that is used without --dtype."""
    return "f16" if device.type == "cuda" and precision != TF32 else "f32"


def load(text: str, shape: tuple[int, ...] | None, in_channels: int | None) -> Model:
    """Return the network that --model names.

    Args:
        text: The value of --model.
        shape: Of one sample, for a captured model; None for the usual one.
        in_channels: Input channels, for a network of the project; None for 3.

    Raises:
        AutotuneError: An option does not apply to the model, or the model cannot be loaded.
    """
    if shape and math.prod(shape) > _LARGEST_SAMPLE:
        raise AutotuneError(f"--input {','.join(map(str, shape))}: a sample has at most {_LARGEST_SAMPLE} numbers")
    is_onnx = text.endswith(onnx_model.SUFFIX)
    is_other = ":" in text or is_onnx
    if in_channels and (shape or is_other):
        named = ", ".join((*se_resnet9_fixup.MODELS, *_CAPTURED))
        raise AutotuneError(f"--in-channels is for {named}: give --input C,H,W")
    if is_onnx:
        module, known = onnx_model.load(Path(text))
        if not (shape or known):
            raise AutotuneError(f"'{text}' leaves the size of its input open: give --input C,H,W")
        return Model(f"{Path(text).stem}_onnx", shape or known or (), module)
    module = load_model(text, in_channels or (shape[0] if shape else 3))
    return Model(text.rpartition(":")[2], shape or input_size(text, module), module)


def load_model(text: str, in_channels: int = 3) -> nn.Module:
    """Return the module that --model names, apart from an ONNX file, in eval mode, with random weights.

    Raises:
        UnknownNameError: There is no model of this name.
        AutotuneError: The file cannot be imported, or its function returns no module.
    """
    if text.startswith("torchvision:"):
        model = _torchvision(text.removeprefix("torchvision:"))
    elif ".py:" in text:
        path, _, function = text.rpartition(":")
        model = _from_file(Path(path), function)
    elif text in se_resnet9_fixup.MODELS:
        model = se_resnet9_fixup.randomize(se_resnet9_fixup.build(text, in_channels))
    elif text in _CAPTURED:
        model = _CAPTURED[text](in_channels)
    else:
        known = ", ".join((*se_resnet9_fixup.MODELS, *_CAPTURED))
        raise UnknownNameError(
            f"unknown model '{text}': give {known}, torchvision:NAME, FILE.onnx, or FILE.py:FUNCTION"
        )
    return model.eval()


def input_size(text: str, model: nn.Module) -> tuple[int, ...]:
    """Return the usual shape of one sample of the network that --model names; raises AutotuneError if there is none."""
    if text.startswith("torchvision:"):
        return _TORCHVISION_SIZES.get(text.removeprefix("torchvision:"), (3, 224, 224))
    size, channels = getattr(model, "input_size", None), getattr(model, "in_channels", 3)
    if isinstance(size, int):
        return (channels, size, size)
    raise AutotuneError(f"the input size of '{text}' is not known: give --input C,H,W")


def _torchvision(name: str) -> nn.Module:
    try:
        from torchvision import models  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise AutotuneError(f"torchvision:{name} needs {error.name}: {_torchvision_command()}") from error
    except Exception as error:  # a build for another torch fails in ways of its own
        raise AutotuneError(
            f"torchvision:{name}: the installed torchvision does not fit torch {torch.__version__} "
            f"({one_line(error)}): {_torchvision_command()}"
        ) from error
    known = models.list_models()
    if name not in known:
        near = difflib.get_close_matches(name, known, 5, 0.4)
        listed = f"similar names are {', '.join(near)}" if near else f"it has {', '.join(known[:8])} and more"
        raise UnknownNameError(f"torchvision has no model '{name}': {listed}")
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    backbone = {"weights_backbone": None} if "weights_backbone" in parameters else {}  # else they are downloaded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the initialization of some models, whose weights are random here
        model: nn.Module = models.get_model(name, weights=None, **backbone)
    return model


def _torchvision_command() -> str:
    """Return the command that installs the torchvision for the installed torch, and leaves torch as it is."""
    version, _, build = torch.__version__.partition("+")
    minor = int(version.split(".")[1]) + 15  # torchvision 0.15 was made for torch 2.0, 0.16 for 2.1, and so on
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip install 'torchvision==0.{minor}.*'{index}"


def _from_file(path: Path, function: str) -> nn.Module:
    if not path.is_file():
        raise AutotuneError(f"there is no file '{path}': --model FILE.py:FUNCTION names one")
    spec = importlib.util.spec_from_file_location(f"_model_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its classes can be pickled and compiled
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for modules beside the file, as Python does for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        raise AutotuneError(f"'{path}' cannot be imported: {type(error).__name__}: {error}") from error
    make = getattr(module, function, None)
    if not callable(make):
        have = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UnknownNameError(f"'{path}' has no function '{function}'; it has {', '.join(have) or 'none'}")
    try:
        model = make()
    except Exception as error:
        raise AutotuneError(f"'{path}:{function}' failed: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise AutotuneError(f"'{path}:{function}' returned a {type(model).__name__}: it must return an nn.Module")
    return model
