"""The host side of a trace as a forest of spans: calls, modules, operators and launches, nested by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.profiling.record import CALL, KERNEL, MODULE

_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass
class Span:
    """Something that ran on the host from `start` to `end` (microseconds).

    kind: "call", "module", "operator" or "launch".
    args: Arguments that the profiler recorded.
    """

    kind: str
    name: str
    start: float
    end: float
    args: Mapping[str, Any]
    parent: Span | None = None
    children: list[Span] = field(default_factory=list)

    @property
    def us(self) -> float:
        """Host time."""
        return self.end - self.start

    @property
    def own_us(self) -> float:
        """Host time without the spans within it."""
        return self.us - sum(child.us for child in self.children)

    def ancestors(self) -> Iterator[Span]:
        """Yield this span and all spans around it, from the inside out."""
        span: Span | None = self
        while span:
            yield span
            span = span.parent

    def descendants(self) -> Iterator[Span]:
        """Yield this span and all spans within it, each before those within it."""
        yield self
        for child in self.children:
            yield from child.descendants()

    def call(self) -> Span | None:
        """Return the call of the network that this span is part of; None outside any."""
        return next((span for span in self.ancestors() if span.kind == "call"), None)

    def module(self) -> Span | None:
        """Return the innermost module that this span is part of; None outside any."""
        return next((span for span in self.ancestors() if span.kind == "module"), None)

    def operators(self) -> list[Span]:
        """Return the operators within its module that this span is part of, the outermost first."""
        found: list[Span] = []
        for span in self.ancestors():
            if span.kind in ("module", "call"):
                break
            if span.kind == "operator":
                found.insert(0, span)
        return found


def forest(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return all spans of a trace in the order of their starts. Those of one thread are nested by time."""
    by_thread: dict[tuple[Any, Any], list[Span]] = {}
    for event in events:
        if event.get("ph") == "X" and (kind_and_name := _kind(event)):
            start = float(event["ts"])
            span = Span(*kind_and_name, start, start + float(event.get("dur", 0)), event.get("args", {}))
            by_thread.setdefault((event.get("pid"), event.get("tid")), []).append(span)
    for spans in by_thread.values():
        spans.sort(key=lambda span: (span.start, -span.end))
        _nest(spans)
    return sorted((span for spans in by_thread.values() for span in spans), key=lambda span: span.start)


def _nest(spans: Sequence[Span]) -> None:
    """Set the parent of each span: the innermost one that has not ended when the span starts."""
    open_spans: list[Span] = []
    for span in spans:
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        if open_spans:
            span.parent = open_spans[-1]
            span.parent.children.append(span)
        open_spans.append(span)


def _kind(event: Mapping[str, Any]) -> tuple[str, str] | None:
    category, name = event.get("cat"), str(event.get("name", ""))
    if category in _LAUNCHES:
        return "launch", name
    if category == "user_annotation":
        for prefix, kind in ((CALL, "call"), (MODULE, "module"), (KERNEL, "operator")):
            if name.startswith(prefix):
                return kind, name.removeprefix(prefix)
    # Names of operators have no spaces; those with spaces are ranges that a compiler puts around a whole graph.
    if category == "cpu_op" and " " not in name:
        return "operator", name
    return None
