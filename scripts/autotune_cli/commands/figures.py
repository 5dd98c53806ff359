"""Runs `autotune figures`, whose options and description are in arguments/figures.py."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime

from rich.console import Console

from autotune_cli.figures import FAULTS, Catalogue, Group, faults, measure, older_batches, pages, put, updated
from autotune_cli.record import ROOT


def main(args: argparse.Namespace) -> int:
    """Return 1 if --check finds a fault that is no debt, else 0."""
    catalogue = Catalogue.read(ROOT)
    chosen = _chosen(catalogue, args.only)
    console = Console(highlight=False, soft_wrap=True)
    if args.check:
        return _check(catalogue, console)
    if args.measure:
        measure(catalogue, chosen if args.only else [], lambda line: console.print(line, markup=False))
    elif args.update:
        _update(catalogue, console)
    else:
        console.print(_listing(catalogue, chosen), markup=False)
    return 0


def _chosen(catalogue: Catalogue, wanted: list[str]) -> list[Group]:
    """Return the groups of ids, each of a group or of one of its figures; all groups without ids."""
    if not wanted:
        return [*catalogue.groups.values()]
    ids = {name if name in catalogue.groups else catalogue.place(name)[0].id for name in wanted}
    return [group for group in catalogue.groups.values() if group.id in ids]


def _update(catalogue: Catalogue, console: Console) -> None:
    for page in pages(ROOT):
        before = page.read_text()
        if (after := updated(before, catalogue.text)) != before:
            page.write_text(after)
            console.print(f"wrote {page.relative_to(ROOT)}")
    for name, batches in older_batches(catalogue).items():
        if tuple(batches) != catalogue.groups[name].older:
            put(ROOT, name, "older", f"{batches}" if batches else "")
            console.print(f"{name}: batch sizes with kernels of older templates: {batches or 'none'}")


def _check(catalogue: Catalogue, console: Console) -> int:
    found, owed = faults(catalogue)
    for fault in found:
        console.print(f"{fault}", markup=False)
    for number, count in sorted(Counter(fault.number for fault in owed).items()):
        console.print(f"owed: {count}x {FAULTS[number]}", markup=False)
    if found:
        console.print(f"{len(found)} faults; docs/reference/figures.md says what to do about each")
    return 1 if found else 0


def _listing(catalogue: Catalogue, groups: list[Group]) -> str:
    """Return a line for each figure: its id, time, record, the record's age and the plan, in aligned columns."""
    rows = [("figure", "us", "days old", "record", "plan")]
    today = datetime.now(UTC)
    for group in groups:
        for batch in group.batches:
            name = f"{group.id}.n{batch}"
            record, _ = catalogue.source(group, batch)
            date = catalogue.record(record).get("date")
            age = f"{(today - datetime.fromisoformat(date)).days}" if date else ""
            plan = f"{group.database}: {group.key(batch)}" if group.plan else group.database
            rows.append((name, catalogue.text(name), age, record, plan))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
