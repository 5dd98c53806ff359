"""Runs `autotune db`, whose options and description are in arguments/db.py."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.codegen import KernelResources
from autotune.core import AutotuneError, device_name, flop_unit, format_bytes, software
from autotune.families import families
from autotune.ir import parse
from autotune.report import StoredResources
from autotune.tuner import DEFAULT_OBJECTIVES, format_config, layer_winners, optuna_export
from autotune_cli.command_line import torch_device
from autotune_cli.tables import winners
from tuning_db import DatabaseError, Reader, Store, evidence, remote
from tuning_db.location import SCHEMA_VERSION, Location, check, file_of, is_address, is_remote
from tuning_db.schema import Measurement
from tuning_db.share import diff, json_export
from tuning_db.share.merge import Outcome
from tuning_db.share.pack import merge, new_database, pack
from tuning_db.share.snapshot import read
from tuning_db.share.sync import Moved, Sync
from tuning_db.trust import signature


def info(store: Store, console: Console) -> None:
    file = Path(store.name)
    size = f", {format_bytes(file.stat().st_size)}" if file.is_file() else ""
    console.print(f"{store.name}: schema {SCHEMA_VERSION}{size}", highlight=False)
    for kept in store.extracts():
        console.print(kept, highlight=False, markup=False)
    for device in store.devices():
        console.print(f"device: {device.name} ({device.target})", highlight=False)
        rate = flop_unit(device.flops_per_us).text(device.flops_per_us)
        rates = f"{rate}, {device.bytes_per_us / 1e3:.4g} GB/s measured"
        console.print(f"        {rates}; {device.details}", highlight=False)
    if found := verified(store):
        console.print(found, highlight=False)
    for environment in store.environments():
        software = ", ".join(f"{name} {version}" for name, version in json.loads(environment.software).items())
        console.print(f"measured with: {software}", highlight=False)
    table = Table(box=None, show_header=False)
    for name, count in store.counts().items():
        table.add_row(name, str(count))
    console.print(table)


def verified(store: Store) -> str:
    """Return how many plans for this device `autotune verify` found right with this software; empty without plans."""
    here = torch_device("auto")
    row = store.device(device_name(here))
    newest = {plan.network: plan for plan in store.plans() if row and plan.device_id == row.id}
    checks = [evidence.last(plan.digest or "", device=device_name(here), **software(here)) for plan in newest.values()]
    right = sum(check is not None and check.status in (evidence.RIGHT, evidence.DRIFTED) for check in checks)
    return f"plans for this device verified with this driver, torch and cuDNN: {right} of {len(checks)}" * bool(checks)


def best(store: Store, console: Console) -> None:
    problems = []
    for row in store.problems():
        try:
            problems.append(parse(row.text))
        except AutotuneError as error:
            console.print(f"{row.text}\n  left out: {error}", highlight=False, markup=False)
    for device in store.devices():
        named = [(str(getattr(problem, "n", "")), problem) for problem in problems]
        console.print(winners(list(layer_winners(store, device, named)), device.name, "n"))
    if not store.devices():
        console.print("Nothing was timed yet: run autotune tune with this database on the machine that has the device.")


def listing(store: Store, console: Console, most: int) -> None:
    resources = StoredResources(store)
    for device in store.devices():
        for row in store.problems():
            measurements = store.measurements(device, row.text)
            if not measurements:
                continue
            console.print(f"[bold]{escape(_short_name(row.text))}[/]  {escape(row.text)}", highlight=False)
            for measurement in measurements[:most]:
                time = f"{measurement.median_us:9.2f} us" if measurement.median_us else f"{measurement.status:>12}"
                mark = "final" if measurement.final else escape(measurement.error or "")
                needs = _needs(resources.of(measurement.kernel))
                console.print(f"  {time}  {escape(format_config(measurement))}{needs}  {mark}", highlight=False)


def _needs(resources: KernelResources | None) -> str:
    """Return a kernel's registers and spilled bytes as text; empty if they are not known."""
    if not resources:
        return ""
    spills = f", {resources.spill_bytes} B of spills" if resources.spill_bytes else ""
    return f"  {resources.registers} registers{spills}"


def export(store: Store, path: Path, to_optuna: bool, objectives: Sequence[str], console: Console) -> None:
    if to_optuna:
        with Console(stderr=True).status("reading the database") as status:
            optuna_export.export(
                store, path, lambda done, of: status.update(f"{done} of {of} studies written"), objectives
            )
    else:
        json_export.export(store, path)
    console.print(f"{path}: {format_bytes(path.stat().st_size)}", highlight=False)


def compare(store: Store, other: Store, console: Console) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in ("only in the first", "in both", "only in the second"):
        table.add_column(name, justify="right")
    for name, count in diff.counts(read(store), read(other)).items():
        table.add_row(name, str(count.first), str(count.both), str(count.second))
    console.print(table)
    for device, problem, mine, its in diff.winners(store, other):
        about = f"[bold]{escape(_short_name(problem))}[/] on {escape(device)}: {escape(problem)}"
        console.print(f"\n{about}", highlight=False)
        for at, winner in (("first", mine), ("second", its)):
            console.print(f"  {at:>6}  {_winner(winner)}", highlight=False)


def show_outcome(outcome: Outcome, place: Location, console: Console) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("", "added", "already known"):
        table.add_column(name, justify="right" if name else "left")
    for name in outcome.added | outcome.known:
        table.add_row(name, str(outcome.added[name]), str(outcome.known[name]))
    console.print(table)
    for kernel in outcome.others:
        console.print(
            f"kept beside a kernel that was compiled with other sources or another compiler: {kernel}",
            highlight=False,
            markup=False,
        )
    console.print(f"database {place}", highlight=False)


def synchronize(sync: Sync, every: float, once: bool, console: Console) -> None:
    """Keep two databases in step until a signal ends the command, or for one pass.

    Raises:
        DatabaseError: With `once`, the pass failed. Otherwise a failure is printed, and the next pass tries again.
    """
    failure = ""
    while True:
        started = time.monotonic()
        try:
            moved, now = sync.run_pass(), ""
            if moved.any:
                _say(console, f"{_moved(sync, moved)} ({time.monotonic() - started:.1f} s)")
        except DatabaseError as error:
            if once:
                raise
            now = str(error)
            if now != failure:  # a server that is down for an hour is one line
                _say(console, f"{now}; tried again every {every:g} s")
        failure = now
        if once:
            return
        time.sleep(every)


def _moved(sync: Sync, moved: Moved) -> str:
    return ", ".join(
        f"{count} row{'s' * (count != 1)} to {name}"
        for name, count in zip(sync.names, (moved.to_first, moved.to_second), strict=True)
    )


def _say(console: Console, text: str) -> None:
    console.print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}", highlight=False, markup=False, soft_wrap=True)


def sign(place: Location, key_file: Path, console: Console) -> None:
    key = signature.private_key(key_file)
    if is_remote(place):
        raise remote.refused(place)
    path = _file(place)
    with Store.create(path) as store:
        with Reader(path) as reader:
            reader.check_all()
            public, value = signature.sign(reader.content(), key)
        store.put_signature(public, value)
    console.print(f"{path}: signed by {public}", highlight=False, soft_wrap=True)


def verify(place: Location, keys: Sequence[str], console: Console) -> None:
    trusted = signature.public_keys(keys)
    name = remote.name_of(place) if is_remote(place) else str(place)
    with Reader(_file(place), trusted, name) as reader:
        counts = reader.check_all()
    rows = ", ".join(f"{table} {count}" for table, count in counts.items())
    signed = "signed by a key that you trust" if trusted else "no key was given, so no signature was checked"
    console.print(f"{name}: all rows are as they were stored ({rows}); {signed}", highlight=False, soft_wrap=True)


def _file(place: Location) -> Path:
    """Return the path of a database; raises DatabaseError for a server's, and if there is none."""
    if is_address(place):
        raise DatabaseError(f"{Store.open(place).name} is on a server: sign a file of `autotune db pack`")
    path = file_of(place)
    check(path)
    return path


def _winner(row: Measurement | None) -> str:
    return f"{row.median_us:9.2f} us  {escape(format_config(row))}" if row else "not timed"


def _short_name(problem: str) -> str:
    """Return a short text for a problem; its operator alone if an epilogue step is not defined here."""
    try:
        return parse(problem).short_name
    except AutotuneError:
        return problem.split(maxsplit=1)[0]


def main(args: argparse.Namespace) -> None:
    console = Console()
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    if args.command == "pack":
        pack(args.dbs, args.out, None if args.all else args.spares)
        console.print(f"{args.out}: {format_bytes(args.out.stat().st_size)}", highlight=False)
    elif args.command == "merge":
        show_outcome(merge(args.dbs, args.out), args.out, console)
    elif args.command == "sync":
        synchronize(Sync(args.db, args.other), args.every, args.once, console)
    elif args.command == "keygen":
        console.print(f"public key: {signature.generate(args.file)}", highlight=False, soft_wrap=True)
    elif args.command == "sign":
        sign(args.db, args.key, console)
    elif args.command == "verify":
        verify(args.db, args.key, console)
    elif args.command == "import":
        is_new = isinstance(args.db, Path) and not args.db.exists()
        with new_database(args.db) if is_new else Store.create(args.db) as store:
            show_outcome(json_export.import_(args.file, store), args.db if is_new else store.name, console)
    else:
        show(args, console)


def show(args: argparse.Namespace, console: Console) -> None:
    """Run a command that only reads one or two databases."""
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(args.db))
        match args.command:
            case "info":
                info(store, console)
            case "best":
                best(store, console)
            case "list":
                listing(store, console, args.most)
            case "export":
                if args.objective and not args.optuna:
                    raise AutotuneError("--objective is an option of --optuna: JSON holds all that was measured")
                objectives = tuple(dict.fromkeys(args.objective or DEFAULT_OBJECTIVES))
                export(store, args.file, args.optuna, objectives, console)
            case "diff":
                compare(store, stack.enter_context(Store.open(args.other)), console)
