"""The time of a run: its deadlines, durations as text, and traces that show what runs and when.

A run has one deadline, which is made when its command starts. A part gets an earlier deadline, which is computed from
the time that is left when the part begins. So the time that a part leaves unused goes to the parts after it, and a part
that overruns shortens all later parts by the same share.

A trace is for Perfetto. The code that does something encloses it in `span`, or reports with `add` what another process
has timed. Without `recording` nothing is kept, and a span takes about a microsecond. The recorder belongs to the
process, as that of torch's profiler does: a recorder that is handed down would be an argument of all parts of the
tuner, of which most runs need none. Its times are seconds of time.monotonic(), which is one clock for all processes of
a machine. A profiler such as Nsight Systems shows the ranges of `nvtx_range`.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from autotune.core import chrome_trace
from autotune.core.chrome_trace import Event, Slice


@dataclass(frozen=True)
class Deadline:
    """A time at which something must have ended.

    Attributes:
        end: Time of `clock` in seconds; infinite for no deadline.
        start: Time of `clock` from which durations count.
        clock: The clock.
    """

    end: float = math.inf
    start: float = 0.0
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, start: float | None = None) -> Deadline:
        """Return the deadline of a run.

        Args:
            seconds: Duration of the run.
            start: The time.monotonic() at which the run started; None for now.
        """
        start = time.monotonic() if start is None else start
        return cls(start + seconds, start)

    @property
    def left(self) -> float:
        """Return the seconds that are left; 0 after the end."""
        return max(0.0, self.end - self.clock())

    @property
    def is_over(self) -> bool:
        """Return whether no time is left."""
        return self.left <= 0.0

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.clock() - self.start

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the end."""
        return self.end - self.start

    def share(self, share: float) -> Deadline:
        """Return the deadline of a part that begins now and may take a share of the time that is left."""
        return self.within(share * self.left)

    def within(self, seconds: float) -> Deadline:
        """Return the deadline of a part that begins now and may take some seconds, but no longer than this deadline."""
        now = self.clock()
        return Deadline(min(self.end, now + seconds), now, self.clock)

    def before(self, seconds: float) -> Deadline:
        """Return a deadline that ends some seconds earlier, with the same start."""
        return Deadline(self.end - seconds, self.start, self.clock)


NEVER = Deadline()
"""No deadline."""


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a number, or of a text such as "90s", "5m", "1h" or "90".

    Raises:
        ValueError: It is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(duration))
    if not found:
        raise ValueError(f"'{duration}' is not a time: write 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


_CATEGORY = "tune"
_RUN, _COUNTERS = 1, 2
"""Groups of the trace: the lanes, and the counters."""


class Lane(StrEnum):
    """The lanes of a trace, in the order in which they are shown."""

    PHASES = "phases"
    STAGES = "stages"
    SEARCH = "search"
    TUNER = "tuner"
    COMPILER = "compiler"
    DEVICE = "device"
    INDUCTOR = "Inductor"
    LISTING = "cuDNN plans"


class _Recorder:
    """The slices and counters of one run. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wall_clock = time.time() - time.monotonic()
        self._slices: dict[Lane, list[Slice]] = {lane: [] for lane in Lane}
        self._counts: list[Event] = []
        self._current: dict[Lane, tuple[str, float, dict[str, Any]]] = {}
        self._inner: dict[tuple[int, Lane], list[Slice]] = {}  # parts of the span that a thread has open in a lane

    def add(self, lane: Lane, one: Slice) -> None:
        with self._lock:
            self._slices[lane].append(one)

    def switch(self, lane: Lane, name: str, since: float, args: dict[str, Any]) -> None:
        with self._lock:
            self._end_current(lane, since)
            self._current[lane] = name, since, args

    def count(self, name: str, value: float) -> None:
        with self._lock:
            self._counts.append(chrome_trace.counter_event(_COUNTERS, name, time.monotonic() * 1e6, value))

    @contextmanager
    def span(self, lane: Lane, name: str, args: dict[str, Any]) -> Iterator[dict[str, Any]]:
        key, start = (threading.get_ident(), lane), time.monotonic()
        outer = self._inner.get(key)
        parts = self._inner[key] = []
        try:
            yield args
        except BaseException as error:
            args["ended by"] = type(error).__name__
            raise
        finally:
            whole = _slice(name, start, time.monotonic(), args, parts)
            if outer is None:
                del self._inner[key]
                self.add(lane, whole)
            else:
                self._inner[key] = outer
                outer.append(whole)

    def trace(self) -> dict[str, Any]:
        """Return everything up to now as a trace."""
        with self._lock:
            for lane in list(self._current):
                self._end_current(lane, time.monotonic())
            lanes = {str(lane): slices for lane, slices in self._slices.items() if slices}
            events = chrome_trace.group_events(_RUN, "autotune tune", lanes, _CATEGORY)
            events += chrome_trace.group_events(_COUNTERS, "counters", {}, _CATEGORY, place=1)
            return {"traceEvents": [*events, *self._counts], "displayTimeUnit": "ms"}

    def _end_current(self, lane: Lane, end: float) -> None:
        if lane in self._current:
            name, start, args = self._current.pop(lane)
            self._slices[lane].append(_slice(name, start, end, args))


_recorder: _Recorder | None = None


@contextmanager
def recording(path: Path | None) -> Iterator[None]:
    """Record, and write the trace at the exit, also if the run fails or is interrupted.

    Args:
        path: The file, which is compressed if its name ends in .gz; None records nothing.
    """
    global _recorder  # noqa: PLW0603 -- see the module's docstring
    if path is None:
        yield
        return
    before, recorder = _recorder, _Recorder()
    _recorder = recorder
    try:
        yield
    finally:
        _recorder = before
        chrome_trace.save(recorder.trace(), path)


def is_recording() -> bool:
    """Return whether something is kept: else values that take time to compute are not needed."""
    return _recorder is not None


@contextmanager
def span(lane: Lane, name: str, **args: Any) -> Iterator[dict[str, Any]]:
    """Record the body as a slice. Spans of one thread and lane may be nested.

    Args:
        lane: The lane.
        name: Name of the slice.
        **args: Values that JSON can hold.

    Yields:
        The values; the body may add results.
    """
    if _recorder is None:
        yield args
        return
    with _recorder.span(lane, name, args):
        yield args


def add(lane: Lane, name: str, start: float, end: float, parts: Iterable[tuple[str, float]] = (), **args: Any) -> None:
    """Record a slice that was timed elsewhere.

    Args:
        lane: The lane.
        name: Name of the slice.
        start: Its start.
        end: Its end.
        parts: Names and seconds of its steps, one after the other from its start on.
        **args: Values that JSON can hold.
    """
    if _recorder is not None:
        _recorder.add(lane, _slice(name, start, end, args, _steps(start, end, parts)))


def switch(lane: Lane, name: str, since: float | None = None, **args: Any) -> None:
    """Begin a slice that lasts until the next one of its lane, or until the end of the recording.

    Args:
        lane: The lane.
        name: Name of the slice.
        since: Its start; None for now.
        **args: Values that JSON can hold.
    """
    if _recorder is not None:
        _recorder.switch(lane, name, time.monotonic() if since is None else since, args)


def count(name: str, value: float) -> None:
    """Record that a counter has a value from now on."""
    if _recorder is not None:
        _recorder.count(name, value)


def of_wall_clock(seconds: float) -> float:
    """Return the time.monotonic() at a time.time(), such as that of a file's last change.

    One recording uses one difference of the clocks, so that what ends and begins at one time does so in its trace.
    """
    return seconds - (_recorder.wall_clock if _recorder else time.time() - time.monotonic())


def _slice(name: str, start: float, end: float, args: dict[str, Any], parts: Iterable[Slice] = ()) -> Slice:
    return Slice(name, start * 1e6, end * 1e6, args, tuple(parts))


def _steps(start: float, end: float, parts: Iterable[tuple[str, float]]) -> Iterator[Slice]:
    """Yield the steps of a slice; they do not reach beyond its end."""
    for name, seconds in parts:
        until = min(end, start + seconds)
        yield _slice(name, start, until, {})
        start = until


@contextmanager
def nvtx_range(name: str, device: torch.device) -> Iterator[None]:
    """Mark the body as an NVTX range on a GPU; do nothing on a CPU. Without a profiler it costs next to nothing."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
