"""The tensors of a module by name."""

from __future__ import annotations

import torch
from torch import nn


def module_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return all tensors of a module by name, including the buffers that its state_dict leaves out."""
    return {**dict(module.named_buffers(remove_duplicate=False)), **module.state_dict()}
