"""Which candidate should run a problem here: the best for this device, or the nearest thing that is right."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from autotune.core import ceil_div, device_name, device_target, runs_on
from autotune.ir import Alternative, Layer, Network, Problem, batch_of, with_batch
from autotune.libraries import aten, cudnn_names
from autotune.runtime.binding import Candidate
from autotune.runtime.candidate_loader import candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device, Measurement, Plan

Row = TypeVar("Row", bound="Measurement")


@dataclass(frozen=True)
class KernelChoice:
    """A candidate for a problem, and its time where it was tuned.

    overlap: whether the kernel may be placed on the GPU while the one before it ends.
    source: why it was chosen: "tuned", "batch 128", either with " on DEVICE", or "untuned".
    tuned_batch: the batch size that it was timed at.
    """

    candidate: Candidate
    source: str
    expected_us: float | None = None
    overlap: bool = False
    tuned_batch: int | None = None


def choices(store: Database, problem: Problem, device: torch.device) -> Iterator[KernelChoice]:
    """Candidates for `problem` on `device`, the preferred first; the last is torch's own operator, which always runs.

    First what was tuned on this kind of device, for this batch and then for the nearest others; then what was tuned
    on another device whose code runs here.
    """
    for row, where in _devices(store, device):
        yield from _of_device(store, row, problem, device_target(device), where)
    yield torch_choice(problem)


def select(
    store: Database, network: Network, device: torch.device
) -> tuple[tuple[Layer, ...], dict[str, KernelChoice]]:
    """The layers to run, and for each by name what was chosen for it inside the network, on this kind of device.

    Where the whole network was settled, what was found then, in the order of then; if only for other batch sizes, what
    was found for the one from which it should take the least time. Elsewhere nothing is chosen yet, and an alternative
    is taken if all its layers are tuned, for this batch or else for the nearest, and the sum of their times is less
    than that of the layers that it replaces. Where this kind of device has none of these, as on another whose code
    runs here.
    """
    for row, where in _devices(store, device):
        if known := _known(store, row, network):
            plan, timed = known
            if plan is None:
                return network.layers_with(_faster(store, row, timed)), {}
            n = None if timed is network else timed.batch
            source = f"{f'batch {n}' if n else 'tuned'}{where}"
            chosen = {
                saved["layer"]: KernelChoice(
                    candidate(store, store.kernel(saved["kernel"]), saved["launch"]),
                    source,
                    saved["us"],
                    saved["overlap"],
                    n,
                )
                for saved in plan.choices
            }
            return network.layers_with(plan.details.get("alternatives", []), chosen), chosen
    return network.layers_with([]), {}


def _devices(store: Database, device: torch.device) -> Iterator[tuple[Device, str]]:
    """Devices whose code runs on this one, its own kind first; and for others " on " and their name."""
    name, target = device_name(device), device_target(device)
    for row in sorted(store.devices(), key=lambda row: row.name != name):
        if row.name == name or runs_on(row.target, target):
            yield row, "" if row.name == name else f" on {row.name}"


def _known(store: Database, device: Device, network: Network) -> tuple[Plan | None, Network] | None:
    """A network's plan; None where only its layers were tuned; and the network at the batch size that this is for."""
    if plan := store.plan(device, network.key):
        return plan, network
    if _is_tuned(store, device, network) or not network.batch:
        return None, network
    if found := plan_of_another(store, device, network):
        return found
    tuned = (network.at(n) for n in batches(store, network.layers[0].problem))
    return next(((None, other) for other in tuned if _is_tuned(store, device, other)), None)


def plan_of_another(store: Database, device: Device, network: Network) -> tuple[Plan, Network] | None:
    """The plan for another batch size from which a network should take the least time, and the network at that size.

    A plan takes no longer for fewer images, and for more at most as long as run again for the rest.
    """
    found: list[tuple[float, int, Plan, Network]] = []
    if images := network.batch:
        for key in store.planned(device):
            n = batch_of(key)
            if n and n != images and (other := network.at(n)).key == key and (plan := store.plan(device, key)):
                found.append((plan.median_us * ceil_div(images, n), n, plan, other))
    return min(found, key=lambda one: one[:2])[2:] if found else None


def _is_tuned(store: Database, device: Device, network: Network) -> bool:
    return all(store.best_us(device, str(layer.problem)) is not None for layer in network.layers)


def _faster(store: Database, device: Device, network: Network) -> list[str]:
    """Names of the alternatives that take less time alone, the greatest gains first, none that excludes another."""

    def total(layers: Iterable[Layer]) -> float:
        times = [store.best_us(device, str(layer.problem)) for layer in layers]
        return sum(math.inf if time is None else time for time in times)

    by_name = {layer.name: layer for layer in network.layers}
    gains: list[tuple[float, Alternative]] = []
    for alternative in network.alternatives:
        time = total(alternative.layers)
        if math.isfinite(time):
            gains.append((total(by_name[name] for name in alternative.replaces) - time, alternative))
    taken: list[Alternative] = []
    for gain, alternative in sorted(gains, key=lambda pair: pair[0], reverse=True):
        if gain > 0 and all(set(alternative.replaces).isdisjoint(other.replaces) for other in taken):
            taken.append(alternative)
    return [alternative.name for alternative in taken]


def torch_choice(problem: Problem) -> KernelChoice:
    """torch's own operator."""
    return KernelChoice(Candidate(aten.FAMILY, json.dumps(aten.configs(problem)[0]), ""), "untuned")


def shortlist(ranking: Sequence[Row], most: int, plans: int) -> list[Row]:
    """The best `most` of a ranking and the best `plans` of cuDNN's plans, in the ranking's order.

    They take no place from each other: a plan serves its own sizes only, and another cuDNN refuses them all.
    """
    theirs = [row for row in ranking if row.kernel.family == cudnn_names.FAMILY][:plans]
    others = [row for row in ranking if row.kernel.family != cudnn_names.FAMILY][:most]
    return [row for row in ranking if row in theirs or row in others]


def _of_device(store: Database, device: Device, problem: Problem, target: str, where: str) -> Iterator[KernelChoice]:
    for n in batches(store, problem):
        tuned = with_batch(problem, n)
        source = "tuned" if tuned == problem else f"batch {n}"
        for row in shortlist(store.ranking(device, str(tuned)), 5, 5 if tuned == problem else 0):
            library = row.kernel.library
            if library is None or runs_on(library.target, target):
                yield KernelChoice(
                    candidate(store, row.kernel, row.launch), source + where, row.median_us, tuned_batch=n
                )


def batches(store: Database, problem: Problem) -> list[int]:
    """Batch sizes for which this problem is in the database, the nearest (by ratio) first."""
    # By text, which is what identifies a problem: parsing all of a large database would take longer than binding.
    head, _, tail = str(problem).partition(f" {problem.batch_field}={problem.batch} ")
    head = f"{head} {problem.batch_field}="
    alike = (text for text in store.problem_texts() if text.startswith(head) and text.endswith(f" {tail}"))
    between = [text[len(head) : -len(tail) - 1] for text in alike]
    return sorted((int(n) for n in between if n.isdigit()), key=lambda n: abs(math.log(n / problem.batch)))
