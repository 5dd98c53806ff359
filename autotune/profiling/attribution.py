"""Attributes the kernels of a recorded trace to modules and operators. All times are microseconds per call.

On a GPU a kernel belongs to the operator and the module that ran on the host when the host launched it. The trace joins
launch and kernel by a correlation id. The device's time from the start of the first kernel to the end of the last is
divided without remainder into kernels and waits. The wait of a kernel lasts from the end of the kernels before it to
its start, and is negative if they overlap. On a CPU the time of an operator is its own time, and the wait of a module
is the time that it spends outside operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core import AutotuneError
from autotune.profiling import libraries
from autotune.profiling.launches import Launched, launched
from autotune.profiling.libraries import Origin
from autotune.profiling.operator_work import OperatorWork, operator_work
from autotune.profiling.record import ABOUT
from autotune.profiling.spans import Span, forest

DETAILS = ("grid", "block", "registers per thread")
"""Names of the profiler's values that a kernel's profile keeps."""


@dataclass
class KernelProfile:
    """A kernel as one operator of one module runs it.

    chain: The nested operators within that operator that lead to the launch.
    origin: The library that the kernel comes from.
    us, wait_us: Device time of the kernel, and the device's wait before it.
    launches: Launches per call.
    """

    name: str
    chain: tuple[str, ...]
    origin: Origin
    us: float = 0.0
    wait_us: float = 0.0
    launches: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class OperatorProfile:
    """An operator that a module calls directly, with certain shapes.

    host_us: Host time of the operator.
    flops, bytes: The least work that its problem takes (operator_work.py).
    """

    name: str
    shapes: str
    calls: float = 0.0
    host_us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    kernels: dict[tuple[str, ...], KernelProfile] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """Device time of its kernels."""
        return sum(kernel.us for kernel in self.kernels.values())

    @property
    def wait_us(self) -> float:
        """Time for which the device waits before its kernels."""
        return sum(kernel.wait_us for kernel in self.kernels.values())


@dataclass
class ModuleProfile:
    """A module with the operators that it calls directly, without those of its submodules.

    kind: Name of its class.
    host_us: Host time of the module, including its submodules.
    """

    path: str
    kind: str
    calls: float = 0.0
    host_us: float = 0.0
    wait_us: float = 0.0
    operators: dict[tuple[str, str], OperatorProfile] = field(default_factory=dict)


@dataclass
class Profile:
    """The profile of a network.

    about: Description of the recording, from the trace.
    modules: Modules by path, in the order of their use.
    unattributed: Kernels that no module launched, by name.
    """

    about: Mapping[str, Any]
    modules: dict[str, ModuleProfile]
    unattributed: dict[str, KernelProfile]

    @property
    def kernels_us(self) -> float:
        """Time of all kernels."""
        return sum(kernel.us for kernel in self.kernels())

    @property
    def wait_us(self) -> float:
        """Waits of all kernels and modules."""
        kernels = sum(kernel.wait_us for kernel in self.kernels())
        return kernels + sum(module.wait_us for module in self.modules.values())

    @property
    def total_us(self) -> float:
        """Time of all kernels and waits, also of unattributed kernels."""
        return self.kernels_us + self.wait_us

    def kernels(self) -> list[KernelProfile]:
        """Return all kernels, one for each operator that runs it, and the unattributed ones."""
        found = [k for m in self.modules.values() for o in m.operators.values() for k in o.kernels.values()]
        return found + list(self.unattributed.values())

    def limit_us(self, flops: float, moved: float) -> float:
        """Return the least microseconds of some work: max(flops / peak flops, bytes / peak bandwidth).

        This is the roofline model (Williams et al., 2009) with the measured limits of the device.
        """
        limits = self.about["limits"]
        return float(max(flops / limits["flops_per_us"], moved / limits["bytes_per_us"]))


def read(trace: Mapping[str, Any]) -> Profile:
    """Return the profile of a recorded trace; raises AutotuneError if `record` did not record it."""
    if not isinstance(trace, Mapping) or ABOUT not in trace:
        raise AutotuneError("this trace was not recorded by `autotune profile`: it does not say which modules ran")
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
    for module in profile.modules.values():  # operators without kernels take no device time
        module.operators = {key: op for key, op in module.operators.items() if op.kernels}
    return profile


def shapes_of(span: Span) -> str:
    """Return the shapes of an operator's tensors as text: "2x64x16x16 64x64x3x3"."""
    return " ".join("x".join(map(str, sides)) for sides in span.args.get("Input Dims", []) if sides)


def layer_of(span: Span | None, about: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the description of the layer on our kernels that a span is part of; None outside any."""
    module = span.module() if span else None
    layer: Mapping[str, Any] | None = about["layers"].get(module.name) if module else None
    return layer


def work_of(span: Span, about: Mapping[str, Any]) -> OperatorWork:
    """Return the work of an operator: from the problem of a layer on our kernels, else from the recorded shapes.

    If the work of an operator is not known, that of the operators within it is added up.
    """
    layer = layer_of(span, about)
    if layer and span.name == layer["symbol"]:
        return OperatorWork(layer["flops"], layer["bytes"])
    known = operator_work(span.name, span.args)
    if known:
        return known
    parts = [work_of(child, about) for child in span.children if child.kind == "operator"]
    return OperatorWork(sum(part.flops for part in parts), sum(part.bytes for part in parts))


class _Builder:
    """Collects spans and kernels in a profile. Every value is divided by the number of recorded calls."""

    def __init__(self, profile: Profile, calls: int) -> None:
        self.profile, self.share = profile, 1.0 / calls

    def host(self, span: Span) -> None:
        """Add the call and the host time of a module, or of an operator that is not within another one."""
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
            done = work_of(span, self.profile.about)
            operator.flops += done.flops * self.share
            operator.bytes += done.bytes * self.share

    def module(self, path: str) -> ModuleProfile:
        kinds = self.profile.about["modules"]
        return self.profile.modules.setdefault(path, ModuleProfile(path, kinds.get(path, "")))

    def operator(self, module: Span | None, span: Span | None) -> OperatorProfile:
        """Return a module's entry for an operator; None stands for launches outside any operator."""
        assert module
        name, shapes = (span.name, shapes_of(span)) if span else ("no operator", "")
        return self.module(module.name).operators.setdefault((name, shapes), OperatorProfile(name, shapes))

    def kernel(self, name: str, launch: Span | None, origin: Origin) -> KernelProfile:
        """Return the kernel's entry: in the outermost operator that led to its launch, or unattributed."""
        module, operators = (launch.module(), launch.operators()) if launch else (None, [])
        if module is None:
            return self.profile.unattributed.setdefault(name, KernelProfile(name, (), origin))
        chain = tuple(span.name for span in operators[1:])
        kernels = self.operator(module, operators[0] if operators else None).kernels
        return kernels.setdefault((name, *chain), KernelProfile(name, chain, origin))


def _device(builder: _Builder, spans: Sequence[Span], events: Sequence[Mapping[str, Any]]) -> None:
    """Attribute everything that ran on a GPU, from the first kernel that a call launched to the last one."""
    busy_until: float | None = None
    for one in launched(spans, events):
        us = one.end - one.start
        before = busy_until if busy_until is not None else one.start
        busy_until = max(before, one.end)
        kernel = builder.kernel(one.name, one.launch, kernel_origin(one, builder.profile.about))
        kernel.us += us * builder.share
        kernel.wait_us += (busy_until - before - us) * builder.share
        kernel.launches += builder.share
        kernel.details = {key: one.args[key] for key in DETAILS if key in one.args}


def kernel_origin(one: Launched, about: Mapping[str, Any]) -> Origin:
    """Return the library that something on a GPU comes from."""
    names = [span.name for span in one.launch.operators()] if one.launch else []
    return libraries.kernel_origin(one.name, names, layer_of(one.launch, about))


def _host(builder: _Builder, spans: Sequence[Span]) -> None:
    """Attribute everything that ran on a CPU. The kernel of an operator is the inner operator that takes most time."""
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
            for inner in span.descendants():
                own[inner.name] += inner.own_us
        name = max(own, key=own.__getitem__)
        slowest = next(inner for span in alike for inner in span.descendants() if inner.name == name)
        kernel = builder.kernel(
            name, slowest, libraries.operator_origin(name, builder.profile.about["layers"].get(path))
        )
        kernel.us += sum(span.us for span in alike) * builder.share
        kernel.launches += len(alike) * builder.share
