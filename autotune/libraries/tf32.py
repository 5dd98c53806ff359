"""Torch's global setting of TF32, for the problems and devices that depend on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

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
