"""Selection: which candidate runs each layer on this device, by the records of the database."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

import torch

from autotune.core import device_name, device_target, driver_version, runs_on
from autotune.ir import WHOLE, Alternative, Layer, Network, Problem, with_batch
from autotune.ir.operators import TorchCall
from autotune.libraries import aten, cudnn_names, inductor
from autotune.runtime.binding import Candidate, candidate
from autotune.runtime.other_sizes import (
    Compiler,
    batches,
    needs_compiler,
    plan_for_other_size,
    plan_of,
    size_source,
    tuned_sizes,
)
from tuning_db import evidence

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device, Measurement, Plan

Row = TypeVar("Row", bound="Measurement")

CANDIDATES, CUDNN_PLANS = 5, 5
"""Number of our kernels and of cuDNN's plans that are tried for a problem; the best ones may fail to load here."""


@dataclass(frozen=True)
class KernelChoice:
    """The candidate that runs a problem, and why.

    Attributes:
        candidate: The kernel, cuDNN plan or torch operator.
        source: "tuned"; "batch 128" or "size 64x64" for a candidate tuned at another batch size or image size; each
            with " on DEVICE" if it was tuned on another device. Without a record "Inductor" for what Inductor compiles,
            and "untuned" for torch's operator.
        expected_us: Its tuned time in microseconds, on the problem `tuned_for`.
        overlap: Whether the kernel may start while the one before it ends (programmatic dependent launch).
        tuned_for: The problem on which it was timed.
    """

    candidate: Candidate
    source: str
    expected_us: float | None = None
    overlap: bool = False
    tuned_for: Problem | None = None


@dataclass(frozen=True)
class Ranking:
    """The candidates that were timed for a problem, at one batch size and image size, on one kind of device.

    Attributes:
        timed: All verified candidates, best first.
        choices: Those of them that are tried, in this order; each is loaded when it is reached, by the open database.
        best_us: The shortest time of any run in microseconds; a later run of the same candidate may count in `timed`.
    """

    timed: Sequence[Measurement]
    choices: Iterable[KernelChoice]
    best_us: float | None


@dataclass(frozen=True)
class Selection:
    """The records of one device that serve a network.

    Attributes:
        plan: The plan of the whole network; None where only its layers were tuned, each alone.
        network: The network at the batch size of these records, of a plan at its own.
        source: Where the plan was timed: "tuned", or at what other size.
        problems: The layers' problems when the plan was timed, by name; None stands for calls of torch's operators.
        is_resized: Whether the plan was timed with images of another size.
    """

    plan: Plan | None
    network: Network
    source: str = "tuned"
    problems: Mapping[str, Problem | None] = field(default_factory=dict)
    is_resized: bool = False


def choices(
    store: Database, problem: Problem, device: torch.device, compiler: Compiler = "off"
) -> Iterator[KernelChoice]:
    """Yield candidates for a problem on a device, the preferred first.

    Candidates tuned on this kind of device come first: those for this size, then those for the nearest other ones.
    Candidates tuned on other devices whose code runs here follow, then what Inductor compiles. The last is torch's own
    operator, which runs everywhere.
    """
    for ranking in rankings(store, problem, device, other_sizes=True):
        yield from (one for one in ranking.choices if compiler == "present" or not one.candidate.compiled)
    if compiler == "present":
        yield from inductor_choices(problem)
    yield torch_choice(problem)


def rankings(
    store: Database, problem: Problem, device: torch.device, *, other_sizes: bool = False
) -> Iterator[Ranking]:
    """Yield what was timed for a problem on each device whose code runs here, this kind first; it may be nothing.

    Args:
        store: The database.
        problem: The problem.
        device: The device.
        other_sizes: Yield of each device also what was timed at other batch sizes and image sizes, the nearest first.
    """
    target = device_target(device)
    for row, suffix in usable_devices(store, device):
        for tuned in tuned_sizes(store, problem) if other_sizes else [problem]:
            timed: Sequence[Measurement] = store.ranking(row, str(tuned))
            best_us = store.best_us(row, str(tuned)) if timed else None
            if wrong := _quarantined(device, problem, tuned):
                timed = [one for one in timed if evidence.kernel_digest(one.kernel, one.launch) not in wrong]
                best_us = min((one.median_us for one in timed if one.median_us), default=None)
            # A plan of cuDNN serves its own problem only.
            plans = CUDNN_PLANS if tuned == problem else 0
            source = f"{size_source(tuned, problem)}{suffix}"
            loaded = _loaded(store, shortlist(timed, CANDIDATES, plans), target, source, tuned)
            yield Ranking(timed, loaded, best_us)


def select(
    store: Database, network: Network, device: torch.device, compiler: Compiler = "off"
) -> tuple[tuple[Layer, ...], dict[str, KernelChoice]]:
    """Return the layers to run, in order, and the choice for each layer by name where the network was tuned as a whole.

    The records of this kind of device are preferred, then those of other devices whose code runs here. If only the
    layers were tuned, each alone, no choice is returned; an alternative then replaces layers if all of its own layers
    are tuned and the sum of their times is smaller. A network without any tuned layer runs as a whole on torch's
    operators, compiled by Inductor where that is present.
    """
    for row, suffix in usable_devices(store, device):
        found = _find(store, row, network, compiler)
        if found is None:
            continue
        if found.plan is None:
            return network.layers_with(faster_alternatives(store, row, found.network, compiler)), {}
        without = compiler == "absent" and found.source == "tuned"
        without = without and needs_compiler(store, store.plan(row, network.key))
        chosen = _planned_choices(store, found, f"{suffix} without Inductor" if without else suffix)
        names = found.plan.details.get("alternatives", [])
        if found.is_resized:  # an alternative may not exist at this size, or may not go with the others
            parts = {one.name: {layer.name for layer in one.layers} for one in network.alternatives}
            names = [name for name in names if name in parts and parts[name] <= found.problems.keys()]
            names = names if network.can_take(names) else []
        layers = network.layers_with(names, chosen)
        for layer in layers if evidence.quarantined() else ():
            wrong = _quarantined(device, layer.problem, found.problems.get(layer.name) or layer.problem)
            if wrong and layer.name in chosen and chosen[layer.name].candidate.digest in wrong:
                del chosen[layer.name]  # the next candidate runs it
        return layers, chosen
    if compiler != "off" and network.whole and not _has_tuned_layers(store, network, device):
        (layer,) = network.whole.layers
        known = [*(inductor_choices(layer.problem) if compiler == "present" else ()), torch_choice(layer.problem)]
        return network.layers_with([WHOLE]), {layer.name: known[0]}
    return network.layers_with([]), {}


def inductor_choices(problem: Problem) -> Iterator[KernelChoice]:
    """Yield what Inductor compiles for a problem, in its default mode; nothing if it does not solve the problem."""
    for config in inductor.configs(problem):
        yield KernelChoice(Candidate(inductor.FAMILY, json.dumps(config), ""), "Inductor")


def torch_choice(problem: Problem) -> KernelChoice:
    """Return torch's own operator for a problem."""
    return KernelChoice(Candidate(aten.FAMILY, json.dumps(aten.configs(problem)[0]), ""), "untuned")


def shortlist(ranking: Sequence[Row], most: int, plans: int) -> list[Row]:
    """Return the best rows of a ranking, in its order: the first `most` without cuDNN's plans, and `plans` of those.

    The two are counted separately because a plan of cuDNN can fail where a kernel does not: it serves one problem
    only, and every other version of cuDNN refuses it.
    """
    theirs = [row for row in ranking if row.kernel.family == cudnn_names.FAMILY][:plans]
    others = [row for row in ranking if row.kernel.family != cudnn_names.FAMILY][:most]
    return [row for row in ranking if row in theirs or row in others]


def usable_devices(store: Database, device: torch.device) -> Iterator[tuple[Device, str]]:
    """Yield devices whose code runs here, this kind first, the others with the suffix " on NAME"."""
    name, target = device_name(device), device_target(device)
    for row in sorted(store.devices(), key=lambda row: row.name != name):
        if row.name == name or runs_on(row.target, target):
            yield row, "" if row.name == name else f" on {row.name}"


def _quarantined(device: torch.device, *problems: Problem) -> set[str]:
    """Return the digests of the kernels that were found wrong on one of these problems with this driver."""
    known = evidence.quarantined()
    found = {row for problem in problems for row in known.get(str(problem), ())} if known else set()
    driver = driver_version() if found and device.type == "cuda" else ""
    return {row.kernel for row in found if row.driver == driver}


def _has_tuned_layers(store: Database, network: Network, device: torch.device) -> bool:
    """Return whether some layer of a network, whatever its batch size, was tuned on a device whose code runs here.

    A layer that was tuned for images of another size, perhaps in another network, does not count: a network with few
    such layers is faster as a whole on what Inductor compiles.
    """
    return any(
        store.best_us(row, str(with_batch(layer.problem, n))) is not None
        for row, _ in usable_devices(store, device)
        for layer in network.layers
        for n in batches(store, layer.problem)
    )


def _find(store: Database, device: Device, network: Network, compiler: Compiler) -> Selection | None:
    """Return the preferred records of a network on a device; None if there are none that serve."""
    if plan := plan_of(store, device, network.identity, compiler):
        return Selection(plan, network, problems={layer.name: layer.problem for layer in network.all_layers})
    if _layers_are_tuned(store, device, network) or not network.batch:
        return Selection(None, network)
    if other := plan_for_other_size(store, device, network, compiler):
        return Selection(other.plan, network, other.source, other.problems, other.is_resized)
    for n in batches(store, network.layers[0].problem):
        same = network.with_batch(n)
        if _layers_are_tuned(store, device, same):
            return Selection(None, same)
    return None


def _layers_are_tuned(store: Database, device: Device, network: Network) -> bool:
    return all(store.best_us(device, str(layer.problem)) is not None for layer in network.layers)


def _planned_choices(store: Database, found: Selection, suffix: str) -> dict[str, KernelChoice]:
    """Return the choice for each layer of a plan, by the layer's name.

    At another image size torch's operators are not compiled by Inductor, which takes seconds for each size.
    """
    assert found.plan
    by_name = {layer.name: layer.problem for layer in found.network.all_layers}
    chosen = {}
    for saved in found.plan.choices:
        name = saved["layer"]
        if name not in found.problems:
            continue
        kernel = candidate(store, store.kernel(saved["kernel"]), saved["launch"])
        if found.is_resized and kernel.compiled:
            chosen[name] = torch_choice(by_name[name])
            continue
        if found.is_resized and kernel.kind == cudnn_names.KIND:
            continue  # it serves its own problem only
        source, tuned_for = found.source + suffix, found.problems[name]
        chosen[name] = KernelChoice(kernel, source, saved["us"], saved.get("overlap", False), tuned_for)
    return chosen


def faster_alternatives(store: Database, device: Device, network: Network, compiler: Compiler = "present") -> list[str]:
    """Return the names of alternatives that are faster than the layers they replace, when each layer runs alone.

    The greatest gains come first; an alternative that replaces a layer already replaced is left out. Torch's operators
    for the whole network are taken if they are faster than all layers that were chosen so.
    """

    def best_us(problem: Problem) -> float | None:
        if compiler == "present" or not isinstance(problem, TorchCall):
            return store.best_us(device, str(problem))
        ranking = store.ranking(device, str(problem))
        return next((row.median_us for row in ranking if row.kernel.family != inductor.FAMILY), None)

    def total_us(layers: Iterable[Layer]) -> float:
        times = [best_us(layer.problem) for layer in layers]
        return sum(math.inf if time is None else time for time in times)

    by_name = {layer.name: layer for layer in network.layers}
    gains: list[tuple[float, Alternative]] = []
    for alternative in network.without_whole.alternatives:
        time = total_us(alternative.layers)
        if math.isfinite(time):
            gains.append((total_us(by_name[name] for name in alternative.replaces) - time, alternative))
    taken: list[Alternative] = []
    for gain, alternative in sorted(gains, key=lambda pair: pair[0], reverse=True):
        if gain > 0 and all(set(alternative.replaces).isdisjoint(other.replaces) for other in taken):
            taken.append(alternative)
    names = [alternative.name for alternative in taken]
    if not network.can_take(names):
        names = reduce(
            lambda kept, name: [*kept, name] if network.can_take([*kept, name]) else kept, names, list[str]()
        )
    if network.whole and total_us(network.whole.layers) < total_us(network.layers_with(names)):
        return [WHOLE]
    return names


def _loaded(
    store: Database, tried: Sequence[Measurement], target: str, source: str, tuned_for: Problem
) -> Iterator[KernelChoice]:
    """Yield the candidates that a target runs, in their order."""
    for row in tried:
        library = row.kernel.library
        if library is None or runs_on(library.target, target):
            yield KernelChoice(candidate(store, row.kernel, row.launch), source, row.median_us, tuned_for=tuned_for)
