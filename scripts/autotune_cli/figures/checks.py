"""The faults of figures that can be found without a GPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from autotune.codegen import rendering
from autotune.core import AutotuneError
from autotune.families import Kernel
from autotune.tuner import kernel_of
from autotune_cli.figures.catalogue import Catalogue, Group
from autotune_cli.figures.pages import NUMBER, differing, pages, unnamed
from tuning_db import Store
from tuning_db.schema import PlanRow

DRIFT = 0.06
"""Largest difference between the time in a record and that of the shipped plan, as a part of the plan's."""
LONGEST_RUN = timedelta(hours=3)
"""A record of several networks has the time of its start, and the run tunes them: plans of this time may be its own."""
FAULTS = {
    1: "a number differs from its record",
    2: "a number in a table of README has no id",
    3: "a record is from an uncommitted or unknown commit",
    4: "the plan of a figure is not shipped",
    5: "record and shipped plan differ in their times",
    6: "a plan has kernels of older templates, and figures.toml does not say so, or the reverse",
    7: "no page and no figure names a record",
}
_RECORD = re.compile(r"benchmarks/([\w.-]+\.(?:json|txt|png))\b")


@dataclass(frozen=True)
class Fault:
    """A fault: its number in FAULTS, the figure, group or file, and what was found."""

    number: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.number} {self.name}: {self.text}"


def faults(catalogue: Catalogue) -> tuple[list[Fault], list[Fault]]:
    """Return the faults of a repository, and those that figures.toml lists as debts.

    A debt without its fault is a fault, too: it was paid, and leaves the list.
    """
    found = [*_of_pages(catalogue), *_of_records(catalogue), *_of_plans(catalogue), *_unnamed_records(catalogue)]
    owed = [fault for fault in found if (fault.number, fault.name) in catalogue.debts]
    paid = catalogue.debts.keys() - {(fault.number, fault.name) for fault in owed}
    rest = [fault for fault in found if fault not in owed]
    return rest + [Fault(number, name, "the debt is paid: remove it") for number, name in sorted(paid)], owed


def _of_pages(catalogue: Catalogue) -> Iterator[Fault]:
    for page in pages(catalogue.root):
        name, text = page.relative_to(catalogue.root).as_posix(), page.read_text()
        yield from (Fault(1, name, sentence) for sentence in differing(text, catalogue.text))
        if name == "README.md":
            yield from (Fault(2, name, sentence) for sentence in unnamed(text))
            yield from _without_plan(catalogue, text)


def _without_plan(catalogue: Catalogue, text: str) -> Iterator[Fault]:
    """Yield a fault for each figure of README that stands on a database without a plan of it."""
    for name in sorted({found["id"] for found in NUMBER.finditer(text)} - catalogue.formulas.keys()):
        try:
            group, batch = catalogue.place(name)
        except AutotuneError:
            continue  # fault 1 tells it
        if group.database and not (group.plan and group.batches[batch]):
            yield Fault(4, f"{group.id}.n{batch}", f"{group.database} has no plan of it: take it out of README.md")


def _of_records(catalogue: Catalogue) -> Iterator[Fault]:
    """Yield a fault for each record of a figure whose commit is unknown, or was not all that ran."""
    for name in sorted({name for group in catalogue.groups.values() for name in group.record}):
        record = catalogue.record(name)
        commit = record.get("commit")
        if not commit:
            yield Fault(3, name, "the record names no commit")
        elif record.get("uncommitted_changes") is not False:
            yield Fault(3, name, f"files differed from commit {commit[:10]}")
        elif not _is_known(catalogue.root, commit):
            yield Fault(3, name, f"this repository has no commit {commit[:10]}")


def _is_known(root: Path, commit: str) -> bool:
    """Return whether a repository has a commit; True where it cannot be told: no git, or a shallow clone."""
    words = ["git", "-C", str(root), "rev-parse", "--is-shallow-repository"]
    shallow = subprocess.run(words, capture_output=True, text=True, check=False)
    if shallow.returncode or shallow.stdout.strip() == "true":
        return True
    words = ["git", "-C", str(root), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _of_plans(catalogue: Catalogue) -> Iterator[Fault]:
    for group, batch, store, plan in _plans(catalogue):
        name = f"{group.id}.n{batch}"
        if plan is None:
            yield Fault(4, name, f"{group.database} has no plan of '{group.key(batch)}'")
            continue
        record = catalogue.record(catalogue.source(group, batch)[0])
        ran = (record.get("database") or {}).get("plans", {})
        if ran and ran.get(plan.network) != plan.digest:
            yield Fault(4, name, f"{group.database} has another plan than the one that ran")
        elif not ran and plan.recorded and _is_newer(plan.recorded, record):
            yield Fault(4, name, f"the plan of {plan.recorded} is newer than the record of {record['date']}")
        drift = catalogue.value(name) / plan.median_us - 1
        if abs(drift) > DRIFT:
            yield Fault(5, name, f"the record's time is {drift:+.1%} from the plan's {plan.median_us:.1f} us")
        older = _older_layers(store, plan)
        if bool(older) != (batch in group.older):
            found = f"{len(older)} layers, such as {older[0]}," if older else "no layers"
            yield Fault(6, name, f"{found} have kernels of older templates: autotune figures --update marks it")


def _plans(catalogue: Catalogue) -> Iterator[tuple[Group, int, Store, PlanRow | None]]:
    """Yield each batch size of a group that stands on a plan, the open database, and the plan if it is there."""
    groups = [group for group in catalogue.groups.values() if group.plan]
    for database in sorted({group.database for group in groups}):
        path = catalogue.root / "tuning_db" / database
        with Store.open(path) as store:
            devices = {device.id: device.name for device in store.devices()}
            plans = {(devices[plan.device_id], plan.network): plan for plan in store.plans()}
            for group in (group for group in groups if group.database == database):
                for batch in group.batches:
                    yield group, batch, store, plans.get((group.device, group.key(batch)))


def older_batches(catalogue: Catalogue) -> dict[str, list[int]]:
    """Return for each group with plans its batch sizes whose plan has kernels of older templates."""
    found: dict[str, list[int]] = {}
    for group, batch, store, plan in _plans(catalogue):
        found.setdefault(group.id, []).extend([batch] if plan and _older_layers(store, plan) else [])
    return found


def _is_newer(recorded: str, record: dict[str, Any]) -> bool:
    """Return whether a plan was recorded after the run of a record."""
    run = LONGEST_RUN if "networks" in record else timedelta(0)
    return datetime.fromisoformat(recorded) > datetime.fromisoformat(record["date"]) + run


def _older_layers(store: Store, plan: PlanRow) -> list[str]:
    """Return the layers of a plan whose kernel is not what today's template renders."""
    return [choice["layer"] for choice in plan.choices if _is_older(store, choice["kernel"])]


def _is_older(store: Store, kernel_id: int) -> bool:
    row = store.kernel(kernel_id)
    if row.library is None or row.library.kind != "device_image":
        return False
    kernel = kernel_of(row)
    return kernel is None or _digest(kernel) != row.source


@cache
def _digest(kernel: Kernel) -> str:
    return rendering.source_digest(kernel)


def _unnamed_records(catalogue: Catalogue) -> Iterator[Fault]:
    """Yield a fault for each record and chart that neither a page nor a figure names."""
    named = {f"{name}.json" for group in catalogue.groups.values() for name in group.record}
    for page in pages(catalogue.root):
        named.update(_RECORD.findall(page.read_text()))
    for path in sorted((catalogue.root / "benchmarks").iterdir()):
        if path.suffix in (".json", ".txt", ".png") and path.name not in named:
            yield Fault(7, path.name, "no page and no figure names it")
