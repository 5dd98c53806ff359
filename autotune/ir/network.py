"""A network as layers: the problems it consists of, and the tensors that flow between them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core import ProblemError
from autotune.ir.constant_expr import ConstantSource
from autotune.ir.problem import TENSOR_DTYPES, Problem, with_batch

INPUT, OUTPUT = "input", "output"
"""Names of the caller's first input and result among the buffers; the further ones are input1, output1 and so on."""


def input_name(index: int) -> str:
    """Return the name of the buffer of an input, by its position."""
    return f"{INPUT}{index or ''}"


def output_name(index: int) -> str:
    """Return the name of the buffer of a result, by its position."""
    return f"{OUTPUT}{index or ''}"


def is_input(buffer: str) -> bool:
    """Return whether a buffer is a tensor that the caller gives."""
    return re.fullmatch(rf"{INPUT}\d*", buffer) is not None


def is_output(buffer: str) -> bool:
    """Return whether a buffer is a result of the network."""
    return re.fullmatch(rf"{OUTPUT}\d*", buffer) is not None


@dataclass(frozen=True)
class CallerTensor:
    """An input or a result of a network.

    Attributes:
        shape: Its shape, in torch's order of axes.
        dtype: Name of its dtype, as in TENSOR_DTYPES.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape) * TENSOR_DTYPES[self.dtype].itemsize


WHOLE = "torch"
"""Name of the alternative that replaces all layers by one, which calls torch's operators."""


@dataclass(frozen=True)
class Layer:
    """One problem of a network, with its tensors.

    Attributes:
        name: Name of the layer, unique in its network.
        problem: The problem.
        buffers: Operand -> name of an activation.
        weights: Operand -> constant.
        scalars: Constants of one element: the operator's own scalars, then the epilogue's, in order.
    """

    name: str
    problem: Problem
    buffers: Mapping[str, str]
    weights: Mapping[str, ConstantSource] = field(default_factory=dict)
    scalars: tuple[ConstantSource, ...] = ()

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the names of the activations that it writes."""
        return tuple(self.buffers[operand.name] for operand in self.problem.operands() if operand.role == "output")

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the activations that it reads."""
        written = self.writes
        return tuple(name for name in self.buffers.values() if name not in written)


@dataclass(frozen=True)
class Alternative:
    """Other layers that compute the same as some layers of a network: fused, or written as another problem.

    Attributes:
        name: Name of the alternative, unique in its network.
        replaces: Names of the layers that are left out. The alternative's layers run at the position of the last one.
        layers: The layers that run instead.
    """

    name: str
    replaces: tuple[str, ...]
    layers: tuple[Layer, ...]


_PRECOMPILED = ("compiler", "none")
"""Property of the key of a plan for machines without a compiler."""


@dataclass(frozen=True)
class NetworkKey:
    """Identity of a network in the database; `str` gives its text, `parse` reads it.

    The text is "MODEL n=BATCH NAME=VALUE ... DIGEST", such as "ResNet n=32 input=3x224x224 dtype=f16 1ba3d518a22f".

    Attributes:
        model: Name of the model.
        batch: Batch size; None if the key has none.
        properties: Other pairs of name and value, such as ("dtype", "f16").
        digest: Digest of the layers of a captured network; empty for others.
    """

    model: str
    batch: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> NetworkKey:
        """Read a key from its text.

        Raises:
            ProblemError: The text does not have the form of a key.
        """
        model, *words = text.split()
        pairs = [(name, value) for name, equals, value in (word.partition("=") for word in words) if equals]
        digests = [word for word in words if "=" not in word]
        batch = int(pairs.pop(0)[1]) if pairs and pairs[0][0] == "n" and pairs[0][1].isdecimal() else None
        key = cls(model, batch, tuple(pairs), "".join(digests))
        if str(key) != text:
            raise ProblemError(f"'{text}' is not the key of a network: write it as 'MODEL n=BATCH NAME=VALUE DIGEST'")
        return key

    def __str__(self) -> str:
        batch = [f"n={self.batch}"] if self.batch is not None else []
        properties = (f"{name}={value}" for name, value in self.properties)
        return " ".join([self.model, *batch, *properties, *([self.digest] if self.digest else [])])

    def with_batch(self, n: int) -> NetworkKey:
        """Return the key with another batch size and the same digest."""
        return replace(self, batch=n)

    @property
    def precompiled(self) -> NetworkKey:
        """Return the key of the network's plan for machines without a compiler."""
        return replace(self, properties=(*self.properties, _PRECOMPILED))

    @property
    def is_precompiled(self) -> bool:
        """Return whether this is the key of such a plan."""
        return _PRECOMPILED in self.properties

    @property
    def base(self) -> NetworkKey:
        """Return the key of the network itself, which that of such a plan follows from."""
        return replace(self, properties=tuple(pair for pair in self.properties if pair != _PRECOMPILED))


@dataclass(frozen=True)
class Network:
    """A network for one batch size and dtype.

    Attributes:
        identity: Names the network in the database.
        layers: The layers without any alternative, in an order in which they can run.
        inputs: The tensors that the caller gives. Their buffers are called by `input_name`.
        results: The tensors that the layers compute for the caller. Their buffers are called by `output_name`.
        alternatives: Other ways to compute parts of it; those that replace no layer twice, and do not wait
            for each other, can be taken together.
        kept: In a quantized network, the convolutions and linear layers that are not quantized -> the reason.
        label: Name that the user gave the model, such as "resnet50", for reports; empty if there is none. Its identity
            has the name of the class, which many models share.
    """

    identity: NetworkKey
    layers: tuple[Layer, ...]
    inputs: tuple[CallerTensor, ...]
    results: tuple[CallerTensor, ...]
    alternatives: tuple[Alternative, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    label: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Return the text of its identity, as the database holds it."""
        return str(self.identity)

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """Return the layers and those of all alternatives."""
        return (*self.layers, *(layer for alternative in self.alternatives for layer in alternative.layers))

    @property
    def callers(self) -> tuple[str, ...]:
        """Return the names of the buffers of the caller's tensors: inputs, then results."""
        return (*map(input_name, range(len(self.inputs))), *map(output_name, range(len(self.results))))

    @property
    def whole(self) -> Alternative | None:
        """Return the alternative that calls torch's operators for the whole network; None without one."""
        return next((one for one in self.alternatives if one.name == WHOLE), None)

    @property
    def without_whole(self) -> Network:
        """Return the network without the alternative that replaces all layers."""
        return replace(self, alternatives=tuple(one for one in self.alternatives if one.name != WHOLE))

    @property
    def batch(self) -> int | None:
        """Return the batch size, or None if the key has none."""
        return self.identity.batch

    def with_batch(self, n: int) -> Network:
        """Return the same network for another batch size; its own must be known.

        It is without the alternative `whole`, because sizes in calls of torch's operators cannot be changed.
        """
        assert self.batch
        layers = _with_batch(self.layers, self.batch, n)
        identity = self.identity.with_batch(n)
        if identity.digest == digest(self.layers):
            identity = replace(identity, digest=digest(layers))
        alternatives = tuple(
            replace(one, layers=_with_batch(one.layers, self.batch, n)) for one in self.without_whole.alternatives
        )
        inputs, results = (
            tuple(_tensor_with_batch(tensor, self.batch, n) for tensor in tensors)
            for tensors in (self.inputs, self.results)
        )
        return replace(
            self, identity=identity, layers=layers, alternatives=alternatives, inputs=inputs, results=results
        )

    def layers_with(self, names: Sequence[str], order: Iterable[str] = ()) -> tuple[Layer, ...]:
        """Return the layers to run if some alternatives are taken.

        Args:
            names: Names of the alternatives.
            order: Names of layers in the order in which they are to run, as far as their inputs allow.

        Raises:
            ProblemError: Two of the alternatives replace the same layer, or wait for each other's results.
        """
        taken = [alternative for alternative in self.alternatives if alternative.name in names]
        replaced = [name for alternative in taken for name in alternative.replaces]
        if len(set(replaced)) < len(replaced):
            raise ProblemError(f"{self.key}: {' and '.join(names)} replace a layer twice: take only one of them")
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        instead_of_last = {max(one.replaces, key=position.__getitem__): one.layers for one in taken}
        kept: list[Layer] = []
        for layer in self.layers:
            kept += instead_of_last.get(layer.name, () if layer.name in replaced else (layer,))
        if (ordered := _in_order(kept, order)) is None:
            raise ProblemError(
                f"{self.key}: {' and '.join(names)} wait for each other's results: take only one of them"
            )
        return ordered

    def can_take(self, names: Sequence[str]) -> bool:
        """Return whether some alternatives, by their names, can be taken together."""
        try:
            self.layers_with(names)
        except ProblemError:
            return False
        return True


def digest(layers: Iterable[Layer]) -> str:
    """Return a digest of the layers and their wiring, whatever their weights."""
    return digest_of(f"{layer.name} {layer.problem} {sorted(layer.buffers.items())}" for layer in layers)


def digest_of(texts: Iterable[str]) -> str:
    """Return the digest of some texts, in their order, as the key of a network has it."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _with_batch(layers: Iterable[Layer], batch: int, n: int) -> tuple[Layer, ...]:
    """Return layers for batch size n instead of `batch`.

    A layer whose own batch is a multiple of the network's, such as a product with one row per pixel, grows in
    proportion; any other layer does not depend on the batch.
    """
    return tuple(
        replace(layer, problem=with_batch(layer.problem, layer.problem.batch // batch * n))
        if layer.problem.batch % batch == 0
        else layer
        for layer in layers
    )


def _tensor_with_batch(tensor: CallerTensor, batch: int, n: int) -> CallerTensor:
    """Return a tensor for batch size n; it grows by the rule of `_with_batch`."""
    if not tensor.shape or tensor.shape[0] % batch:
        return tensor
    return replace(tensor, shape=(tensor.shape[0] // batch * n, *tensor.shape[1:]))


def _in_order(layers: Sequence[Layer], order: Iterable[str]) -> tuple[Layer, ...] | None:
    """Return the layers in the given order, each after those that write its inputs; others keep their place.

    Fused layers may wait for each other: each reads what the other one writes. Then return None.
    """
    waiting = _sorted_by(layers, order)
    unwritten = {name for layer in layers for name in layer.writes}
    ordered: list[Layer] = []
    while waiting:
        ready = next((layer for layer in waiting if unwritten.isdisjoint(layer.reads)), None)
        if ready is None:
            return None
        waiting.remove(ready)
        unwritten.difference_update(ready.writes)
        ordered.append(ready)
    return tuple(ordered)


def _sorted_by(layers: Sequence[Layer], order: Iterable[str]) -> list[Layer]:
    """Return the layers sorted by their index in `order`; one that is not in it follows the layer before it."""
    index = {name: i for i, name in enumerate(order)}
    ranked: list[tuple[int, Layer]] = []
    rank = -1
    for layer in layers:
        rank = index.get(layer.name, rank)
        ranked.append((rank, layer))
    return [layer for _, layer in sorted(ranked, key=lambda pair: pair[0])]
