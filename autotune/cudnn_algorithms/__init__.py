"""Lists, times and selects cuDNN's algorithms for the convolutions of torch models."""

from autotune.cudnn_algorithms.benchmark import KINDS
from autotune.cudnn_algorithms.selection import DIRECTIONS, ORDERS, Algorithm, ordered, pareto, select_algorithm
from autotune.cudnn_algorithms.torch_layers import Conv2d, Requirements, use, wrap

__all__ = [
    "DIRECTIONS",
    "KINDS",
    "ORDERS",
    "Algorithm",
    "Conv2d",
    "Requirements",
    "ordered",
    "pareto",
    "select_algorithm",
    "use",
    "wrap",
]
