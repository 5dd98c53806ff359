"""Reads and checks traces in Chrome's trace event format, independently of the code that writes them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROUNDING_US = 1e-3
"""A time is a multiple of a nanosecond."""


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file, compressed or not."""
    data = path.read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_constant=_none)
    return content


def _none(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def lanes(trace: Mapping[str, Any], category: str) -> dict[str, list[dict[str, Any]]]:
    """Return the slices of a category by the names of their threads, and check all that the format demands of them.

    Slices of a thread must be disjoint or nested, and every thread and process must have a name.
    """
    events = trace["traceEvents"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]
    }
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event.get("cat") == category:
            assert isinstance(event["name"], str) and event["name"]
            assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["args"], dict)
            assert ("process_name", event["pid"], 0) in names
            found[event["pid"], event["tid"]].append(event)
    for slices in found.values():
        assert_nested(slices)
    by_name = {names["thread_name", *thread]: slices for thread, slices in found.items()}
    assert len(by_name) == len(found), "each lane has a name of its own"
    return by_name


def assert_nested(slices: Iterable[Mapping[str, Any]]) -> None:
    """Check that slices of a thread, in the order of the file, are disjoint or within the one around them."""
    open_ends: list[float] = []
    last = 0.0
    for one in slices:
        start, end = one["ts"], one["ts"] + one["dur"]
        assert start >= last - ROUNDING_US, "the order of the file is that of the starts"
        while open_ends and open_ends[-1] <= start + ROUNDING_US:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + ROUNDING_US, f"{one['name']} overlaps the slice before"
        open_ends.append(end)
        last = start


def top(slices: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the slices of a thread that are within no other one."""
    found: list[Mapping[str, Any]] = []
    for one in slices:
        if not found or one["ts"] + ROUNDING_US >= found[-1]["ts"] + found[-1]["dur"]:
            found.append(one)
    return found


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two slices share a time."""
    return bool(one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"])
