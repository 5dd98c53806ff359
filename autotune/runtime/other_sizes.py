"""Records of other batch sizes and of images of other sizes, whose kernels serve a problem or a network, too.

A kernel takes the sizes of its problem when it is prepared, and refuses those that it cannot solve. So a kernel that
was tuned at one size runs at another one without being compiled again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autotune.core import AutotuneError, ceil_div
from autotune.ir import WHOLE, Network, NetworkKey, Problem, network_text, parse, size_class, with_batch
from autotune.ir.operators import TorchCall
from autotune.libraries import inductor

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device, Plan

Compiler = Literal["present", "absent", "off"]
"""State of Inductor: "present"; "absent" if it cannot compile here; "off" if the user switched it off."""

MIN_SHARED_WORK = 0.9
"""A plan serves a network at another image size if the layers that they share do this part of its operations. Code that
depends on the size may add some layers, such as a pad or a second resize."""

_INPUT = "input"
"""Property of a network's key: the sizes of a sample of each input, such as "3x224x224"."""


@dataclass(frozen=True)
class OtherPlan:
    """A plan of the same network at another batch size, or for images of another size.

    Attributes:
        plan: The plan.
        problems: What its layers computed when it was timed, by name: those layers whose kernels serve this network.
            None stands for calls of torch's operators.
        source: Where it was timed, such as "batch 8" or "size 3x512x512".
        is_resized: Whether it was timed with images of another size.
    """

    plan: Plan
    problems: Mapping[str, Problem | None]
    source: str
    is_resized: bool


def plan_for_other_size(
    store: Database, device: Device, network: Network, compiler: Compiler = "present"
) -> OtherPlan | None:
    """Return the plan for another batch size or image size from which the network's time is expected to be shortest.

    A plan takes no longer for fewer images, and can be run again for more: time(n) <= ceil(n / planned_n) x
    time(planned_n). For larger images its time is expected to grow as their pixels do; for smaller ones it counts as
    it is, because small images seldom fill a device.

    Returns:
        The plan; None if there is none, or if the best one runs torch's operators for the whole network at an image
        size that is not this one.
    """
    found: list[tuple[float, NetworkKey, Plan]] = []
    for text in store.planned(device) if network.batch else ():
        key = NetworkKey.parse(text)
        growth = _growth(key, network.identity)
        if growth and (plan := plan_of(store, device, key, compiler)):
            found.append((plan.median_us * growth, key, plan))
    for _, key, plan in sorted(found, key=lambda one: (one[0], one[1].batch)):
        if (problems := _problems(store, key, network)) is not None:
            is_resized = key.properties != network.identity.properties
            if is_resized and WHOLE in plan.details.get("alternatives", []):
                return None  # torch's operators were faster as a whole, which are compiled for each size
            return OtherPlan(plan, problems, _source(key, network.identity), is_resized)
    return None


def plan_of(store: Database, device: Device, key: NetworkKey, compiler: Compiler) -> Plan | None:
    """Return the plan of a network on a device that runs with or without a compiler."""
    plan = store.plan(device, str(key))
    if compiler != "present" and needs_compiler(store, plan):
        return store.plan(device, str(key.precompiled))
    return plan


def needs_compiler(store: Database, plan: Plan | None) -> bool:
    """Return whether a plan has layers that Inductor compiles."""
    return plan is not None and any(store.kernel(choice["kernel"]).family == inductor.FAMILY for choice in plan.choices)


def tuned_sizes(store: Database, problem: Problem) -> list[Problem]:
    """Return the problems of a database that differ in batch size and image size at most, the nearest first.

    Near are those with about as many pixels in all; of these, those of about the same height, width and batch size.
    """
    own, start, end = size_class(str(problem)), f"{problem.operator} ", f" epilogue={problem.epilogue}"
    alike = (text for text in store.problem_texts() if text.startswith(start) and text.endswith(end))
    return sorted((parse(text) for text in alike if size_class(text) == own), key=lambda one: _distance(one, problem))


def batches(store: Database, problem: Problem) -> list[int]:
    """Return the batch sizes for which the database has this problem, the nearest (by ratio) first."""
    return [one.batch for one in tuned_sizes(store, problem) if differs_in_batch_alone(one, problem)]


def differs_in_batch_alone(one: Problem, other: Problem) -> bool:
    """Return whether two problems are the same but for their batch sizes."""
    return with_batch(one, other.batch) == other


def size_source(tuned: Problem, problem: Problem) -> str:
    """Return where a problem's candidate was timed: "tuned", or what differs, such as "batch 8" or "size 64x64"."""
    if tuned == problem:
        return "tuned"
    batch = [f"batch {tuned.batch}"] if tuned.batch != problem.batch else []
    if differs_in_batch_alone(tuned, problem):
        return batch[0]
    return ", ".join([*batch, "size " + "x".join(str(size) for _, size in _sizes(tuned))])


def _sizes(problem: Problem) -> Iterator[tuple[str, int]]:
    """Yield the height and width of a problem's images; nothing if it has none."""
    for name in ("h", "w"):
        if name in problem.size_fields:
            yield name, getattr(problem, name)


def _distance(one: Problem, other: Problem) -> float:
    ratios = [one.batch / other.batch, *(size / getattr(other, name) for name, size in _sizes(one))]
    logs = [math.log(ratio) for ratio in ratios]
    return abs(sum(logs)) + sum(map(abs, logs)) / 4


def _growth(planned: NetworkKey, wanted: NetworkKey) -> float | None:
    """Return how much longer than a plan a network of these keys is expected to take; None if it is another network."""
    its, own = dict(planned.properties), dict(wanted.properties)
    before, now = its.pop(_INPUT, ""), own.pop(_INPUT, "")
    if not (planned.batch and wanted.batch) or planned == wanted or planned.model != wanted.model or its != own:
        return None
    pixels = _num_elements(now) / _num_elements(before)
    return ceil_div(wanted.batch, planned.batch) * max(1.0, pixels)


def _num_elements(samples: str) -> int:
    """Return the number of elements of samples such as "3x224x224,10"; at least 1."""
    sizes = [[int(size) for size in sample.split("x") if size.isdecimal()] for sample in samples.split(",")]
    return sum(map(math.prod, sizes)) or 1


def _problems(store: Database, key: NetworkKey, network: Network) -> dict[str, Problem | None] | None:
    """Return the problems of a plan's layers whose kernels serve a network's layers; None if it is another network's.

    Args:
        store: The database of the plan.
        key: The plan's key.
        network: The network.
    """
    assert key.batch
    if key.properties == network.identity.properties:
        other = network.with_batch(key.batch)
        return {layer.name: layer.problem for layer in other.all_layers} if other.identity == key else None
    planned = next((network_text.problems(text) for _, text in store.networks(str(key))), None)
    if planned is None:
        try:
            found = network_text.find(store.networks(f"{key.model} "), str(key))
        except AutotuneError:  # a layer on torch's operators, or an operator that is not known here
            return None
        planned = {layer.name: str(layer.problem) for layer in found.all_layers} if found else {}
    return _common(planned, network)


def _common(planned: Mapping[str, str], network: Network) -> dict[str, Problem | None] | None:
    """Return the problems of the layers that two networks share; None if they share too little of the work.

    Args:
        planned: Layer -> text of its problem, those of all alternatives, too, at another size.
        network: The network.
    """
    shared = [layer for layer in network.all_layers if _is_alike(planned.get(layer.name, ""), layer.problem)]
    names = {layer.name for layer in shared}
    work = sum(layer.problem.flops for layer in network.layers if layer.name in names)
    if not names or work < MIN_SHARED_WORK * sum(layer.problem.flops for layer in network.layers):
        return None
    calls = {layer.name for layer in shared if isinstance(layer.problem, TorchCall)}
    return {name: None if name in calls else parse(planned[name]) for name in names}


def _is_alike(planned: str, problem: Problem) -> bool:
    if isinstance(problem, TorchCall):  # it runs as this network calls it, whatever the sizes in that text
        return planned.startswith(f"{TorchCall.operator} ")
    return size_class(planned) == size_class(str(problem))


def _source(planned: NetworkKey, wanted: NetworkKey) -> str:
    batch = [f"batch {planned.batch}"] if planned.batch != wanted.batch else []
    sizes = dict(planned.properties).get(_INPUT, "")
    return ", ".join([*batch, *([f"size {sizes}"] if planned.properties != wanted.properties else [])])
