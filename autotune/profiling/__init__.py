"""Profiles of networks: records a trace and attributes every kernel in it to the module that launched it."""

from autotune.profiling.attribution import Profile
from autotune.profiling.lanes import with_lanes
from autotune.profiling.record import KERNEL, MODULE, Subject
from autotune.profiling.summary import LibraryTotals, Totals, as_json, side_by_side, totals
from autotune.profiling.tree import Node, match_modules, match_paths

__all__ = [
    "KERNEL",
    "MODULE",
    "LibraryTotals",
    "Node",
    "Profile",
    "Subject",
    "Totals",
    "as_json",
    "match_modules",
    "match_paths",
    "side_by_side",
    "totals",
    "with_lanes",
]
