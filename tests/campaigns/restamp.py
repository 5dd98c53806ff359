"""Renew the source digests of kernels whose machine code is unchanged.

A kernel is reused only while the digest of its template and headers is the one
in the database. After a refactoring of templates this command compiles each
kernel whose digest differs from today's templates and compares the instructions
and resources of the kernel function with the stored binary. If they are
identical the row gets today's digest; otherwise the kernel is listed. The code
of `prepare`, which computes launches, is not compared. No GPU is needed. A
kernel of nvcc is compared with what nvcc compiles, and one of NVRTC with NVRTC.

With --replace a kernel with other machine code gets the new binary. Its times
are those of the old one: compare the networks that run it on a GPU before and
after (compare_checkouts.py).

Example:
  python tests/campaigns/restamp.py --dry-run tuning_db/se_resnet9_fixup_h200.db
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import sqlalchemy as sa
from machine_code import machine_code
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from autotune.codegen import rendering
from autotune.codegen.build_queue import build
from autotune.codegen.translation_units import CUDA_COMPILER, Built
from autotune.core import AutotuneError, paths
from autotune.families import Kernel, families
from autotune.tuner import kernel_of
from autotune_cli.command_line import add_jobs, database
from autotune_cli.main import run_program
from autotune_cli.record import one_line
from tuning_db import Store
from tuning_db.schema import KernelRow, Library, columns
from tuning_db.trust import digests

OUTCOMES = {
    "current": "the digest is today's already",
    "identical": "other digest, identical machine code: the digest is renewed",
    "changed": "other machine code",
    "not buildable": "unknown to today's families, or does not compile",
    "duplicate": "identical, but another row has today's digest",
}
"""Outcome of a row -> its meaning."""
KEY = ("family", "config", "dtype", "epilogue", "target")
"""The columns that identify a kernel together with `source`."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a row.

    digest: The one to store, for "identical" and "changed".
    built: What was compiled, for "changed".
    """

    row: KernelRow
    outcome: str
    reason: str = ""
    digest: str = ""
    built: Built | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("databases", nargs="+", type=database, metavar="DB", help="a database")
    parser.add_argument("--dry-run", action="store_true", help="compare and list; write nothing")
    parser.add_argument("--replace", action="store_true", help="store the new binaries of kernels that have changed")
    add_jobs(parser)


def main(args: argparse.Namespace) -> int:
    console = Console()
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    for place in args.databases:
        with Store.open(place) if args.dry_run else Store.create(existing(place)) as store:
            findings = [*compare(store, args.jobs, console)]
            if not args.dry_run:
                findings = [*renew(store, findings)]
                if args.replace:
                    replace_binaries(store, findings)
            show(findings, store.name, console)
    return 0


def existing(place: Path | str) -> Path | str:
    """Return the place of a database; raises DatabaseError if there is none."""
    Store.open(place).close()
    return place


def compare(store: Store, jobs: int, console: Console) -> Iterator[Finding]:
    """Yield the outcome of each kernel of a device image."""
    stale: dict[Kernel, list[tuple[KernelRow, str]]] = {}
    for row in device_kernels(store):
        kernel = kernel_of(row)
        if kernel is None:
            yield Finding(row, "not buildable", "today's families have no such kernel")
            continue
        try:
            digest = rendering.source_digest(kernel)
        except AutotuneError as error:
            yield Finding(row, "not buildable", one_line(error))
            continue
        if digest == row.source:
            yield Finding(row, "current")
        else:
            stale.setdefault(kernel, []).append((row, digest))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"compiling {len(stale)} kernels", total=len(stale))
        alike: dict[tuple[str, str], list[Kernel]] = {}
        for kernel, rows in stale.items():
            alike.setdefault((kernel.target, compiler_of(rows[0][0])), []).append(kernel)
        for (_, compiler), kernels in alike.items():
            os.environ[CUDA_COMPILER] = compiler
            for built in build(kernels, jobs):
                progress.advance(task, len(built.unit.kernels))
                image = built.path.read_bytes() if built.path else None
                for kernel in built.unit.kernels:
                    for row, digest in stale[kernel]:
                        if image is None:
                            yield Finding(row, "not buildable", one_line(built.error))
                        else:
                            found = compared(store, row, image, rendering.symbol(kernel), digest)
                            yield replace(found, built=built) if found.outcome == "changed" else found


def compiler_of(row: KernelRow) -> str:
    """Return the name of the compiler that made a kernel's binary: nvcc or nvrtc."""
    assert row.library
    return row.library.compiler.partition(" ")[0]


def device_kernels(store: Store) -> list[KernelRow]:
    """Return the kernels of a database that were compiled to device images."""
    query = sa.select(KernelRow.target).join(Library).where(Library.kind == "device_image").distinct()
    with store.reading() as session:
        targets = sorted(session.scalars(query))
    rows = [row for target in targets for row in store.kernels(target)]
    return [row for row in rows if row.library and row.library.kind == "device_image"]


def compared(store: Store, row: KernelRow, image: bytes, symbol: str, digest: str) -> Finding:
    """Return the outcome of a row whose kernel was compiled anew as `symbol` of a device image."""
    assert row.library
    old, new = machine_code(store.binary(row.library), row.symbol), machine_code(image, symbol)
    if old is None or new is None:
        return Finding(row, "changed", f"the {'new' if old else 'stored'} binary has no function of this name", digest)
    if count := old.differing(new):
        of_all = max(len(old.instructions), len(new.instructions))
        return Finding(row, "changed", f"{count} of {of_all} instructions differ", digest)
    if old.resources != new.resources:
        names = old.resources.keys() | new.resources.keys()
        different = sorted(name for name in names if old.resources.get(name) != new.resources.get(name))
        return Finding(row, "changed", f"equal instructions, but other resources: {', '.join(different)}", digest)
    return Finding(row, "identical", digest=digest)


def renew(store: Store, findings: list[Finding]) -> Iterator[Finding]:
    """Store today's digest of identical kernels, in one transaction; a row that would repeat another stays."""
    done: list[Finding] = []
    with store.writing() as session:
        for finding in findings:
            if finding.outcome == "identical":
                if repeats(store, finding):
                    finding = Finding(finding.row, "duplicate", "another row has today's digest")  # noqa: PLW2901
                else:
                    session.execute(
                        sa.update(KernelRow).where(KernelRow.id == finding.row.id).values(source=finding.digest)
                    )
            done.append(finding)
    yield from done


def replace_binaries(store: Store, findings: Iterable[Finding]) -> None:
    """Let the rows of kernels that have changed refer to what was compiled; a row that would repeat another stays."""
    for finding in findings:
        built, old = finding.built, finding.row.library
        if built is None or built.path is None or old is None or repeats(store, finding):
            continue
        tools = built.unit.toolchain
        library = store.put_library(
            built.path.read_bytes(),
            kind=old.kind,
            target=old.target,
            abi_version=old.abi_version,
            compiler=tools.compiler,
            flags=tools.flags,
            cutlass=paths.cutlass_version(),
        )
        with store.writing() as session:
            row = session.get_one(KernelRow, finding.row.id)
            kernel = kernel_of(row)
            assert kernel
            row.source, row.symbol, row.library_id = finding.digest, rendering.symbol(kernel), library.id
            row.digest = digests.kernel(columns(row), columns(library))


def repeats(store: Store, finding: Finding) -> bool:
    """Return whether another row is the same kernel of today's source."""
    key = {name: getattr(finding.row, name) for name in KEY}
    with store.reading() as session:
        return session.scalars(sa.select(KernelRow.id).filter_by(**key, source=finding.digest)).first() is not None


def show(findings: list[Finding], name: str, console: Console) -> None:
    """Print a table with a row for each family, and below it the kernels that could not be renewed."""
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        counts.setdefault(finding.row.family, Counter())[finding.outcome] += 1
    table = Table(title=name, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("family")
    for heading in ("kernels", *OUTCOMES):
        table.add_column(heading.replace(" ", "\n"), justify="right")
    rows = [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]
    for family, count in rows:
        table.add_row(family, str(count.total()), *(str(count[outcome]) for outcome in OUTCOMES))
    console.print(table)
    for outcome in ("changed", "not buildable", "duplicate"):
        for finding in findings:
            if finding.outcome == outcome:
                row = finding.row
                kernel = f"{row.family} {row.config} {row.dtype} {row.epilogue} {row.target}"
                console.print(f"{outcome}: {kernel}: {finding.reason}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
