"""From records and a database to launches. Needs no compiler and no Jinja."""

from autotune.runtime.binding import Candidate, Step, bind
from autotune.runtime.candidate_loader import candidate
from autotune.runtime.executor import ACCESS, Frame, close, count
from autotune.runtime.network_plan import BoundLayer, Plan, bind_layer, capture, make_buffers, make_graph, make_runs
from autotune.runtime.selection import Choice, batches, plan_of_another, shortlist

__all__ = [
    "ACCESS",
    "BoundLayer",
    "Candidate",
    "Choice",
    "Frame",
    "Plan",
    "Step",
    "batches",
    "bind",
    "bind_layer",
    "candidate",
    "capture",
    "close",
    "count",
    "make_buffers",
    "make_graph",
    "make_runs",
    "plan_of_another",
    "shortlist",
]
