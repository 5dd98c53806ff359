"""Runs `autotune memory`, whose options and description are in arguments/memory.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError, format_bytes
from autotune.families import families
from autotune.ir import WHOLE, NetworkKey, network_text
from fused_resnet.memory import MemoryReport, planned_memory
from tuning_db import open_reader
from tuning_db.protocols import Database, Device, Plan

_COLUMNS = ("activations", "workspaces", "constants", "code", "results")
_HEADINGS = ("plan", "activations", "workspaces", "packed weights", "kernels", "results", "all")


def main(args: argparse.Namespace) -> None:
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    console = Console()
    with open_reader(args.db) as store:
        planned = [(device, store.planned(device)) for device in store.devices()]
        if not any(keys for _, keys in planned):
            raise AutotuneError(f"{store.name} has no plan of a network: `autotune tune --model` makes one")
        chosen = [(device, [key for key in keys if _is_chosen(key, args)]) for device, keys in planned]
        if not any(keys for _, keys in chosen):
            raise AutotuneError(
                f"{store.name} has no such plan: --batch and --plan choose among those of `autotune db info`"
            )
        notes = [note for device, keys in chosen if keys for note in _show(console, store, device, keys)]
    for note in notes:
        console.print(note, highlight=False, markup=False)


def _is_chosen(key: str, args: argparse.Namespace) -> bool:
    return args.plan in key and (not args.batch or NetworkKey.parse(key).batch in args.batch)


def _show(console: Console, store: Database, device: Device, keys: Sequence[str]) -> list[str]:
    """Print the memory of plans for a device; return for each that is not known the reason."""
    table, notes = Table(*_HEADINGS, title=device.name, box=None, pad_edge=False), list[str]()
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for key in keys:
        plan = store.plan(device, key)
        assert plan
        try:
            report = _report(store, device, key, plan)
        except AutotuneError as error:
            notes.append(f"{key}: {error}")
            continue
        known = NetworkKey.parse(key)
        title = replace(known, model=plan.details.get("label") or known.model, digest="")
        sizes = [format_bytes(getattr(report, name)) for name in _COLUMNS]
        more = "more than " if report.not_recorded else ""
        table.add_row(str(title), *sizes, more + format_bytes(report.total))
    if table.row_count:
        console.print(table)
    return notes


def _report(store: Database, device: Device, key: str, plan: Plan) -> MemoryReport:
    """Return the memory of a plan; raises AutotuneError if the database does not tell it."""
    if WHOLE in plan.details.get("alternatives", []):
        raise AutotuneError("it runs torch's operators for the whole network, whose memory is not known here")
    network = network_text.find(store.networks(f"{NetworkKey.parse(key).model} "), key)
    if network is None:
        raise AutotuneError("it was stored without its network: tune again")
    return planned_memory(store, device, network, plan)
