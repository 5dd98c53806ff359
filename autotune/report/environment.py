"""Collects what is stored about devices, their state during the trials, software and compilers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.core import flop_unit, format_bytes
from autotune.report.records import Layer, Trial
from autotune.report.sentences import clock, plural
from tuning_db import Store
from tuning_db.schema import Device

Facts = tuple[tuple[str, str], ...]


def device_facts(device: Device, layers: Iterable[Layer]) -> Facts:
    """Return the rates of a device, its properties, and its clocks, temperature, power and throttling in the trials."""
    facts = [
        ("target", device.target),
        ("highest arithmetic rate measured", flop_unit(device.flops_per_us).text(device.flops_per_us)),
        ("highest memory rate measured", f"{device.bytes_per_us / 1e3:.4g} GB/s"),
    ]
    facts += [(_name(name), _value(name, value)) for name, value in device.details.items() if name in _PROPERTIES]
    return (*facts, *_state_facts([trial for layer in layers for trial in layer.trials]))


def database_facts(store: Store) -> Facts:
    """Return the software of the measurements, the compilers of the binaries, and the number of rows."""
    facts = []
    for row in store.environments():
        software = {name: value for name, value in json.loads(row.software).items() if name not in _PROPERTIES}
        facts.append(("measured with", ", ".join(f"{_name(name)} {value}" for name, value in software.items())))
    libraries = [
        (target, kernel.library)
        for target in sorted({device.target for device in store.devices()})
        for kernel in store.kernels(target)
        if kernel.library
    ]
    compilers = Counter(library.compiler for _, library in {lib.id: (t, lib) for t, lib in libraries}.values())
    facts += [("compiled with", f"{name}: {count} binaries") for name, count in compilers.most_common() if name]
    counts = store.counts()
    facts.append(("rows", ", ".join(f"{plural(counts[table], table)}" for table in _TABLES)))
    statuses = {name.removeprefix("measurement: "): n for name, n in counts.items() if name.startswith("measurement: ")}
    facts.append(("outcomes of trials", ", ".join(f"{status} {count}" for status, count in statuses.items()) or "none"))
    return tuple(facts)


_PROPERTIES = {"sms": "multiprocessors", "processors": "processors", "memory_bytes": "memory", "threads": "threads"}
"""Properties of the device among its details and among the software -> their names in the report."""

_TABLES = ("problem", "kernel", "measurement", "plan")


def _name(name: str) -> str:
    return {**_PROPERTIES, "cuda": "CUDA", "cudnn": "cuDNN", "torch": "PyTorch"}.get(name, name)


def _value(name: str, value: object) -> str:
    return format_bytes(value) if name == "memory_bytes" and isinstance(value, int) else str(value)


def _state_facts(trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """Yield the ranges of clocks, temperature and power, the reasons of throttling, and the time of the trials."""
    known = [trial.states for trial in trials if trial.states]
    yield from _ranges([state for states in known for state in states])
    if known:
        reasons = Counter(
            reason
            for states in known
            for reason in {one for state in states for one in state.get("throttle_reasons", ())}
        )
        said = ", ".join(f"{reason} in {n:,} of {plural(len(known), 'trial')}" for reason, n in reasons.most_common())
        yield "throttling", said or f"none in {plural(len(known), 'trial')}"
    if recorded := [trial.recorded for trial in trials if trial.recorded is not None]:
        yield "trials recorded", f"{clock(min(recorded))} to {clock(max(recorded))}"


def _ranges(states: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    names = {
        "sm_mhz": ("SM clock", "MHz"),
        "memory_mhz": ("memory clock", "MHz"),
        "celsius": ("temperature", "°C"),
        "watts": ("power", "W"),
    }
    for key, (name, unit) in names.items():
        if values := [state[key] for state in states if isinstance(state.get(key), int | float)]:
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            yield name, f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
