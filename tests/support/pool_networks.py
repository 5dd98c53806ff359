"""A network of two average pools, one after the other, for kernels of faults.py."""

from __future__ import annotations

from faults import PROBLEM

from autotune.ir import INPUT, OUTPUT, CallerTensor, Layer, Network, NetworkKey, parse
from autotune.measure import LayerAssignment
from autotune.runtime import Candidate

SECOND = parse("avg_pool2d n=2 h=5 w=4 c=7 r=3 s=3 stride=1 pad=1 dtype=f32")
NETWORK = Network(
    NetworkKey("pools"),
    (
        Layer("first", PROBLEM, {"x": INPUT, "y": "between"}, {}),
        Layer("second", SECOND, {"x": "between", "y": OUTPUT}, {}),
    ),
    (CallerTensor((2, 7, 9, 7), "f32"),),
    (CallerTensor((2, 7, 5, 4), "f32"),),
)


def plan(first: Candidate, second: Candidate, overlap: bool = False) -> list[LayerAssignment]:
    """Return a plan of the network.

    Args:
        first: Runs the first pool.
        second: Runs the second pool.
        overlap: Whether the second kernel may start while the first one ends.
    """
    return [LayerAssignment("first", first), LayerAssignment("second", second, overlap)]
