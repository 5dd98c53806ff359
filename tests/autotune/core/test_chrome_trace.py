"""Rows of overlapping slices, and what is written of them."""

import random
from itertools import pairwise

import pytest
import trace_events

from autotune.core import chrome_trace
from autotune.core.chrome_trace import Slice


def at_once(slices):
    """The most slices that share a time, by looking at each start."""
    return max((sum(one.start <= at.start < one.end for one in slices) for at in slices), default=0)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_disjoint_and_no_more_than_needed(seed):
    draw = random.Random(seed)
    slices = [Slice(str(i), start := draw.randrange(50), start + draw.randrange(1, 20)) for i in range(30)]
    rows = chrome_trace.rows(slices)
    assert sorted((one.name for row in rows for one in row), key=int) == [one.name for one in slices]
    for row in rows:
        assert all(before.end <= after.start for before, after in pairwise(row))
    assert len(rows) == at_once(slices)


def test_slices_that_touch_share_a_row_and_those_without_length_get_one():
    assert len(chrome_trace.rows([Slice("a", 0, 1), Slice("b", 1, 1), Slice("c", 1, 2)])) == 1
    assert chrome_trace.rows([]) == []


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_holds_every_slice_in_lanes_with_names(name, tmp_path):
    inner = Slice("inner", 1.25, 2.5, {"us": 3})
    lanes = {"one": [Slice("outer", 1.0, 4.0, {}, (inner,))], "two": [Slice("a", 0, 2), Slice("b", 1, 3)], "none": []}
    events = chrome_trace.group_events(7, "group", lanes, "test", place=2)
    chrome_trace.save({"traceEvents": events}, path := tmp_path / "new" / name)
    trace = trace_events.read(path)
    assert chrome_trace.load(path) == trace
    found = trace_events.lanes(trace, "test")
    assert {lane: [one["name"] for one in slices] for lane, slices in found.items()} == {
        "one": ["outer", "inner"],
        "two 1": ["a"],
        "two 2": ["b"],
    }
    assert (found["one"][1]["ts"], found["one"][1]["dur"], found["one"][1]["args"]) == (1.25, 1.25, {"us": 3})
    sorts = {(e["name"], e["tid"]): e["args"]["sort_index"] for e in events if e["name"].endswith("sort_index")}
    assert sorts == {("process_sort_index", 0): 2, **{("thread_sort_index", tid): tid for tid in (1, 2, 3)}}
