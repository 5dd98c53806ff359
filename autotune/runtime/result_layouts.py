"""Results in torch's order of axes: layers that convert what the layers of a network write channels last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from autotune.ir import BYTE_FORMATS, DTYPES, CallerTensor, Layer, Network, output_name
from autotune.ir.operators import ToChannelsLast


def is_convertible(result: CallerTensor) -> bool:
    """Return whether a layer can convert a result; one channel or one pixel has the same memory in both orders."""
    if len(result.shape) != 4 or result.dtype not in DTYPES or result.dtype in BYTE_FORMATS:
        return False
    _, k, p, q = result.shape
    return k > 1 and p * q > 1


def conversions(network: Network, positions: Collection[int]) -> list[Layer]:
    """Return a layer for each of some results that converts it to torch's order of axes.

    The conversion is a transposition, and so that of an image in torch's order whose channels are the result's pixels.

    Args:
        network: The network.
        positions: Positions of the results, which are convertible.
    """
    layers = []
    for i in sorted(positions):
        name, (n, k, p, q) = output_name(i), network.results[i].shape
        problem = ToChannelsLast(n=n, c=p * q, h=1, w=k, to=p * q, dtype=network.results[i].dtype)
        layers.append(Layer(f"{name} in torch's order", problem, {"x": f"{name}.channels_last", "y": name}))
    return layers


def with_conversions(layers: Sequence[Layer], converting: Sequence[Layer]) -> list[Layer]:
    """Return layers that write their results into the buffers that conversions read, and the conversions."""
    moved = {one.buffers["y"]: one.buffers["x"] for one in converting}
    renamed = [
        replace(layer, buffers={key: moved.get(name, name) for key, name in layer.buffers.items()}) for layer in layers
    ]
    return [*renamed, *converting]
