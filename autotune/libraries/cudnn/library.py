"""The package nvidia-cudnn-frontend, the cuDNN that torch loads, and a handle for each device."""

from __future__ import annotations

import importlib
import logging
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from autotune.core import LibraryError, first_line

PACKAGE = "nvidia-cudnn-frontend==1.28.0"
"""The requirement to install: the last version without large dependencies."""

OLDEST = 90000
"""Version number of the oldest cuDNN whose graphs are used: 9.0.0."""

ERROR_TEXTS = {"deselected by a note": ("Deselecting execution plan", "nvidia-cudnn-frontend 1.28.0")}
"""Errors that can only be told apart by their text: name -> (a part of the text, the version in which it was seen)."""


@dataclass(frozen=True)
class CudnnLibrary:
    """The package and its handle for one device.

    Attributes:
        cudnn: The Python package.
        handle: The handle.
        version: Version of cuDNN.
        lock: Held from setting the handle's stream until a plan has been launched on it.
    """

    cudnn: Any
    handle: Any
    version: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def source(self) -> str:
        """The versions of cuDNN and of the package; a stored plan is valid for exactly these."""
        return f"cuDNN {self.version}, frontend {self.cudnn.__version__}"


@cache
def library(device: torch.device) -> CudnnLibrary:
    """Load the package and create a handle for a GPU.

    Raises:
        LibraryError: There is no GPU, or the package or cuDNN is missing or too old.
    """
    if device.type != "cuda":
        raise LibraryError(f"cuDNN's plans need an NVIDIA GPU, and the device is {device}")
    try:
        cudnn = importlib.import_module("cudnn")
        version, name = cudnn.backend_version(), cudnn.backend_version_string()
        logging.getLogger("cudnn").setLevel(logging.ERROR)  # its warnings repeat its errors
        if not hasattr(cudnn.pygraph, "get_engine_and_knobs_at_index"):
            raise LibraryError(f"the package cudnn {cudnn.__version__} is too old: pip install {PACKAGE}")
        if version < OLDEST:
            raise LibraryError(f"cuDNN {name} is too old: its plans need 9.0 or newer, so install a newer torch")
        with torch.cuda.device(device):
            return CudnnLibrary(cudnn, cudnn.create_handle(), name)
    except LibraryError:
        raise
    except ModuleNotFoundError as error:
        raise LibraryError(f"cuDNN's plans need its Python package: pip install {PACKAGE}") from error
    except Exception as error:  # the package looks for libraries while it is imported, and asserts that it finds them
        raise LibraryError(f"the package cudnn cannot be used: {first_line(error)}") from error


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions of cuDNN and of its package; raises LibraryError if they cannot be used."""
    found = library(device)
    return {"cudnn": found.version, "frontend": found.cudnn.__version__}


def is_error(error: Exception, name: str) -> bool:
    """Return whether an error is the one of a name in ERROR_TEXTS."""
    return ERROR_TEXTS[name][0] in str(error)
