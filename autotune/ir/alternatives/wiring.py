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
        self._readers: dict[str, list[Layer]] = {}
        for layer in layers:
            for buffer in dict.fromkeys(layer.reads):
                self._readers.setdefault(buffer, []).append(layer)

    def maker(self, buffer: str) -> Layer | None:
        """Return the layer whose result a buffer holds; None for inputs and tensors that a layer stores beside it."""
        return self._makers.get(buffer)

    def readers(self, buffer: str) -> list[Layer]:
        """Return the layers that read a buffer, in order."""
        return self._readers.get(buffer, [])

    def is_between(self, maker: Layer, reader: Layer) -> bool:
        """Return whether one layer alone reads another one's result, and the network does not return it."""
        made = maker.buffers["y"]
        return not is_output(made) and [reader] == self.readers(made) and [*reader.reads].count(made) == 1


def common_name(layers: Sequence[Layer], last: str) -> str:
    """Return the path that the names of layers begin with, and another word: "layer1.0.block"."""
    paths = [layer.name.split(".")[:-1] for layer in layers]
    depth = next((i for i, words in enumerate(zip(*paths, strict=False)) if len({*words}) > 1), min(map(len, paths)))
    return ".".join([*paths[0][:depth], *([last] if last else [])]) or layers[-1].name
