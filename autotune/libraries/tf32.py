"""Torch's global setting of TF32, for the problems and devices that depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from autotune.ir import Problem

_DEPENDENT = ("f32", "tf32")
"""Dtypes of problems whose float32 factors cuDNN may round to TF32."""


def is_dependent(problem: Problem, device: torch.device) -> bool:
    """Return whether cuDNN computes a problem by the setting."""
    return device.type == "cuda" and problem.dtype in _DEPENDENT


def cudnn_setting(problem: Problem, device: torch.device) -> AbstractContextManager[None]:
    """Let cuDNN round the factors of a problem to TF32 only if the problem says so.

    The setting is that of the process, so other problems leave it alone.
    """
    if not is_dependent(problem, device):
        return nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(True, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=problem.dtype == "tf32")


@contextmanager
def full_float32() -> Iterator[None]:
    """Let torch multiply float32 exactly as float32, also where its settings allow TF32."""
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, False
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        products.allow_tf32 = before
