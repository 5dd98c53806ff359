"""Results in torch's order of axes: layers that convert what the layers of a network write channels last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.ir import BYTE_FORMATS, DTYPES, Layer, Network, output_name
from autotune.ir.operators import ToChannelsLast


def has_two_orders(shape: Sequence[int]) -> bool:
    """Return whether a result differs in memory between torch's order of axes and channels last."""
    if len(shape) != 4:
        return False
    _, k, p, q = shape
    return k > 1 and p * q > 1


def conversions(network: Network, positions: Sequence[int]) -> dict[int, Layer]:
    """Return layers that convert some results to torch's order of axes, by the positions of the results.

    The conversion is a transposition, and so that of an image in torch's order whose channels are the result's pixels.
    Results that are integers have none.

    Args:
        network: The network.
        positions: Positions of the results, which have two orders.
    """
    layers = {}
    for i in positions:
        name, result = output_name(i), network.results[i]
        if result.dtype in DTYPES and result.dtype not in BYTE_FORMATS:
            n, k, p, q = result.shape
            problem = ToChannelsLast(n=n, c=p * q, h=1, w=k, to=p * q, dtype=result.dtype)
            layers[i] = Layer(f"{name} in torch's order", problem, {"x": f"{name}.channels_last", "y": name})
    return layers


def with_conversions(layers: Sequence[Layer], converting: Iterable[Layer]) -> list[Layer]:
    """Return layers that write their results into the buffers that conversions read, and the conversions."""
    converting = list(converting)
    moved = {one.buffers["y"]: one.buffers["x"] for one in converting}
    renamed = [
        replace(layer, buffers={key: moved.get(name, name) for key, name in layer.buffers.items()}) for layer in layers
    ]
    return [*renamed, *converting]
