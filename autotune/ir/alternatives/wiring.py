"""Which layers make and read the tensors of a network."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.ir.network import Layer, is_output


class Wiring:
    """The makers and readers of tensors.

    Args:
        layers: The layers of a network.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self._makers = {layer.buffers["y"]: layer for layer in layers}
        self._flow = [(dict.fromkeys(layer.reads), layer.writes) for layer in layers]
        self._readers: dict[str, list[Layer]] = {}
        for layer, (reads, _) in zip(layers, self._flow, strict=True):
            for buffer in reads:
                self._readers.setdefault(buffer, []).append(layer)

    def maker(self, buffer: str) -> Layer | None:
        """Return the layer whose result a buffer holds; None for inputs and tensors that a layer stores beside it."""
        return self._makers.get(buffer)

    def readers(self, buffer: str) -> list[Layer]:
        """Return the layers that read a buffer, in order."""
        return self._readers.get(buffer, [])

    def only_reader(self, maker: Layer) -> Layer | None:
        """Return the layer that alone reads another one's result, once; None if the network returns the result, too."""
        made = maker.buffers["y"]
        readers = self.readers(made)
        alone = len(readers) == 1 and not is_output(made) and readers[0].reads.count(made) == 1
        return readers[0] if alone else None

    def successor(self, maker: Layer) -> Layer | None:
        """Return the only reader of a layer's result, if it reads it as its input `x`, in the same shape."""
        reader = self.only_reader(maker)
        if reader is None or reader.buffers.get("x") != maker.buffers["y"]:
            return None
        (x,) = (operand for operand in reader.problem.operands() if operand.name == "x")
        return reader if x.shape == maker.problem.output_shape else None

    def computed_from(self, buffer: str) -> set[str]:
        """Return the buffers that are computed from one, directly or not; the layers are in an order of execution."""
        found: set[str] = set()
        for reads, writes in self._flow:
            if buffer in reads or not found.isdisjoint(reads):
                found.update(writes)
        return found


def common_name(layers: Sequence[Layer], last: str) -> str:
    """Return the path that the names of layers begin with, and another word: "layer1.0.block"."""
    paths = [layer.name.split(".")[:-1] for layer in layers]
    depth = next((i for i, words in enumerate(zip(*paths, strict=False)) if len({*words}) > 1), min(map(len, paths)))
    return ".".join([*paths[0][:depth], *([last] if last else [])]) or layers[-1].name
