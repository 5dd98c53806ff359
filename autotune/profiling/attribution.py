"""A recorded trace -> what each module's operators ran, and how long it took: per call, all times in microseconds.

On a GPU a kernel belongs to the operator and the module during which the host launched it; the trace joins the two by
a correlation number. The device's time between the first kernel and the end of the last is divided without remainder:
each kernel has its own time, and a wait: from the end of what ran before it to its start (negative where they overlap).
On a CPU an operator's work is its own time, and a module's wait is what passes in it outside operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core import AutotuneError
from autotune.profiling import libraries, work
from autotune.profiling.libraries import Origin
from autotune.profiling.record import ABOUT, DEVICE
from autotune.profiling.spans import Span, forest
from autotune.profiling.work import Work


@dataclass
class Kernel:
    """A kernel as one operator of one module runs it. chain: the operators within that operator that lead to it."""

    name: str
    chain: tuple[str, ...]
    origin: Origin
    us: float = 0.0
    wait_us: float = 0.0
    launches: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Operator:
    """An operator that a module called itself, with certain shapes. host_us: how long it kept the host busy."""

    name: str
    shapes: str
    calls: float = 0.0
    host_us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    kernels: dict[tuple[str, ...], Kernel] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """Device time of its kernels."""
        return sum(kernel.us for kernel in self.kernels.values())

    @property
    def wait_us(self) -> float:
        """Time that the device waited before its kernels."""
        return sum(kernel.wait_us for kernel in self.kernels.values())


@dataclass
class Module:
    """One module's own operators; those of its submodules are theirs. host_us: of all, with the submodules'."""

    path: str
    kind: str
    calls: float = 0.0
    host_us: float = 0.0
    wait_us: float = 0.0
    operators: dict[tuple[str, str], Operator] = field(default_factory=dict)


@dataclass
class Profile:
    """A network's profile. about: what the trace says of the recording. modules: by path, in the order of their use.

    unattributed: kernels that no module launched.
    """

    about: Mapping[str, Any]
    modules: dict[str, Module]
    unattributed: dict[str, Kernel]

    @property
    def kernels_us(self) -> float:
        """The time of all kernels."""
        return sum(kernel.us for kernel in self.kernels())

    @property
    def wait_us(self) -> float:
        """The time between them."""
        kernels = sum(kernel.wait_us for kernel in self.kernels())
        return kernels + sum(module.wait_us for module in self.modules.values())

    @property
    def total_us(self) -> float:
        """What is attributed: kernels and waits, and what could not be."""
        return self.kernels_us + self.wait_us

    def kernels(self) -> list[Kernel]:
        """Every kernel, once for each operator that runs it, and those of no module."""
        found = [k for m in self.modules.values() for o in m.operators.values() for k in o.kernels.values()]
        return found + list(self.unattributed.values())

    def limit_us(self, flops: float, moved: float) -> float:
        """The least time that the device can take for some work."""
        limits = self.about["limits"]
        return float(max(flops / limits["flops_per_us"], moved / limits["bytes_per_us"]))


def read(trace: Mapping[str, Any]) -> Profile:
    """The profile of a recorded trace; raises AutotuneError if it was not recorded by `record`."""
    if not isinstance(trace, Mapping) or ABOUT not in trace:
        raise AutotuneError(
            "this trace was not recorded by scripts/profile_model.py: it does not say which modules ran"
        )
    about = trace[ABOUT]
    profile = Profile(about, {}, {})
    spans = forest(trace["traceEvents"])
    builder = _Builder(profile, about["calls"])
    for span in spans:
        builder.host(span)
    if about["device_type"] == "cuda":
        _device(builder, spans, trace["traceEvents"])
    else:
        _host(builder, spans)
    for module in profile.modules.values():  # what launched nothing is no part of the device's time
        module.operators = {key: op for key, op in module.operators.items() if op.kernels}
    return profile


def shapes_of(span: Span) -> str:
    """The shapes of an operator's tensors: "2x64x16x16 64x64x3x3"."""
    return " ".join("x".join(map(str, sides)) for sides in span.args.get("Input Dims", []) if sides)


class _Builder:
    """Gathers spans and kernels into a profile; every value is a share of the calls that were recorded."""

    def __init__(self, profile: Profile, calls: int) -> None:
        self.profile, self.share = profile, 1.0 / calls

    def host(self, span: Span) -> None:
        """Count a module's or an outermost operator's call and host time."""
        if span.call() is None:
            return
        if span.kind == "module":
            module = self.module(span.name)
            module.calls += self.share
            module.host_us += span.us * self.share
        elif span.kind == "operator" and span.operators()[0] is span and span.module():
            operator = self.operator(span.module(), span)
            operator.calls += self.share
            operator.host_us += span.us * self.share
            done = self._work(span)
            operator.flops += done.flops * self.share
            operator.bytes += done.bytes * self.share

    def module(self, path: str) -> Module:
        kinds = self.profile.about["modules"]
        return self.profile.modules.setdefault(path, Module(path, kinds.get(path, "")))

    def operator(self, module: Span | None, span: Span | None) -> Operator:
        """A module's entry for an operator; None: what it launched outside any."""
        assert module
        name, shapes = (span.name, shapes_of(span)) if span else ("no operator", "")
        return self.module(module.name).operators.setdefault((name, shapes), Operator(name, shapes))

    def layer(self, path: str) -> Mapping[str, Any] | None:
        layer: Mapping[str, Any] | None = self.profile.about["layers"].get(path)
        return layer

    def kernel(self, name: str, launch: Span | None, origin: Origin) -> Kernel:
        """The kernel's entry under the outermost of the operators that led to its launch, or under no module."""
        module, operators = (launch.module(), launch.operators()) if launch else (None, [])
        if module is None:
            return self.profile.unattributed.setdefault(name, Kernel(name, (), origin))
        chain = tuple(span.name for span in operators[1:])
        kernels = self.operator(module, operators[0] if operators else None).kernels
        return kernels.setdefault((name, *chain), Kernel(name, chain, origin))

    def _work(self, span: Span) -> Work:
        """Of a layer on our kernels, from its problem; else of the outermost operators whose work is known."""
        module = span.module()
        layer = self.layer(module.name) if module else None
        if layer and span.name == layer["symbol"]:
            return Work(layer["flops"], layer["bytes"])
        known = work.of_operator(span.name, span.args)
        if known:
            return known
        parts = [self._work(child) for child in span.children if child.kind == "operator"]
        return Work(sum(part.flops for part in parts), sum(part.bytes for part in parts))


def _device(builder: _Builder, spans: Sequence[Span], events: Sequence[Mapping[str, Any]]) -> None:
    """Attribute what ran on a GPU, from the first kernel that a call launched to the last."""
    launches = _by(spans, ("launch",), "correlation")
    others = _by(spans, ("module", "operator"), "External id")  # of launches that the profiler does not record
    calls = [span for span in spans if span.kind == "call"]
    ran = sorted((e for e in events if e.get("ph") == "X" and e.get("cat") in DEVICE), key=lambda e: float(e["ts"]))
    busy_until: float | None = None
    for event in ran:
        args = event.get("args", {})
        launch = launches.get(args.get("correlation")) or others.get(args.get("External id"))
        ours = any(call.start <= launch.start < call.end for call in calls) if launch else busy_until is not None
        if not ours:
            continue  # what holds the device back until the host is ahead
        start, us = float(event["ts"]), float(event["dur"])
        before = busy_until if busy_until is not None else start
        busy_until = max(before, start + us)
        kernel = builder.kernel(event["name"], launch, _origin(builder, event["name"], launch))
        kernel.us += us * builder.share
        kernel.wait_us += (busy_until - before - us) * builder.share
        kernel.launches += builder.share
        kernel.details = {key: args[key] for key in ("grid", "block", "registers per thread") if key in args}


def _by(spans: Sequence[Span], kinds: Sequence[str], key: str) -> dict[Any, Span]:
    return {span.args[key]: span for span in spans if span.kind in kinds and key in span.args}


def _origin(builder: _Builder, name: str, launch: Span | None) -> Origin:
    module = launch.module() if launch else None
    names = [span.name for span in launch.operators()] if launch else []
    return libraries.of_kernel(name, names, builder.layer(module.name) if module else None)


def _host(builder: _Builder, spans: Sequence[Span]) -> None:
    """Attribute what ran on a CPU: an operator's time goes to the one within it that took most of it itself."""
    same: dict[tuple[str, str, str], list[Span]] = {}
    for span in spans:
        module = span.module()
        if span.call() is None or module is None:
            continue
        if span.kind == "module":
            builder.module(span.name).wait_us += span.own_us * builder.share
        elif span.kind == "operator" and span.operators()[0] is span:
            same.setdefault((module.name, span.name, shapes_of(span)), []).append(span)
    for (path, *_), alike in same.items():
        own: defaultdict[str, float] = defaultdict(float)
        for span in alike:
            for inner in span.within():
                own[inner.name] += inner.own_us
        name = max(own, key=own.__getitem__)
        worker = next(inner for span in alike for inner in span.within() if inner.name == name)
        kernel = builder.kernel(name, worker, libraries.of_operator(name, builder.layer(path)))
        kernel.us += sum(span.us for span in alike) * builder.share
        kernel.launches += len(alike) * builder.share
