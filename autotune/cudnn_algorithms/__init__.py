"""Lists, times and selects cuDNN's algorithms for the convolutions of torch models."""

from autotune.cudnn_algorithms.benchmark import KINDS
from autotune.cudnn_algorithms.selection import DIRECTIONS, ORDERS, Algorithm, ordered, pareto, select_algorithm

__all__ = ["DIRECTIONS", "KINDS", "ORDERS", "Algorithm", "ordered", "pareto", "select_algorithm"]
