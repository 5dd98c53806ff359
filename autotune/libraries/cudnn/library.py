"""The package nvidia-cudnn-frontend, the cuDNN that torch brings, and a handle for each device."""

from __future__ import annotations

import importlib
import logging
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from autotune.core import LibraryError

PACKAGE = "nvidia-cudnn-frontend==1.28.0"
"""What to install: the last version without large dependencies."""

OLDEST = 90000
"""The oldest cuDNN whose graphs are used here, as its version number counts: 9.0.0."""


@dataclass(frozen=True)
class CudnnLibrary:
    """The package, its handle for one device, and cuDNN's version. lock: held while the handle has a stream to keep."""

    cudnn: Any
    handle: Any
    version: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def source(self) -> str:
        """What a plan is made by; a plan is good for exactly that."""
        return f"cuDNN {self.version}, frontend {self.cudnn.__version__}"


@cache
def library(device: torch.device) -> CudnnLibrary:
    """Load the package and make a handle; raises LibraryError."""
    if device.type != "cuda":
        raise LibraryError("cuDNN's plans need an NVIDIA GPU")
    try:
        cudnn = importlib.import_module("cudnn")
        version, name = cudnn.backend_version(), cudnn.backend_version_string()
        logging.getLogger("cudnn").setLevel(logging.ERROR)  # what it warns of is in its errors
        if not hasattr(cudnn.pygraph, "get_engine_and_knobs_at_index"):
            raise LibraryError(f"the package cudnn is {cudnn.__version__}, too old: pip install {PACKAGE}")
        if version < OLDEST:
            raise LibraryError(f"cuDNN {name} is too old for its plans to be used here: 9.0 or newer is needed")
        with torch.cuda.device(device):
            return CudnnLibrary(cudnn, cudnn.create_handle(), name)
    except LibraryError:
        raise
    except ModuleNotFoundError as error:
        raise LibraryError(f"no cuDNN plans without its Python package: pip install {PACKAGE}") from error
    except Exception as error:  # it looks for libraries while it is imported, and asserts what it finds
        raise LibraryError(f"the package cudnn cannot be used: {first_line(error)}") from error


def versions(device: torch.device) -> dict[str, str]:
    """The versions of cuDNN and of its package; raises LibraryError where they cannot be used."""
    found = library(device)
    return {"cudnn": found.version, "frontend": found.cudnn.__version__}


def first_line(error: Exception) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
