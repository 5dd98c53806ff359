"""Structure and memory format of a module's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_structure, tree_unflatten

TENSOR = tree_structure(0)
"""The structure of a result that is a tensor itself."""


@dataclass(frozen=True)
class Result:
    """The structure and memory format of a module's result.

    Attributes:
        structure: The container of the tensor, such as a tuple or a dictionary with one entry; TENSOR for none.
        channels_last: Whether the tensor is channels last in memory for a contiguous input.
    """

    structure: TreeSpec = TENSOR
    channels_last: bool = False

    @property
    def is_tensor(self) -> bool:
        """True if forward returns the tensor itself."""
        return self.structure == TENSOR

    def contain(self, tensor: torch.Tensor) -> Any:
        """Return the result with this tensor in it."""
        return tensor if self.is_tensor else tree_unflatten([tensor], self.structure)
