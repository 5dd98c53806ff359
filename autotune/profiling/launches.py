"""The device side of a trace: what ran on a GPU, and the span of the host that launched it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.profiling.record import DEVICE
from autotune.profiling.spans import Span


@dataclass(frozen=True)
class Launched:
    """A kernel, a copy or a fill that a GPU ran from `start` to `end` (microseconds).

    Attributes:
        name: Its name.
        start: Its start.
        end: Its end.
        lane: Number of the GPU, and of its stream.
        launch: What launched it; None if the profiler did not record that.
        args: Values that the profiler recorded.
    """

    name: str
    start: float
    end: float
    lane: tuple[int, int]
    launch: Span | None
    args: Mapping[str, Any]


def launched(spans: Sequence[Span], events: Sequence[Mapping[str, Any]]) -> Iterator[Launched]:
    """Yield what ran on a GPU in the order of the starts, from the first kernel that a call launched on.

    Args:
        spans: The host side of the trace.
        events: The events of the trace.
    """
    launches = _by(spans, ("launch",), "correlation")
    others = _by(spans, ("module", "operator"), "External id")  # for launches that the profiler does not record
    calls = [span for span in spans if span.kind == "call"]
    begun = False
    ran = (event for event in events if event.get("ph") == "X" and event.get("cat") in DEVICE)
    for event in sorted(ran, key=lambda event: float(event["ts"])):
        args = event.get("args", {})
        launch = launches.get(args.get("correlation")) or others.get(args.get("External id"))
        in_call = any(call.start <= launch.start < call.end for call in calls) if launch else begun
        if not in_call:
            continue  # the kernel that delays the device until the host has queued all calls
        begun, start = True, float(event["ts"])
        lane = int(event["pid"]), int(event["tid"])
        yield Launched(event["name"], start, start + float(event["dur"]), lane, launch, args)


def _by(spans: Sequence[Span], kinds: Sequence[str], key: str) -> dict[Any, Span]:
    return {span.args[key]: span for span in spans if span.kind in kinds and key in span.args}
