"""The structure of a module's results, with the place and memory format of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_structure, tree_unflatten

TENSOR = tree_structure(0)
"""The structure of a result that is a tensor itself."""


@dataclass(frozen=True)
class Leaf:
    """A value that a module returns.

    Attributes:
        kind: "result" for a tensor that the layers compute, "input" for an input that is returned as it is, "constant".
        value: The position among the network's results or inputs, or the constant.
    """

    kind: str
    value: Any


@dataclass(frozen=True)
class Result:
    """The structure of a module's results.

    Attributes:
        structure: The containers of the values, such as a tuple or a dictionary; TENSOR for none.
        leaves: The values, in the order of torch's pytree.
        channels_last: For each tensor that the layers compute, whether it is channels last in memory for contiguous
            inputs.
    """

    structure: TreeSpec = TENSOR
    leaves: tuple[Leaf, ...] = (Leaf("result", 0),)
    channels_last: tuple[bool, ...] = (False,)

    @property
    def is_tensor(self) -> bool:
        """True if forward returns the only tensor that the layers compute, and nothing around it."""
        return self.structure == TENSOR

    def is_like(self, other: Result) -> bool:
        """Return whether another result differs in memory formats at most."""
        return (self.structure, self.leaves) == (other.structure, other.leaves)

    def contain(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any:
        """Return what the module returns, for its inputs and the tensors that the layers computed."""
        if self.is_tensor:
            return results[0]
        values = []
        for leaf in self.leaves:
            tensors = results if leaf.kind == "result" else inputs
            values.append(leaf.value if leaf.kind == "constant" else tensors[leaf.value])
        return tree_unflatten(values, self.structure)
