"""Recordings: spans of several threads, slices timed elsewhere, a run that fails; deadlines, and durations as text."""

import math
import threading
import time

import pytest
import trace_events
from processes import in_threads

from autotune.core import NEVER, Deadline, seconds_of, timeline


def recorded(path):
    return trace_events.lanes(trace_events.read(path), "tune")


def test_without_a_recording_nothing_is_kept(tmp_path):
    with timeline.recording(None), timeline.span(timeline.Lane.SEARCH, "before") as told:
        told["us"] = 1.0
        timeline.count("trials", 1)
        timeline.switch(timeline.Lane.STAGES, "first")
        timeline.add(timeline.Lane.DEVICE, "trial", 1.0, 2.0)
    with timeline.recording(tmp_path / "trace.json"):
        pass
    assert recorded(tmp_path / "trace.json") == {}


def test_spans_nest_and_hold_what_the_body_adds(tmp_path):
    with (
        timeline.recording(tmp_path / "trace.json"),
        timeline.span(timeline.Lane.SEARCH, "outer", family="f") as told,
    ):
        with timeline.span(timeline.Lane.SEARCH, "first"), timeline.span(timeline.Lane.TUNER, "emit"):
            pass
        with timeline.span(timeline.Lane.SEARCH, "second"):
            pass
        told["us"] = 2.5
    found = recorded(tmp_path / "trace.json")
    assert [one["name"] for one in found["search"]] == ["outer", "first", "second"]
    assert found["search"][0]["args"] == {"family": "f", "us": 2.5}
    assert [one["name"] for one in trace_events.top(found["search"])] == ["outer"]
    assert [one["name"] for one in found["tuner"]] == ["emit"]


def test_spans_of_threads_that_overlap_are_in_rows_of_their_own(tmp_path):
    count = 4
    barrier = threading.Barrier(count)

    def work(number):
        with timeline.span(timeline.Lane.SEARCH, f"outer {number}"):
            barrier.wait()
            for step in range(100):
                with timeline.span(timeline.Lane.SEARCH, f"inner {number}", step=step):
                    timeline.count("steps", step)
            barrier.wait()

    with timeline.recording(tmp_path / "trace.json"):
        in_threads(work, [(number,) for number in range(count)])
    found = recorded(tmp_path / "trace.json")
    assert set(found) == {f"search {row}" for row in range(1, count + 1)}
    for slices in found.values():
        outer, *inner = slices
        assert len(inner) == 100 and {one["name"] for one in inner} == {outer["name"].replace("outer", "inner")}
        assert [one["args"]["step"] for one in inner] == list(range(100))
    events = trace_events.read(tmp_path / "trace.json")["traceEvents"]
    assert sum(event["ph"] == "C" and event["name"] == "steps" for event in events) == 100 * count


def test_a_switch_ends_the_slice_before_and_the_recording_the_last_one(tmp_path):
    since = time.monotonic()
    with timeline.recording(tmp_path / "trace.json"):
        timeline.switch(timeline.Lane.PHASES, "preparation", since - 5.0)
        timeline.switch(timeline.Lane.PHASES, "search", since, granted=7.0)
    first, second = recorded(tmp_path / "trace.json")["phases"]
    assert first["dur"] == pytest.approx(5e6, abs=1) and second["ts"] == pytest.approx(first["ts"] + first["dur"])
    assert (first["name"], second["name"], second["args"]) == ("preparation", "search", {"granted": 7.0})


def test_the_steps_of_a_slice_follow_each_other_and_end_with_it(tmp_path):
    with timeline.recording(tmp_path / "trace.json"):
        timeline.add(timeline.Lane.DEVICE, "trial", 1.0, 2.0, [("load", 0.25), ("verify", 0.5), ("time", 0.5)], us=3.0)
    whole, *steps = recorded(tmp_path / "trace.json")["device"]
    assert (whole["ts"], whole["dur"], whole["args"]) == (1e6, 1e6, {"us": 3.0})
    assert [(one["name"], one["ts"], one["dur"]) for one in steps] == [
        ("load", 1e6, 0.25e6),
        ("verify", 1.25e6, 0.5e6),
        ("time", 1.75e6, 0.25e6),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_ends_early_writes_its_trace(error, tmp_path):
    with pytest.raises(error), timeline.recording(tmp_path / "trace.json"):
        timeline.switch(timeline.Lane.STAGES, "searching")
        with timeline.span(timeline.Lane.SEARCH, "choose"):
            raise error
    found = recorded(tmp_path / "trace.json")
    assert found["search"][0]["args"] == {"ended by": error.__name__}
    assert found["stages"][0]["name"] == "searching"
    with timeline.span(timeline.Lane.SEARCH, "afterwards"):
        pass
    assert recorded(tmp_path / "trace.json") == found


def test_the_clock_of_files_is_translated(tmp_path):
    with timeline.recording(tmp_path / "trace.json"):
        first, second = (timeline.of_wall_clock(seconds) for seconds in (1e9, 1e9 + 2.5))
        assert second - first == 2.5


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_parts_share_what_is_left_so_unused_time_goes_to_later_parts(clock):
    run = Deadline(200.0, 100.0, clock)
    first = run.share(0.5)
    assert (first.left, first.seconds) == (50.0, 50.0)
    clock.now += 10  # the first part ends early
    assert run.share(0.5).left == 45.0
    clock.now += 70  # the next one ends late
    assert run.share(0.5).left == 10.0
    assert run.elapsed == 80.0 and not run.is_over


def test_a_part_ends_no_later_than_the_whole(clock):
    run = Deadline(110.0, 100.0, clock)
    assert run.within(5.0).end == 105.0 and run.within(50.0).end == 110.0
    assert run.before(4.0).left == 6.0
    clock.now = 120.0
    assert run.is_over and run.left == 0.0 and run.share(0.5).is_over


def test_no_deadline_has_parts_without_one():
    assert math.isinf(NEVER.left) and math.isinf(NEVER.share(0.1).left) and not NEVER.is_over
    assert NEVER.within(5.0).left <= 5.0


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("7", 7), (7, 7), (0.5, 0.5)])
def test_seconds_of_numbers_and_texts(given, seconds):
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", "-1s", "1d", "1 s", None])
def test_other_values_are_refused(given):
    with pytest.raises(ValueError, match="is not a time: write 90s, 5m or 1h"):
        seconds_of(given)
