"""Progress as lines and in the trace of a run: on a terminal the counts rewrite one line, elsewhere each line stays."""

import inspect
import io

import pytest
import trace_events

from autotune.core import timeline
from autotune.tuner import LineProgress, Progress, TracedProgress, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(stream, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "REWRITE_SECONDS", 0.0)
    with LineProgress("title", stream) as shown:
        shown.total(2)
        shown.stage("searching")
        shown.compiling(3)
        shown.compiled(3, 1)
        shown.measured("a", 5, 1.0)
        shown.done("a")
        shown.end("done")
    return stream.getvalue()


def test_a_log_gets_plain_lines(monkeypatch):
    lines = written(io.StringIO(), monkeypatch).splitlines()
    assert lines[0] == "title" and lines[-1].endswith("s  done")
    assert lines[-2].endswith("searching: 3 of 3 kernels compiled, 5 candidates tried, 1 of 2 problems tuned")
    assert not any("\r" in line for line in lines)


def test_a_terminal_gets_one_line_of_counts(monkeypatch):
    lines = written(Terminal(), monkeypatch).split("\n")
    assert [line.split("\r")[-1].split("  ")[-1] for line in lines] == ["title", "searching", "done", ""]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_counts_are_written_seldom(stream):
    kept = stream()
    with LineProgress("title", kept) as shown:
        for _ in range(1000):
            shown.compiling(1)
    assert kept.getvalue() == "title\n"


# -- in the trace ------------------------------------------------------------------------------------------------------

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
