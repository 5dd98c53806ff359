"""Runs `autotune memory`, whose options and description are in arguments/memory.py."""

from __future__ import annotations

import argparse
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError, format_bytes
from autotune.families import families
from autotune.ir import WHOLE, NetworkKey, network_text
from fused_resnet.memory import MemoryReport, planned_memory
from tuning_db import open_reader
from tuning_db.protocols import Database, Device

_COLUMNS = ("activations", "workspaces", "constants", "code", "results")
_HEADINGS = ("plan", "activations", "workspaces", "packed weights", "kernels", "results", "all")


def main(args: argparse.Namespace) -> None:
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    console, planned, found, notes = Console(), False, False, list[str]()
    with open_reader(args.db) as store:
        for device in store.devices():
            table = Table(*_HEADINGS, title=device.name, box=None, pad_edge=False)
            for column in table.columns[1:]:
                column.justify, column.no_wrap = "right", True
            for key in store.planned(device):
                planned = True
                if args.plan not in key or (args.batch and NetworkKey.parse(key).batch not in args.batch):
                    continue
                found = True
                try:
                    report = _report(store, device, key)
                except AutotuneError as error:
                    notes.append(f"{key}: {error}")
                    continue
                sizes = [format_bytes(getattr(report, name)) for name in _COLUMNS]
                table.add_row(_title(store, device, key), *sizes, _all(report))
            if table.row_count:
                console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    if not planned:
        raise AutotuneError(f"{args.db} has no plan of a network: `autotune tune --model` makes one")
    if not found:
        raise AutotuneError(f"{args.db} has no such plan: --batch and --plan choose among those of `autotune db info`")


def _title(store: Database, device: Device, key: str) -> str:
    """Return a plan's key without digest, with the name that the user gave the model."""
    plan, known = store.plan(device, key), NetworkKey.parse(key)
    label = plan.details.get("label") if plan else None
    return str(replace(known, model=label or known.model, digest=""))


def _all(report: MemoryReport) -> str:
    return ("more than " if report.not_recorded else "") + format_bytes(report.total)


def _report(store: Database, device: Device, key: str) -> MemoryReport:
    """Return the memory of a plan; raises AutotuneError if the database does not tell it."""
    plan = store.plan(device, key)
    assert plan
    if WHOLE in plan.details.get("alternatives", []):
        raise AutotuneError("it runs torch's operators for the whole network, whose memory is not known here")
    network = network_text.find(store.networks(f"{NetworkKey.parse(key).model} "), key)
    if network is None:
        raise AutotuneError("it was stored without its network: tune again")
    return planned_memory(store, device, network, plan)
