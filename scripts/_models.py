"""Models by what the command line calls them: a network of ours, package:name, or file.py:function."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from autotune.errors import AutotuneError, UnknownNameError
from autotune.problem import DTYPES
from fused_resnet import reference
from fused_resnet.capture import capture
from fused_resnet.graph import GRAPHS, Network, network

IMAGE = (3, 224, 224)
HELP = f"{', '.join(GRAPHS)} (the default), torchvision:NAME, timm:NAME, or FILE.py:FUNCTION that returns a module"


@dataclass(frozen=True)
class Model:
    """name: for files and titles. shape: of one input. module: in plain torch, in eval mode."""

    name: str
    shape: tuple[int, ...]
    module: nn.Module

    @property
    def is_ours(self) -> bool:
        """Whether it has a graph of its own."""
        return self.name in GRAPHS

    def network(self, batch: int, dtype: str) -> Network:
        """Its layers; raises CaptureError."""
        if self.is_ours:
            return network(self.name, batch, self.shape[0], dtype)
        return capture(self.module.to(DTYPES[dtype]), (batch, *self.shape), dtype)


def load(text: str, shape: tuple[int, ...] | None, in_channels: int | None) -> Model:
    """The model of this name; shape: of one input, in_channels: for a network of ours. Raises AutotuneError."""
    if ":" not in text:
        if shape:
            raise AutotuneError(f"--input is for models that are captured: {text} has a size of its own")
        module = reference.build(text, in_channels or 3)
        size = int(module.input_size)  # type: ignore[arg-type]
        return Model(text, (in_channels or 3, size, size), module)
    if in_channels:
        raise AutotuneError(f"--in-channels is for {', '.join(GRAPHS)}: give --input C,H,W")
    place, _, name = text.rpartition(":")
    make = _function(Path(place), name) if place.endswith(".py") else _entry(place, name)
    module = make()
    if not isinstance(module, nn.Module):
        raise AutotuneError(f"{text} returned {type(module).__name__}, not a torch module")
    return Model(name, shape or IMAGE, module.eval())


def shape(text: str) -> tuple[int, ...]:
    """Read "3,224,224"."""
    sizes = tuple(int(part) for part in text.split(","))
    if min(sizes) < 1:
        raise ValueError
    return sizes


def _function(path: Path, name: str) -> Callable[[], Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise AutotuneError(f"there is no file '{path}'")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise UnknownNameError(f"'{path}' has no function '{name}'")
    function: Callable[[], Any] = getattr(module, name)
    return function


def _entry(package: str, name: str) -> Callable[[], Any]:
    packages = {"torchvision": "torchvision.models", "timm": "timm"}
    if package not in packages:
        raise UnknownNameError(f"unknown source of models '{package}': choose {', '.join(packages)} or FILE.py")
    try:
        models = importlib.import_module(packages[package])
    except ImportError as error:
        raise AutotuneError(f"{package} is not here: pip install {package} ({error})") from error
    if name not in models.list_models():
        raise UnknownNameError(f"{package} has no model '{name}': {packages[package]}.list_models() has their names")
    return lambda: models.get_model(name, weights=None) if package == "torchvision" else models.create_model(name)
