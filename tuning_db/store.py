"""Opens a tuning database for reading and writing, with SQLAlchemy.

A process claims the kernels that it tries, so that no other one tries them. On one machine it depends on no clock
whether the owner of a claim still runs. The start of a process is read in ticks since boot, from /proc/PID/stat
(proc_pid_stat(5)). psutil gives it only as a time of day, which changes when the clock is set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tuning_db import queries, remote
from tuning_db.errors import DatabaseError, explained
from tuning_db.location import Location, is_address, is_remote
from tuning_db.queries import WRITING, Queries
from tuning_db.schema import (
    RATES,
    Base,
    Claim,
    Device,
    Environment,
    KernelRow,
    Library,
    NetworkRow,
    PlanRow,
    ProblemRow,
    Signature,
    columns,
)
from tuning_db.trust import digests
from tuning_db.trust.binaries import compress, digest_of
from tuning_db.trust.digests import launch_text

LEASE = 1500.0
"""Seconds for which a claim of a process on another machine counts: longer than any trial takes. Inductor may compile a
network for 1200 seconds."""

_STATE, _START_TIME = 0, 19
"""Positions in /proc/PID/stat behind the command: fields 3 (state) and 22 (starttime)."""

CLAIMS = 8
"""Most claims of one process: the trial that is measured, and those that are queued behind it."""

Row = TypeVar("Row", bound=Base)


def _of_one(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a query for columns of the rows of one device, problem and kernel, which are bound when it runs."""
    keys = ("device_id", "problem_id", "kernel_id")
    return sa.select(*columns).where(*(table.c[key] == sa.bindparam(key) for key in keys))


# Written for every trial, and therefore as rows instead of ORM objects: that takes half the time.
_TRIALS, _CLAIMS = Base.metadata.tables["measurement"], Base.metadata.tables["claim"]
_ADD_TRIAL = sa.insert(_TRIALS)
_MEASURED = (
    sa.select(
        Device.name.label("device_name"),
        Device.target.label("device_target"),
        ProblemRow.text.label("problem"),
        *(getattr(KernelRow, name) for name in digests.KERNEL),
    )
    .select_from(
        sa.join(Device, ProblemRow, Device.id == sa.bindparam("device_id")).join(
            KernelRow, ProblemRow.id == sa.bindparam("problem_id")
        )
    )
    .where(KernelRow.id == sa.bindparam("kernel_id"))
)
_TRIED = _of_one(_TRIALS, _TRIALS.c.launch).where(~_TRIALS.c.final)
_CLAIMED = _of_one(_CLAIMS, _CLAIMS.c.owner, _CLAIMS.c.since)


class Store(Queries):
    """One database. Use it as a context manager.

    `Store.create(where)` opens it for tuning and makes it if it is missing. `Store.open(where)` opens it for reading
    only, also from a read-only folder. Every write is committed when its method returns. All methods raise
    DatabaseError if the database cannot be read or written.
    """

    def __init__(
        self,
        name: str,
        where: Location,
        engine: sa.Engine,
        close: Callable[[sa.Engine], None] | None,
        path: Path | None = None,
    ) -> None:
        super().__init__(name, engine, path)
        self.where, self._close = where, close
        self._claims = 0
        self._environment: int | None = None
        self._problems: dict[str, ProblemRow] = {}
        self._measured: tuple[tuple[int, int, int], dict[str, Any]] | None = None
        self._writer = engine.execution_options(**{WRITING: True})

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, where: Location) -> Store:
        """Open a database for reading and writing, and make it if it is missing.

        Raises:
            DatabaseError: If it is no tuning database, has a newer schema, is corrupted or cannot be written.
        """
        if is_remote(where):
            raise remote.refused(where)
        if is_address(where):
            from tuning_db import postgres_backend

            engine = postgres_backend.engine_to_write(where, WRITING)
            return cls(postgres_backend.name_of(where), where, engine, sa.Engine.dispose)
        path = Path(where)
        return cls(str(where), where, queries.engine_to_write(path, WRITING), queries.close_writer, path)

    @classmethod
    def open(cls, where: Location) -> Store:
        """Open a database for reading only; raises DatabaseError if there is none or it cannot be read."""
        if is_remote(where):
            path = remote.fetched(where)
            return cls(remote.name_of(where), where, queries.engine_to_read(path), None, path)
        if is_address(where):
            from tuning_db import postgres_backend

            return cls(postgres_backend.name_of(where), where, postgres_backend.engine_to_read(where), None)
        return cls(str(where), where, queries.engine_to_read(Path(where)), None, Path(where))

    def close(self) -> None:
        """Close the database. A file is left as one file that can be copied, unless others still write it."""
        if self._claims:
            with suppress(DatabaseError), self.writing():
                self.session.execute(sa.delete(Claim).where(Claim.owner.in_(map(claim_owner, range(CLAIMS)))))
        self.session.close()
        (self._close or sa.Engine.dispose)(self._engine)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def put_device(self, name: str, target: str, **values: Any) -> Device:
        """Return the device of a name; add it if it is new, else keep the higher rates.

        Rates that were measured beside other work are too low.

        Args:
            name: Name of the device.
            target: The newest code it runs.
            values: flops_per_us, bytes_per_us, details.
        """
        with self.writing():
            row = self._found_or_added(Device, {"name": name}, {"target": target, **values})
            for rate in RATES:
                if values[rate] > getattr(row, rate):
                    setattr(row, rate, values[rate])
        return row

    def put_environment(self, software: Mapping[str, Any]) -> Environment:
        """Return the row of the software in use; add it if it is new. Later measurements refer to it."""
        row = self._find_or_add(Environment, {"software": json.dumps(software, sort_keys=True)}, {})
        self._environment = row.id
        return row

    def put_problem(self, text: str) -> ProblemRow:
        """Return the problem of a text; add it if it is new."""
        if text not in self._problems:
            operator = text.split(maxsplit=1)[0]
            self._problems[text] = self._find_or_add(ProblemRow, {"text": text}, {"operator": operator})
        return self._problems[text]

    def put_kernel(self, identity: dict[str, str], **values: Any) -> KernelRow:
        """Return the kernel of an identity; add it if it is new.

        Args:
            identity: family, config, dtype, epilogue, target and source.
            values: symbol, weight_layouts, launch_names, library_id, error. A kernel that had failed to compile gets
                the new values.
        """
        return self.put_kernels([(identity, values)])[0]

    def put_kernels(self, kernels: Sequence[tuple[dict[str, str], dict[str, Any]]]) -> list[KernelRow]:
        """Do `put_kernel` for several pairs of identity and values, in one transaction."""
        with self.writing():
            rows = [self._found_or_added(KernelRow, identity, values) for identity, values in kernels]
            for row, (_, values) in zip(rows, kernels, strict=True):
                if row.error and not values.get("error"):
                    row.error, row.library_id = None, values.get("library_id")
                if not row.launch_names:  # a kernel that had failed to compile
                    row.launch_names = values.get("launch_names", [])
                library = self.session.get(Library, row.library_id) if row.library_id else None
                row.digest = digests.kernel(columns(row), columns(library) if library else None)
        return rows

    def put_library(self, binary: bytes, **values: Any) -> Library:
        """Return the row of a binary; store it if it is new.

        Args:
            binary: A device image or a shared library.
            values: kind, target, compiler, flags, cutlass, abi_version.
        """
        digest = digest_of(binary)
        with self.reading():
            known = self.session.scalars(sa.select(Library).filter_by(digest=digest)).one_or_none()
        if known:
            return known
        blob = compress(binary)  # outside the transaction: others should not wait for it
        return self._find_or_add(Library, {"digest": digest}, {**values, "size": len(binary), "blob": blob})

    def put_measurement(self, **values: Any) -> int:
        """Add a measurement and return its id; values are the columns of `Measurement`."""
        with self._rows() as connection:
            of = values["device_id"], values["problem_id"], values["kernel_id"]
            if self._measured is None or self._measured[0] != of:  # the launch values of a kernel follow each other
                self._measured = of, dict(connection.execute(_MEASURED, values).mappings().one())
            names = self._measured[1]
            device = {"name": names["device_name"], "target": names["device_target"]}
            digest = digests.measurement(values, device, names["problem"], names)
            made = connection.execute(_ADD_TRIAL, {**values, "digest": digest, **self._now()})
        assert made.inserted_primary_key
        return int(made.inserted_primary_key[0])

    def put_plan(self, **values: Any) -> PlanRow:
        """Add a plan; values are the columns of `PlanRow`."""
        return self.replace_plan(None, **values)

    def replace_plan(self, old: PlanRow | None, /, **values: Any) -> PlanRow:
        """Add a plan, and remove an older one in the same transaction; values are the columns of `PlanRow`."""
        row = PlanRow(**values, **self._now())
        with self.writing() as session:
            device = session.get_one(Device, row.device_id)
            kernels = {choice["kernel"]: session.get_one(KernelRow, choice["kernel"]) for choice in row.choices}
            named = {number: columns(kernel) for number, kernel in kernels.items()}
            row.digest = digests.plan(values, columns(device), named)
            session.add(row)
            if old:
                session.flush()  # first the new row, so that its id is the larger one
                session.delete(old)
        return row

    def put_network(self, key: str, text: str) -> NetworkRow:
        """Return the row of a network's key and text; add it if it is new."""
        values = {"key": key, "body": digests.packed(text)}
        return self._find_or_add(NetworkRow, {"digest": digests.network(values)}, values)

    def put_signature(self, key: str, value: str) -> None:
        """Store a signature, both in base64; it replaces an older one of the key. Call it last: it covers all rows."""
        with self.writing() as session:
            session.merge(Signature(key=key, value=value))

    def claim(
        self, device: Device, problem: str, kernel: KernelRow, launches: Sequence[Mapping[str, int]]
    ) -> list[Mapping[str, int]] | None:
        """Claim a kernel on a problem for this process.

        A process holds at most CLAIMS claims; the next one replaces the oldest. Claims of processes that have ended do
        not count.

        Args:
            device: The device that is tuned for.
            problem: Text of the problem.
            kernel: The kernel to try.
            launches: Launch values to try.

        Returns:
            The launch values that were not tried yet; None if another process tries this kernel now.
        """
        mine = {"device_id": device.id, "problem_id": self.put_problem(problem).id, "kernel_id": kernel.id}
        with self._rows() as connection:
            tried = {launch_text(launch) for launch in connection.scalars(_TRIED, mine)}
            left = [launch for launch in launches if launch_text(launch) not in tried]
            if not left:
                return left
            rivals = [row for row in connection.execute(_CLAIMED, mine) if not is_own(row.owner)]
            if any(is_alive(rival.owner, rival.since) for rival in rivals):
                return None
            owner = claim_owner(self._claims % CLAIMS)
            connection.execute(
                sa.delete(_CLAIMS).where(_CLAIMS.c.owner.in_([owner, *(rival.owner for rival in rivals)]))
            )
            connection.execute(sa.insert(_CLAIMS), {"owner": owner, "since": time.time(), **mine})
            self._claims += 1
        return left

    def remove_abandoned_claims(self) -> int:
        """Remove the claims of processes that have died, and return their number; their trials may be made again."""
        with self._rows() as connection:
            found = connection.execute(sa.select(_CLAIMS.c.owner, _CLAIMS.c.since)).all()
            dead = [row.owner for row in found if not is_alive(row.owner, row.since)]
            connection.execute(sa.delete(_CLAIMS).where(_CLAIMS.c.owner.in_(dead)))
        return len(dead)

    def _find_or_add(self, table: type[Row], key: dict[str, Any], values: dict[str, Any]) -> Row:
        with self.writing():
            return self._found_or_added(table, key, values)

    def _found_or_added(self, table: type[Row], key: dict[str, Any], values: dict[str, Any]) -> Row:
        """Do `_find_or_add` within a transaction."""
        row = self.session.scalars(sa.select(table).filter_by(**key)).one_or_none()
        if row is None:
            row = table(**key, **values)
            self.session.add(row)
        return row

    def _now(self) -> dict[str, Any]:
        """Return the time and the environment of a row that is added now."""
        recorded = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"recorded": recorded, "environment_id": self._environment}

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Begin a transaction that writes. No other process writes until it ends."""
        self._require_writable()
        with self._transaction(writing=True) as session:
            yield session

    def _require_writable(self) -> None:
        if self._close is None:
            raise DatabaseError(f"{self.name} was opened as readonly: Store.create opens it writable")

    @contextmanager
    def _rows(self) -> Iterator[sa.Connection]:
        """Begin a transaction that writes rows, without the session, which takes twice the time."""
        self._require_writable()
        with explained(self.name, sa.exc.DBAPIError), self._writer.begin() as connection:
            yield connection


def own_id() -> str:
    """Return this process's machine, process id and start.

    A later process with the same process id has another start.
    """
    return f"{_machine()} {os.getpid()} {_start(os.getpid())}"


def claim_owner(number: int) -> str:
    """Return this process as the owner of its claim `number`."""
    return f"{own_id()} {number}"


def is_own(owner: str) -> bool:
    """Return whether this process owns a claim."""
    return owner.split()[:3] == own_id().split()


def is_alive(owner: str, since: float) -> bool:
    """Return whether the process that owns a claim still runs.

    Args:
        owner: What `own_id` or `claim_owner` returned in that process.
        since: When it made the claim, in seconds since 1970. It counts only for a process on another machine, which is
            taken to be alive for LEASE seconds. If a clock jumps, a trial starts early or late; no data is lost.
    """
    try:
        machine, number, start, *_ = owner.split()
        if machine == _machine():
            return _start(int(number)) == start
    except ValueError:  # no process of ours: the database is somebody else's
        return False
    return abs(time.time() - since) < LEASE


@cache
def _machine() -> str:
    """Return this boot of this machine, and the container: process ids are those of a container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _start(number: int) -> str | None:
    """Return the start of a process in ticks since boot; None if it has ended, also if it is a zombie."""
    try:
        # The command is in parentheses and may itself contain any character.
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in "ZX" else fields[_START_TIME]
