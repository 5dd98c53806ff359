"""Lists, times and chooses cuDNN's algorithms for layers of torch models."""

from autotune.cudnn_algorithms.benchmark import KINDS
from autotune.cudnn_algorithms.selection import DIRECTIONS, ORDERS, Algorithm, ordered, pareto

__all__ = ["DIRECTIONS", "KINDS", "ORDERS", "Algorithm", "ordered", "pareto", "size"]
