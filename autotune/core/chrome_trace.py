"""Traces in Chrome's trace event format, which Perfetto and chrome://tracing show.

A process of the format is a group of lanes, and a thread is one row of a lane. Slices of one row must be disjoint or
nested. So slices of a lane that overlap are distributed over several rows.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    """Something that lasted from `start` to `end`.

    Attributes:
        name: Its name.
        start: Its start, in microseconds of any clock that all slices of a trace share.
        end: Its end.
        args: Values that are shown when it is selected.
        parts: Slices within it, which are disjoint.
    """

    name: str
    start: float
    end: float
    args: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[Slice] = ()


def rows(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distribute slices over as few rows as possible, so that those of one row are disjoint.

    Each slice takes the first row that is free at its start. No distribution needs fewer rows, because a new row is
    begun only when slices of all other rows overlap.
    """
    found: list[list[Slice]] = []
    for one in sorted(slices, key=lambda one: (one.start, one.end)):
        free = next((row for row in found if row[-1].end <= one.start), None)
        if free is None:
            found.append(free := [])
        free.append(one)
    return found


def group_events(
    pid: int, name: str, lanes: Mapping[str, Iterable[Slice]], category: str, place: int = 0
) -> list[Event]:
    """Return the events of a group of lanes.

    Args:
        pid: The group's number, unique in the trace.
        name: The group's name.
        lanes: The slices of each lane by its name, in the order in which they are shown. The rows of a lane that needs
            several are numbered.
        category: Category of the events.
        place: Groups are shown in ascending order of their places.
    """
    events = [*_metadata("process", pid, 0, name, place)]
    tid = 0
    for lane, slices in lanes.items():
        parts = rows(slices)
        for number, row in enumerate(parts, 1):
            tid += 1
            events += _metadata("thread", pid, tid, lane if len(parts) == 1 else f"{lane} {number}", tid)
            events += [event for one in row for event in _slice_events(one, pid, tid, category)]
    return events


def counter_event(pid: int, name: str, time: float, value: float) -> Event:
    """Return the event of a counter that has a value from a time in microseconds on."""
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": round(time, 3), "args": {"value": value}}


def save(trace: Mapping[str, Any], path: Path) -> None:
    """Write a trace; it is compressed if the file's name ends in .gz."""
    data = json.dumps(trace, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def load(path: Path) -> dict[str, Any]:
    """Return a trace that `save` or torch's profiler wrote."""
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return trace


def _metadata(kind: str, pid: int, tid: int, name: str, place: int) -> list[Event]:
    """Return the events that name a process or a thread and give its place."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{kind}_name", "args": {"name": name}},
        {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _slice_events(one: Slice, pid: int, tid: int, category: str) -> list[Event]:
    """Return the events of a slice and its parts. Times are whole nanoseconds, so that rounding makes no overlap."""
    start, end = round(one.start * 1e3), round(one.end * 1e3)
    event = {"ph": "X", "cat": category, "name": one.name, "pid": pid, "tid": tid}
    event |= {"ts": start / 1e3, "dur": (end - start) / 1e3, "args": dict(one.args)}
    return [event, *(inner for part in one.parts for inner in _slice_events(part, pid, tid, category))]
