"""Change a database in many ways and run the network from each changed copy.

The database must be tuned for SE-ResNet9-Fixup on this machine's CPU. Each
change is made in a copy, and a process of its own loads and runs the network
from it: one column of one row or of all rows, one bit of the file, one
binary, or, with --packed, one dictionary of binaries. The run must give the
correct result, or an error of one sentence that names the database. The exit
code is 1 in all other cases, and if a process dies.

Example:
  python tests/campaigns/tamper.py --db generated/cpu.db
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch reads it when it is imported

import torch
from rich.console import Console
from rich.table import Table

from autotune.runtime import batches
from autotune_cli.command_line import add_record, positive
from autotune_cli.main import run_program
from autotune_cli.record import one_line, provenance, write
from fused_resnet import FusedResNet
from fused_resnet.capture import capture
from fused_resnet.explain import Explanation
from fused_resnet.model_source import Captured
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import DatabaseError, Store
from tuning_db.share.pack import pack
from tuning_db.trust.binaries import zstandard

OUTCOMES = {
    "right": "the result is right, on the tuned kernels or on others",
    "refused": "one DatabaseError that names the database",
    "unclear": "another error",
    "wrong": "a wrong result",
    "dead": "the process died or hung",
}
"""Outcome -> its meaning. The last three are faults."""

KINDS = {
    "column": "one column",
    "bit": "one bit of the file",
    "binary": "one binary",
    "dictionary": "one dictionary of binaries",
}
"""Kind of a change -> its heading."""

FAULTS = ("unclear", "wrong", "dead")
TABLES = ("device", "environment", "problem", "library", "kernel", "measurement", "plan")
WHOLE = ("device", "measurement", "plan")
"""Tables whose rows are also changed all together: another row would otherwise take the place of a changed one."""

VALUES: tuple[Any, ...] = (
    None, "x", -1, 0, 2**62, 1e308, b"\x00\xff\xfe", "../../../../evil", "'; DROP TABLE kernel;--", "{}", "[]",
    '{"a": 1}', "null", '{"threads": -1}', '{"threads": 2147483648}', '{"threads": "x"}', '[{"layer": "stem.0"}]',
    "[" * 100_000, "device_image", "cudnn_plan", "cudnn", '{"weight": "kcrs"}', '{"weight": "k8"}',
)  # fmt: skip
"""Values of other types, broken JSON, JSON of another shape, names of other things, and other layouts of weights."""

BOMB_BYTES = 2**30
LIMIT = 1e-5
"""Largest relative error of a right result."""
HANG_SECONDS = 120


@dataclass(frozen=True)
class Case:
    """One change.

    Attributes:
        kind: A key of KINDS.
        name: What is changed, such as "kernel.weight_layouts".
        how: How, for the list of faults.
        change: Changes the file of a path; returns False if there was nothing to change.
    """

    kind: str
    name: str
    how: str
    change: Callable[[Path], bool]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    parser.add_argument(
        "--columns", type=positive, metavar="N", help="changes of columns, chosen at random (default all)"
    )
    parser.add_argument(
        "--bits", type=positive, default=400, metavar="N", help="changes of a bit (default %(default)s)"
    )
    parser.add_argument("--binaries", type=positive, metavar="N", help="changes of binaries, at random (default all)")
    parser.add_argument("--packed", action="store_true", help="pack the database first, as for shipping")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (default 0)")
    add_record(parser, "tamper-cpu")


def main(options: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore", message=".*is not tuned")
    rng, record = random.Random(options.seed), provenance(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder, one_thread() as threads:
        base = Path(folder) / "base.db"
        shutil.copy(options.db, base)
        batch = add_plan(base)
        if options.packed:
            pack([base], Path(folder) / "packed.db", spares=1)
            base = Path(folder) / "packed.db"
        trial = Trial(batch, threads)
        if trial.run(base) != ("right", ""):
            raise DatabaseError(f"{options.db} does not run as it is: {trial.run(base)[1]}")
        chosen = [
            *sample(list(column_changes(base, rng)), options.columns, rng),
            *(bit_change(base, rng) for _ in range(options.bits)),
            *sample(list(binary_changes(base, rng)), options.binaries, rng),
            *dictionary_changes(base, rng),
        ]
        found = []
        for number, case in enumerate(chosen):
            copy = Path(folder) / f"changed-{number}.db"
            shutil.copy(base, copy)
            if case.change(copy):
                found.append((case, *trial.run(copy)))
            copy.unlink()
    counts = {kind: Counter(outcome for case, outcome, _ in found if case.kind == kind) for kind in KINDS}
    faults = [
        {"change": f"{case.name}: {case.how}", "outcome": outcome, "error": error}
        for case, outcome, error in found
        if outcome in FAULTS
    ]
    show(counts, faults, Console())
    record |= {
        "network": f"se_resnet9_fixup n={batch}",
        "seed": options.seed,
        "outcomes": OUTCOMES,
        "counts": {kind: dict(count) for kind, count in counts.items()},
        "faults": faults,
    }
    write(record, options.out or Path("tamper-cpu.json"))
    return int(bool(faults))


def sample(cases: Sequence[Case], count: int | None, rng: random.Random) -> Sequence[Case]:
    """Return a number of cases chosen at random, in their order; all without a number."""
    if count is None or count >= len(cases):
        return cases
    return [cases[i] for i in sorted(rng.sample(range(len(cases)), count))]


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch compute on one thread in this process; yield the number of threads before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


class Trial:
    """Runs the network from databases, each time in a new process, and compares the results.

    This process must compute on one thread: the threads of OpenMP would be missing in the processes that it forks.

    Args:
        batch: The batch size.
        threads: Threads of the processes.
    """

    def __init__(self, batch: int, threads: int) -> None:
        self._threads = threads
        self._source = Captured(se_resnet9_fixup.randomize(se_resnet9_fixup.build(), 0))
        self._x = torch.randn(batch, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        values = in_child(self._expected)
        assert isinstance(values, list), values
        self._wanted = torch.tensor(values, dtype=torch.float64)

    def run(self, path: Path) -> tuple[str, str]:
        """Return the outcome of a database, and the error."""
        answer = in_child(lambda: self._observe(path))
        return ("dead", answer) if isinstance(answer, str) else (answer[0], answer[1])

    def _expected(self) -> list[float]:
        torch.set_num_threads(self._threads)
        with torch.no_grad():
            return [float(value) for value in self._source.module.eval().double()(self._x.double()).flatten()]

    def _observe(self, path: Path) -> list[str]:
        torch.set_num_threads(self._threads)
        try:
            network = FusedResNet(path, self._source)
            y = network(self._x).double().flatten()
            explained: Explanation = network.explain(self._x)
            str(explained)
        except DatabaseError as error:
            return ["refused" if str(path) in str(error) else "unclear", f"DatabaseError: {error}"]
        except Exception as error:
            return ["unclear", one_line(error)[:200]]
        difference = float((y - self._wanted).norm() / self._wanted.norm())
        return ["right", ""] if difference < LIMIT else ["wrong", f"relative error {difference:.1e}"]


def in_child(work: Callable[[], list[Any]]) -> list[Any] | str:
    """Return what a function returns in a forked process, or how the process ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            signal.alarm(HANG_SECONDS)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with os.fdopen(writing, "w") as file:
                json.dump(work(), file)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        answer: list[Any] = json.loads(text)
        return answer
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def add_plan(path: Path) -> int:
    """Add a plan of the fastest kernels of ours, and return its batch size: one that the layers are tuned for."""
    with Store.create(path) as store:
        [device] = store.devices()
        one = capture(se_resnet9_fixup.build(), (1, 3, 64, 64), "f32")
        tuned = batches(store, one.layers[0].problem)
        if not tuned:
            raise DatabaseError(f"{path} is not tuned for se_resnet9_fixup: autotune tune --arch cpu --db {path}")
        network, choices, total_us = one.with_batch(tuned[0]), [], 0.0
        for layer in network.layers:
            ranking = store.ranking(device, str(layer.problem))
            best = next((row for row in ranking if row.kernel.library), ranking[0])
            choice = {"layer": layer.name, "kernel": best.kernel_id, "launch": best.launch, "us": best.median_us}
            choices.append({**choice, "overlap": False})
            total_us += best.median_us or 0.0
        times = {"median_us": total_us, "spread_us": 0.1}
        store.put_plan(device_id=device.id, network=network.key, choices=choices, details={"alternatives": []}, **times)
    return tuned[0]


def column_changes(base: Path, rng: random.Random) -> Iterator[Case]:
    """Yield changes of each column of a row that running reads: to VALUES, and to values of other rows."""
    with closing(sqlite3.connect(base)) as connection:
        for table, row in used_rows(connection).items():
            columns = [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
            for column in columns:
                others = connection.execute(
                    f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT "
                    f"(SELECT {column} FROM {table} WHERE id = {row})"
                ).fetchall()
                values = [*VALUES, *(value for (value,) in rng.sample(others, min(3, len(others))))]
                for value in values:
                    yield Case("column", f"{table}.{column}", repr(value)[:60], update(table, column, value, row))
                    if table in WHOLE and column != "id":
                        yield Case(
                            "column", f"{table}.{column}", f"{value!r:.60} in all rows", update(table, column, value)
                        )


def used_rows(connection: sqlite3.Connection) -> dict[str, int]:
    """Return for each table the id of a row that running reads: those of a layer that runs on a kernel of ours."""
    [(plan, choices)] = connection.execute("SELECT id, choices FROM plan")
    query = """
        SELECT m.device_id, coalesce(m.environment_id, 1), m.problem_id, k.library_id, k.id, m.id
        FROM measurement m JOIN kernel k ON k.id = m.kernel_id
        WHERE k.id = ? AND k.library_id NOT NULL AND k.weight_layouts <> '{}' AND m.status = 'ok'
        ORDER BY m.final DESC"""
    numbers = (choice["kernel"] for choice in json.loads(choices))
    row = next(found for number in numbers if (found := connection.execute(query, [number]).fetchone()))
    return dict(zip(TABLES, [*row, plan], strict=True))


def update(table: str, column: str, value: object, row: int | None = None) -> Callable[[Path], bool]:
    """Return a change of a column of one row or of all, whatever the schema allows there."""

    def change(path: Path) -> bool:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            loose = "replace(replace(sql, 'NOT NULL', ''), 'VARCHAR', 'BLOB')"
            connection.execute(f"UPDATE sqlite_master SET sql = {loose} WHERE type = 'table'")
            connection.execute("PRAGMA schema_version = 12345")
            connection.commit()
        with closing(sqlite3.connect(path)) as connection:
            where = "" if row is None else f" WHERE id = {row}"
            try:
                done = connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{where}", [value])
            except (sqlite3.Error, OverflowError):
                return False  # an id must be an integer
            connection.commit()
            return done.rowcount > 0

    return change


def bit_change(base: Path, rng: random.Random) -> Case:
    """Return the change of a random bit of the file."""
    at, bit = rng.randrange(base.stat().st_size), rng.randrange(8)

    def change(path: Path) -> bool:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0] ^ 1 << bit
            file.seek(at)
            file.write(bytes([byte]))
        return True

    return Case("bit", f"byte {at}", f"bit {bit}", change)


def binary_changes(base: Path, rng: random.Random) -> Iterator[Case]:
    """Yield changes of the binary of a kernel that runs: damage, and blobs that unpack to a gigabyte."""
    with Store.open(base) as store, closing(sqlite3.connect(base)) as connection:
        used = used_rows(connection)
        library = used["library"]
        [(blob, size)] = connection.execute("SELECT blob, size FROM library WHERE id = ?", [library])
        row = store.kernel(used["kernel"]).library
        assert row  # a kernel of ours
        binary = store.binary(row)
        packed = bool(_dictionaries(connection))
    bomb, digest_of_bomb = _bomb(packed)
    for how, columns in {
        "a bit of the blob": {"blob": _flipped(blob, rng)},
        "the half of the blob": {"blob": blob[: len(blob) // 2]},
        "an empty blob": {"blob": b""},
        "a blob that is not compressed": {"blob": b"hello" * 20},
        "a bit of the binary, with its digest": _binary(_flipped(binary, rng), packed),
        "the half of the binary, with its digest and size": _binary(binary[: len(binary) // 2], packed),
        "a blob that unpacks to a gigabyte": {"blob": bomb},
        "a blob that unpacks to a gigabyte, with its digest": {"blob": bomb, "digest": digest_of_bomb},
        "a blob that unpacks to a gigabyte, with its digest and size": {
            "blob": bomb,
            "digest": digest_of_bomb,
            "size": BOMB_BYTES,
        },
        "another size": {"size": size + 1},
    }.items():
        yield Case("binary", f"library {library}", how, _several("library", library, columns))


def dictionary_changes(base: Path, rng: random.Random) -> Iterator[Case]:
    """Yield changes of the dictionary that the binary of a kernel that runs is packed with; none without one."""
    with closing(sqlite3.connect(base)) as connection:
        known = _dictionaries(connection)
        [(blob,)] = connection.execute("SELECT blob FROM library WHERE id = ?", [used_rows(connection)["library"]])
    if not known:
        return
    zstd = zstandard(str(base))
    number = zstd.get_frame_info(blob).dictionary_id
    size, own = known[number]
    content = zstd.decompress(own)
    other = next(row for one, row in known.items() if one != number)
    for how, columns in {
        "a bit of the blob": {"blob": _flipped(own, rng)},
        "the half of the blob": {"blob": own[: len(own) // 2]},
        "an empty blob": {"blob": b""},
        "a blob that is not compressed": {"blob": content},
        "a bit of the dictionary": {"blob": zstd.compress(_flipped(content, rng))},
        "the half of the dictionary, with its size": _dictionary_row(content[: size // 2], zstd),
        "another dictionary": {"size": other[0], "blob": other[1]},
        "a blob that unpacks to a gigabyte": {"blob": _bomb(packed=True)[0]},
        "a blob that unpacks to a gigabyte, with its size": {"blob": _bomb(packed=True)[0], "size": BOMB_BYTES},
        "another size": {"size": size + 1},
        "another id": {"id": number + 1},
    }.items():
        yield Case("dictionary", f"dictionary {number}", how, _several("dictionary", number, columns))


def _dictionaries(connection: sqlite3.Connection) -> dict[int, tuple[int, bytes]]:
    """Return size and blob of each dictionary, by its id."""
    return {number: (size, blob) for number, size, blob in connection.execute("SELECT id, size, blob FROM dictionary")}


def _dictionary_row(content: bytes, zstd: Any) -> dict[str, Any]:
    return {"blob": zstd.compress(content), "size": len(content)}


def _several(table: str, row: int, columns: dict[str, Any]) -> Callable[[Path], bool]:
    changes = [update(table, column, value, row) for column, value in columns.items()]
    return lambda path: all(change(path) for change in changes)


def _binary(binary: bytes, packed: bool) -> dict[str, Any]:
    blob = zstandard("").compress(binary) if packed else zlib.compress(binary)
    return {"blob": blob, "digest": hashlib.sha256(binary).hexdigest(), "size": len(binary)}


def _flipped(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _bomb(packed: bool) -> tuple[bytes, str]:
    """Return a small blob that unpacks to BOMB_BYTES zeros, and their digest."""
    packer = zstandard("").ZstdCompressor() if packed else zlib.compressobj(9)
    digest, zeros, parts = hashlib.sha256(), bytes(2**20), []
    for _ in range(BOMB_BYTES // len(zeros)):
        parts.append(packer.compress(zeros))
        digest.update(zeros)
    return b"".join([*parts, packer.flush()]), digest.hexdigest()


def show(counts: dict[str, Counter[str]], faults: Sequence[dict[str, str]], console: Console) -> None:
    """Print the number of changes by kind and outcome, and the faults."""
    table = Table(box=None, header_style="bold")
    for name in ("change of", "changes", *OUTCOMES):
        table.add_column(name, justify="left" if name == "change of" else "right")
    for kind, count in counts.items():
        table.add_row(KINDS[kind], str(count.total()), *(str(count[outcome]) for outcome in OUTCOMES))
    console.print(table)
    for fault in faults[:20]:
        line = f"{fault['outcome']}: {fault['change']}: {fault['error']}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
