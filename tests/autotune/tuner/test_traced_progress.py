"""Events of a run that are passed on, and what the trace has of them."""

import inspect

import trace_events

from autotune.core import timeline
from autotune.tuner import Progress, TracedProgress

EVENTS = {
    "stage": ("searching",),
    "note": ("nothing is compiled",),
    "total": (2,),
    "compiling": (5,),
    "compiled": (4, 1),
    "measured": ("gemm", 3, 2.5),
    "operator_timed": ("gemm", 4.5),
    "done": ("gemm",),
}


class Log(Progress):
    """Keeps every event with its arguments."""

    def __init__(self):
        self.events = []
        for name in EVENTS:
            setattr(self, name, lambda *words, name=name: self.events.append((name, words)))


def test_every_event_is_passed_on():
    events = [name for name, _ in inspect.getmembers(Progress, inspect.isfunction) if not name.startswith("_")]
    assert sorted(events) == sorted(EVENTS), "an event without an example"
    log = Log()
    traced = TracedProgress(log)
    for name, words in EVENTS.items():
        getattr(traced, name)(*words)
    assert log.events == list(EVENTS.items())


def test_stages_are_slices_and_results_are_counters(tmp_path):
    traced = TracedProgress(Progress())
    with timeline.recording(tmp_path / "trace.json"):
        traced.stage("first")
        traced.measured("a", 1, None)
        traced.measured("b", 2, 7.0)
        traced.stage("second")
        traced.measured("b", 1, 7.0)
        traced.measured("b", 1, 6.0)
    trace = trace_events.read(tmp_path / "trace.json")
    assert [one["name"] for one in trace_events.lanes(trace, "tune")["stages"]] == ["first", "second"]
    counted = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counted.setdefault(event["name"], []).append(event["args"]["value"])
    assert counted == {"candidates tried": [1, 3, 4, 5], "us of b": [7.0, 6.0]}
