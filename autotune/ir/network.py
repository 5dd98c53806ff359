"""A network as layers: the problems it consists of, and the tensors that flow between them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core import ProblemError
from autotune.ir.constant_expr import Source
from autotune.ir.problem import Problem, with_batch

INPUT, OUTPUT = "input", "output"
"""Names of the caller's tensors among the buffers."""


@dataclass(frozen=True)
class Layer:
    """One problem of a network.

    buffers: operand -> activation; weights: operand -> constant; scalars: constants, in the epilogue's order.
    """

    name: str
    problem: Problem
    buffers: Mapping[str, str]
    weights: Mapping[str, Source] = field(default_factory=dict)
    scalars: tuple[Source, ...] = ()

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the activations that it makes."""
        return tuple(self.buffers[operand.name] for operand in self.problem.operands() if operand.role == "output")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the activations that it needs."""
        written = self.writes
        return tuple(name for name in self.buffers.values() if name not in written)


@dataclass(frozen=True)
class Alternative:
    """Other layers that compute what some of a network's layers do: fused, or written as another problem.

    replaces: names of the layers whose place they take: that of the last of them, or before who reads what they make.
    """

    name: str
    replaces: tuple[str, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Network:
    """A network for one batch size and dtype; `key` names it in the database.

    layers: the plainest way to compute it. alternatives: ways to compute parts of it; any that replace no layer twice
    may be taken together. output_shape: of the result, in torch's order. kept: where others are in bytes, the
    convolutions and linear layers that are not, and why.
    """

    key: str
    layers: tuple[Layer, ...]
    output_shape: tuple[int, ...]
    alternatives: tuple[Alternative, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """The layers, and those of all alternatives."""
        return (*self.layers, *(layer for alternative in self.alternatives for layer in alternative.layers))

    @property
    def batch(self) -> int | None:
        """The batch size, where the key tells it."""
        return batch_of(self.key)

    def at(self, n: int) -> Network:
        """The same network for another batch size, with its key. The key tells the present one."""
        assert self.batch
        layers = _at(n, self.layers, self.batch)
        key = self.key.replace(f" n={self.batch} ", f" n={n} ", 1).replace(digest(self.layers), digest(layers))
        alternatives = tuple(replace(one, layers=_at(n, one.layers, self.batch)) for one in self.alternatives)
        return replace(
            self, key=key, layers=layers, alternatives=alternatives, output_shape=(n, *self.output_shape[1:])
        )

    def layers_with(self, names: Sequence[str], order: Iterable[str] = ()) -> tuple[Layer, ...]:
        """The layers with the alternatives of these names taken; raises ProblemError if they replace a layer twice.

        order: names of layers in the order to keep to where they do not wait for each other.
        """
        taken = [alternative for alternative in self.alternatives if alternative.name in names]
        gone = [name for alternative in taken for name in alternative.replaces]
        if len(set(gone)) < len(gone):
            raise ProblemError(f"{self.key}: {' and '.join(names)} replace a layer twice")
        plain = [layer.name for layer in self.layers]
        last = {max(one.replaces, key=plain.index): one.layers for one in taken}
        kept: list[Layer] = []
        for layer in self.layers:
            kept += last.get(layer.name, () if layer.name in gone else (layer,))
        return _in_order(kept, order)


def batch_of(key: str) -> int | None:
    """The batch size that a network's key tells."""
    found = re.search(r" n=(\d+) ", key)
    return int(found[1]) if found else None


def digest(layers: Iterable[Layer]) -> str:
    """Tells networks apart by their layers and wiring, whatever their weights: part of the keys of captured ones."""
    texts = [f"{layer.name} {layer.problem} {sorted(layer.buffers.items())}" for layer in layers]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _at(n: int, layers: Iterable[Layer], batch: int) -> tuple[Layer, ...]:
    """Layers for another batch size: those that have so many rows, or as many each, of every image."""
    return tuple(
        replace(layer, problem=with_batch(layer.problem, layer.problem.batch // batch * n))
        if layer.problem.batch % batch == 0
        else layer
        for layer in layers
    )


def _in_order(layers: Sequence[Layer], order: Iterable[str]) -> tuple[Layer, ...]:
    """The layers, each behind those that make what it reads: as near `order` as that allows, else as they are."""
    places, place = {name: i for i, name in enumerate(order)}, -1
    keys = [place := places.get(layer.name, place) for layer in layers]  # others stay behind who is before them
    waiting = [layer for _, layer in sorted(zip(keys, layers, strict=True), key=lambda pair: pair[0])]
    unmade = {name for layer in layers for name in layer.writes}
    ordered: list[Layer] = []
    while waiting:
        following = next(layer for layer in waiting if unmade.isdisjoint(layer.reads))
        waiting.remove(following)
        unmade.difference_update(following.writes)
        ordered.append(following)
    return tuple(ordered)
