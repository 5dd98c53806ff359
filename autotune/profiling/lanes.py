"""Lanes for the trace of a profile: each kernel inside the modules and the operator that it belongs to.

The profiler's own lanes show the host and the device apart. Here a GPU's stream is a lane in which a module lasts from
its first kernel to the end of its last one. On a CPU the lane shows modules and the operators that they call directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from autotune.core import chrome_trace
from autotune.profiling import libraries
from autotune.profiling.attribution import DETAILS, Profile, kernel_origin, layer_of, shapes_of, work_of
from autotune.profiling.launches import Launched, launched
from autotune.profiling.spans import Span, forest

CATEGORY = "autotune"
"""Category of the events of these lanes."""
_LAYER = ("problem", "family", "config", "launch", "candidate")
"""Values that a slice shows if it belongs to a layer on our kernels."""


@dataclass(frozen=True)
class _Leaf:
    """A kernel in a lane.

    Attributes:
        around: The call, the modules and the operator around it, from the outside in.
        slice: The kernel.
    """

    around: tuple[Span, ...]
    slice: chrome_trace.Slice


def with_lanes(trace: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Return a trace with the lanes of its modules and kernels, which replace those that it has.

    Args:
        trace: A trace of `record.record`.
        profile: The profile of that trace.
    """
    events = trace["traceEvents"]
    ours = {event["pid"] for event in events if event.get("cat") == CATEGORY}
    events = [event for event in events if event["pid"] not in ours]
    spans = forest(events)
    if profile.about["device_type"] == "cuda":
        lanes = _gpu_lanes(profile, spans, events)
    else:
        lanes = {"CPU": [_host_slice(profile, span) for span in spans if span.kind == "call"]}
    # The other groups of torch's profiler have names instead of numbers.
    pid = 1 + max(event["pid"] for event in events if isinstance(event["pid"], int))
    title = f"{profile.about['model']}: {profile.about['variant']}"
    return {**trace, "traceEvents": [*events, *chrome_trace.group_events(pid, title, lanes, CATEGORY, place=-1)]}


# -- a GPU -------------------------------------------------------------------------------------------------------------


def _gpu_lanes(
    profile: Profile, spans: Sequence[Span], events: Sequence[Mapping[str, Any]]
) -> dict[str, list[chrome_trace.Slice]]:
    """Return a lane for each stream; kernels of a stream that overlap are in lanes of their own."""
    streams: dict[tuple[int, int], list[_Leaf]] = {}
    for one in launched(spans, events):
        streams.setdefault(one.lane, []).append(_leaf(profile, one))
    lanes: dict[str, list[chrome_trace.Slice]] = {}
    for (device, stream), leaves in sorted(streams.items()):
        by_slice = {id(leaf.slice): leaf for leaf in leaves}
        rows = chrome_trace.rows(leaf.slice for leaf in leaves)
        for number, row in enumerate(rows, 1):
            name = f"GPU {device}, stream {stream}" + (f", overlap {number}" if number > 1 else "")
            lanes[name] = list(_nested(profile, [by_slice[id(one)] for one in row]))
    return lanes


def _leaf(profile: Profile, one: Launched) -> _Leaf:
    operators = one.launch.operators() if one.launch else []
    args = {**_kernel_args(profile, one.launch), **_origin_args(kernel_origin(one, profile.about))}
    args |= {"kernel": one.name, **{key: one.args[key] for key in DETAILS if key in one.args}}
    around = [span for span in one.launch.ancestors() if span.kind in ("call", "module")][::-1] if one.launch else []
    if operators and operators[0].name == one.name:
        args |= _work_args(profile, operators[0])
    else:
        around += operators[:1]
        args |= {"operators": " > ".join(span.name for span in operators)} if operators else {}
    return _Leaf(tuple(around), chrome_trace.Slice(libraries.short_name(one.name), one.start, one.end, args))


def _nested(profile: Profile, leaves: Sequence[_Leaf], depth: int = 0) -> Iterator[chrome_trace.Slice]:
    """Yield slices of the calls, modules and operators around kernels, which are disjoint and in their order.

    Args:
        profile: The profile.
        leaves: The kernels.
        depth: Number of spans around the kernels that are slices already.
    """
    for _, group in groupby(leaves, lambda leaf: id(leaf.around[depth]) if depth < len(leaf.around) else None):
        inside = list(group)
        if depth == len(inside[0].around):
            yield from (leaf.slice for leaf in inside)
        else:
            parts = tuple(_nested(profile, inside, depth + 1))
            span = inside[0].around[depth]
            yield chrome_trace.Slice(_name(span), parts[0].start, parts[-1].end, _span_args(profile, span), parts)


# -- a CPU -------------------------------------------------------------------------------------------------------------


def _host_slice(profile: Profile, span: Span) -> chrome_trace.Slice:
    """Return the slice of a call, a module or an operator, with the modules and operators that it calls directly."""
    if span.kind == "operator":
        slowest = max(span.descendants(), key=lambda inner: inner.own_us)
        origin = libraries.operator_origin(slowest.name, layer_of(span, profile.about))
        args = {**_span_args(profile, span), **_kernel_args(profile, span), **_origin_args(origin)}
        return chrome_trace.Slice(_name(span), span.start, span.end, {**args, "kernel": slowest.name})
    parts = [_host_slice(profile, child) for child in span.children if child.kind != "launch"]
    return chrome_trace.Slice(_name(span), span.start, span.end, _span_args(profile, span), tuple(parts))


# -- names and values --------------------------------------------------------------------------------------------------


def _name(span: Span) -> str:
    if span.kind == "call":
        return f"call {span.name}"
    return (span.name or "network") if span.kind == "module" else span.name.removeprefix("aten::")


def _span_args(profile: Profile, span: Span) -> dict[str, Any]:
    if span.kind == "module":
        return {"class": profile.about["modules"].get(span.name, "")}
    if span.kind == "operator":
        return {"shapes": shapes_of(span), **_work_args(profile, span)}
    return {}


def _work_args(profile: Profile, operator: Span) -> dict[str, Any]:
    """Return the least work of an operator, if it is known, and the least time that it takes on the device."""
    work = work_of(operator, profile.about)
    if not (work.flops or work.bytes):
        return {}
    return {"flops": work.flops, "bytes": work.bytes, "limit_us": round(profile.limit_us(work.flops, work.bytes), 3)}


def _kernel_args(profile: Profile, launch: Span | None) -> dict[str, Any]:
    """Return the module of a kernel and, on our kernels, what it solves and how."""
    module, layer = (launch.module() if launch else None), layer_of(launch, profile.about) or {}
    return {"module": module.name if module else "", **{key: layer[key] for key in _LAYER if key in layer}}


def _origin_args(origin: libraries.Origin) -> dict[str, Any]:
    return {"library": origin.library, "source": origin.where}
