"""The structure of a module's results, with the place and memory format of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_structure, tree_unflatten

Shapes = Sequence[tuple[int, ...]]
"""The shapes of the inputs of a call."""

TENSOR = tree_structure(0)
"""The structure of a result that is a tensor itself."""


@dataclass(frozen=True)
class Leaf:
    """A value that a module returns.

    Attributes:
        kind: "result" for a tensor that the layers compute, "input" for an input that is returned as it is, "size" for
            a size of an input, "constant".
        value: The position among the network's results or inputs; the position of the input and the dimension; or the
            constant.
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
        is_tensor: True if forward returns the only tensor that the layers compute, and nothing around it. It is an
            attribute, because Dynamo of torch 2.6 takes any two structures for equal.
    """

    structure: TreeSpec = TENSOR
    leaves: tuple[Leaf, ...] = (Leaf("result", 0),)
    channels_last: tuple[bool, ...] = (False,)
    is_tensor: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_tensor", self.structure == TENSOR)

    def __str__(self) -> str:
        words = {"result": "a tensor", "input": "an input", "size": "a size"}
        values = [_Word(words.get(leaf.kind, repr(leaf.value))) for leaf in self.leaves]
        return str(tree_unflatten(values, self.structure))

    def contain(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any:
        """Return what the module returns, for its inputs and the tensors that the layers computed."""
        if self.is_tensor:
            return results[0]
        values = []
        for leaf in self.leaves:
            if leaf.kind == "constant":
                values.append(leaf.value)
            elif leaf.kind == "size":
                place, dimension = leaf.value
                values.append(inputs[place].shape[dimension])
            else:
                values.append((results if leaf.kind == "result" else inputs)[leaf.value])
        return tree_unflatten(values, self.structure)


def joint(found: Sequence[tuple[Shapes, Result]]) -> Result | None:
    """Return what a module returns for inputs of several shapes; None if that differs by more than memory formats.

    A whole number that differs must be a size of an input. The memory formats are those of the last one.

    Args:
        found: The shapes of the inputs, and what the module returns for them.
    """
    (_, first), *others = found
    if any((one.structure, len(one.leaves)) != (first.structure, len(first.leaves)) for _, one in others):
        return None
    leaves = []
    for place, leaf in enumerate(first.leaves):
        given = [(shapes, one.leaves[place]) for shapes, one in found]
        same = all(other == leaf for _, other in given)
        sizes = [] if same or any(other.kind != "constant" for _, other in given) else _sizes(given)
        if not (same or sizes):
            return None
        leaves.append(leaf if same else Leaf("size", sizes[0]))
    return replace(found[-1][1], leaves=tuple(leaves))


def _sizes(given: Sequence[tuple[Shapes, Leaf]]) -> list[tuple[int, int]]:
    """Return the inputs and dimensions whose sizes are the numbers that were returned for these shapes."""
    first, _ = given[0]
    places = [(place, dimension) for place, shape in enumerate(first) for dimension in range(len(shape))]
    return [
        (place, dimension)
        for place, dimension in places
        if all(
            type(leaf.value) is int and tuple(shapes[place][dimension : dimension + 1]) == (leaf.value,)
            for shapes, leaf in given
        )
    ]


class _Word(str):
    """A text that containers print without quotes."""

    __slots__ = ()
    __repr__ = str.__str__
