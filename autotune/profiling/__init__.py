"""What runs beneath each layer: recording a network's trace, and attributing every kernel in it to a module."""

from autotune.profiling.attribution import Profile
from autotune.profiling.record import KERNEL, MODULE, Subject
from autotune.profiling.summary import Library, Totals, as_json, side_by_side, totals
from autotune.profiling.tree import Node, matches, matching

__all__ = [
    "KERNEL",
    "MODULE",
    "Library",
    "Node",
    "Profile",
    "Subject",
    "Totals",
    "as_json",
    "matches",
    "matching",
    "side_by_side",
    "totals",
]
