"""Opens a tuning database and answers the questions that tuner, runtime and scripts ask of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from tuning_db import process_id, sqlite_backend
from tuning_db.blob import digest_of, packed, unpacked
from tuning_db.errors import DatabaseError, explained
from tuning_db.location import Location, is_address
from tuning_db.ranking import ranked
from tuning_db.schema import Base, Claim, Device, Environment, KernelRow, Library, Measurement, PlanRow, ProblemRow

if TYPE_CHECKING:
    from tuning_db import protocols

CLAIMS = 8
"""Trials that a process may have claimed at once: what is being measured, and what waits behind it at the device."""

_WRITING = "autotune_writing"  # the option of transactions that write: they take turns


def _of_one(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Columns of the rows of one device, problem and kernel, which are given when the query is run."""
    keys = ("device_id", "problem_id", "kernel_id")
    return sa.select(*columns).where(*(table.c[key] == sa.bindparam(key) for key in keys))


# Trials and claims are written as rows and not as objects: it is done for every trial, and takes half the time.
_TRIALS, _CLAIMS = Base.metadata.tables["measurement"], Base.metadata.tables["claim"]
_ADD_TRIAL = sa.insert(_TRIALS)
_TRIED = _of_one(_TRIALS, _TRIALS.c.launch).where(~_TRIALS.c.final)
_CLAIMED = _of_one(_CLAIMS, _CLAIMS.c.owner, _CLAIMS.c.since)


class Store:
    """One database.

    Store.create(where) opens it for tuning and makes it if it is not there; Store.open(where) opens it for reading
    only, also from a read-only place. Every write is committed when its method returns. Use it as a context manager.
    """

    def __init__(self, name: str, engine: sa.Engine, close: Callable[[sa.Engine], None] | None) -> None:
        self.name = name
        self._engine, self._close = engine, close
        self._claims = 0
        self._environment: int | None = None
        self._problems: dict[str, ProblemRow] = {}
        self.session = Session(engine, expire_on_commit=False)

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, where: Location) -> Store:
        """Open for reading and writing; raises DatabaseError for a foreign, newer, corrupted or unwritable one."""
        if is_address(where):
            from tuning_db import postgres_backend

            return cls(
                postgres_backend.name_of(where), postgres_backend.engine_to_write(where, _WRITING), sa.Engine.dispose
            )
        return cls(str(where), sqlite_backend.engine_to_write(Path(where), _WRITING), sqlite_backend.leave)

    @classmethod
    def open(cls, where: Location) -> Store:
        """Open for reading only; raises DatabaseError, also if there is no such database."""
        if is_address(where):
            from tuning_db import postgres_backend

            return cls(postgres_backend.name_of(where), postgres_backend.engine_to_read(where), None)
        return cls(str(where), sqlite_backend.engine_to_read(Path(where)), None)

    def close(self) -> None:
        """Close; a file that was written is left in one piece, ready to be copied, unless others still write it."""
        if self._claims:
            with suppress(DatabaseError), self.writing():
                self.session.execute(sa.delete(Claim).where(Claim.owner.in_(map(process_id.claimant, range(CLAIMS)))))
        self.session.close()
        (self._close or sa.Engine.dispose)(self._engine)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def put_device(self, name: str, target: str, **values: Any) -> Device:
        """Find a device by name, or record it. values: flops_per_us, bytes_per_us, details."""
        return self._find_or_add(Device, {"name": name}, {"target": target, **values})

    def put_environment(self, software: Mapping[str, Any]) -> Environment:
        """Find or record the software in use; what is measured from now on is recorded as measured with it."""
        row = self._find_or_add(Environment, {"software": json.dumps(software, sort_keys=True)}, {})
        self._environment = row.id
        return row

    def put_problem(self, text: str) -> ProblemRow:
        """Find a problem by its text, or record it."""
        if text not in self._problems:
            operator = text.split(maxsplit=1)[0]
            self._problems[text] = self._find_or_add(ProblemRow, {"text": text}, {"operator": operator})
        return self._problems[text]

    def put_kernel(self, identity: dict[str, str], **values: Any) -> KernelRow:
        """Find a kernel by identity (family, config, dtype, epilogue, target, source), or record it.

        values: symbol, weight_layouts, library_id, error. A kernel that had failed to compile takes the new values.
        """
        return self.put_kernels([(identity, values)])[0]

    def put_kernels(self, kernels: Sequence[tuple[dict[str, str], dict[str, Any]]]) -> list[KernelRow]:
        """put_kernel for several, (identity, values) each, in one transaction."""
        with self.writing():
            rows = [self._found_or_added(KernelRow, identity, values) for identity, values in kernels]
            for row, (_, values) in zip(rows, kernels, strict=True):
                if row.error and not values.get("error"):
                    row.error, row.library_id = None, values.get("library_id")
        return rows

    def put_library(self, binary: bytes, **values: Any) -> Library:
        """Find a binary by its digest, or store it. values: kind, target, compiler, flags, cutlass, abi_version."""
        digest = digest_of(binary)
        with self.reading():
            known = self.session.scalars(sa.select(Library).filter_by(digest=digest)).one_or_none()
        if known:
            return known
        blob = packed(binary)  # outside the transaction: it takes longer than others should wait
        return self._find_or_add(Library, {"digest": digest}, {**values, "size": len(binary), "blob": blob})

    def put_measurement(self, **values: Any) -> int:
        """Record a measurement and return its number; values are the columns of `Measurement`."""
        with self.writing() as session:
            made = session.connection().execute(_ADD_TRIAL, {**values, **self._now()})
        assert made.inserted_primary_key
        return int(made.inserted_primary_key[0])

    def put_plan(self, **values: Any) -> PlanRow:
        """Record a timed network; values are the columns of `PlanRow`."""
        row = PlanRow(**values, **self._now())
        with self.writing() as session:
            session.add(row)
        return row

    def claim(
        self, device: Device, problem: str, kernel: KernelRow, launches: Sequence[Mapping[str, int]]
    ) -> list[Mapping[str, int]] | None:
        """The launch values that are still to be tried, for this process to try now; None while another tries them.

        A process holds CLAIMS claims: the next replaces the oldest. That of a process that ended, however it did, does
        not count.
        """
        mine = {"device_id": device.id, "problem_id": self.put_problem(problem).id, "kernel_id": kernel.id}
        with self.writing() as session:
            connection = session.connection()
            tried = connection.scalars(_TRIED, mine).all()
            left = [launch for launch in launches if dict(launch) not in tried]
            if not left:
                return left
            rivals = [row for row in connection.execute(_CLAIMED, mine) if not process_id.is_me(row.owner)]
            if any(process_id.lives(rival.owner, rival.since) for rival in rivals):
                return None
            me = process_id.claimant(self._claims % CLAIMS)
            connection.execute(sa.delete(_CLAIMS).where(_CLAIMS.c.owner.in_([me, *(rival.owner for rival in rivals)])))
            connection.execute(sa.insert(_CLAIMS), {"owner": me, "since": time.time(), **mine})
            self._claims += 1
        return left

    def _find_or_add(self, table: Any, key: dict[str, Any], values: dict[str, Any]) -> Any:
        with self.writing():
            return self._found_or_added(table, key, values)

    def _found_or_added(self, table: Any, key: dict[str, Any], values: dict[str, Any]) -> Any:
        """The same, amid a transaction."""
        row = self.session.scalars(sa.select(table).filter_by(**key)).one_or_none()
        if row is None:
            row = table(**key, **values)
            self.session.add(row)
        return row

    def _now(self) -> dict[str, Any]:
        """When and with what something is measured that is recorded now."""
        recorded = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"recorded": recorded, "environment_id": self._environment}

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that writes: no other process writes between its start and its end."""
        if self._close is None:
            raise DatabaseError(f"{self.name} was opened as readonly: open it with Store.create to make it writable")
        with self._transaction(writing=True) as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that reads: between calls the database is free for others."""
        with self._transaction(writing=False) as session:
            yield session

    @contextmanager
    def _transaction(self, writing: bool) -> Iterator[Session]:
        with explained(self.name, sa.exc.DBAPIError):
            try:
                if self.session.in_transaction():  # an attribute that was loaded late has begun one
                    self.session.commit()
                self.session.connection(execution_options={_WRITING: writing})
                yield self.session
                self.session.commit()
            except BaseException:
                self.session.rollback()
                raise

    # -- reading ---------------------------------------------------------------------------------------------

    def binary(self, library: protocols.Library) -> bytes:
        """The binary of a library; raises DatabaseError if it is not what its digest says."""
        with self.reading():
            blob = self.session.scalars(sa.select(Library.blob).filter_by(id=library.id)).one()
        return unpacked(blob, library.digest, self.name)

    def devices(self) -> list[Device]:
        """All devices that measured."""
        return self._all(sa.select(Device).order_by(Device.id))

    def environments(self) -> list[Environment]:
        """The software of all measurements."""
        return self._all(sa.select(Environment).order_by(Environment.id))

    def device(self, name: str) -> Device | None:
        """A device by name."""
        with self.reading():
            return self.session.scalars(sa.select(Device).filter_by(name=name)).one_or_none()

    def kernels(self, target: str) -> list[KernelRow]:
        """All kernels for a target, compiled or not."""
        return self._all(sa.select(KernelRow).filter_by(target=target).options(joinedload(KernelRow.library)))

    def problems(self) -> list[ProblemRow]:
        """All problems."""
        return self._all(sa.select(ProblemRow).order_by(ProblemRow.id))

    def problem_texts(self) -> list[str]:
        """All problems by their text."""
        return self._all(sa.select(ProblemRow.text).order_by(ProblemRow.id))

    def measurements(
        self, device: protocols.Device, problem: str, status: str | None = None, most: int | None = None
    ) -> list[Measurement]:
        """Measurements of a problem (its text) on a device, the fastest first, those without a time last."""
        query = (
            sa.select(Measurement)
            .join(ProblemRow)
            .where(Measurement.device_id == device.id, ProblemRow.text == problem)
            .options(joinedload(Measurement.kernel).joinedload(KernelRow.library))
            .order_by(Measurement.median_us.is_(None), Measurement.median_us, Measurement.id)
            .limit(most)
        )
        return self._all(query.where(Measurement.status == status) if status else query)

    def ranking(self, device: protocols.Device, problem: str) -> list[Measurement]:
        """Verified candidates for a problem on a device, best first, each once, as tuning_db/ranking.py ranks them."""
        return ranked(self.measurements(device, problem, "ok"))

    def best_us(self, device: protocols.Device, problem: str, kernel: KernelRow | None = None) -> float | None:
        """The shortest verified time of a problem on a device, of one kernel or of any, in microseconds."""
        query = sa.select(sa.func.min(Measurement.median_us)).join(ProblemRow).where(ProblemRow.text == problem)
        query = query.where(Measurement.device_id == device.id)
        with self.reading():
            return self.session.scalar(query.where(Measurement.kernel_id == kernel.id) if kernel else query)

    def plan(self, device: protocols.Device, network: str) -> PlanRow | None:
        """The newest plan of a network on a device: it started from all that was known before."""
        query = sa.select(PlanRow).filter_by(device_id=device.id, network=network).order_by(PlanRow.id.desc()).limit(1)
        with self.reading():
            return self.session.scalars(query).one_or_none()

    def planned(self, device: protocols.Device) -> list[str]:
        """The networks that have a plan on a device."""
        return self._all(sa.select(PlanRow.network).filter_by(device_id=device.id).distinct())

    def plans(self) -> list[PlanRow]:
        """All plans."""
        return self._all(sa.select(PlanRow).order_by(PlanRow.id))

    def kernel(self, kernel_id: int) -> KernelRow:
        """A kernel by its number."""
        query = sa.select(KernelRow).filter_by(id=kernel_id).options(joinedload(KernelRow.library))
        with self.reading():
            return self.session.scalars(query).one()

    def counts(self) -> dict[str, int]:
        """Rows of each table, and measurements by status."""
        with self.reading():
            counts = {
                table.name: self.session.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in Base.metadata.sorted_tables
            }
            query = sa.select(Measurement.status, sa.func.count()).group_by(Measurement.status)
            return counts | {f"measurement: {status}": count for status, count in self.session.execute(query)}

    def _all(self, query: Any) -> list[Any]:
        with self.reading():
            return list(self.session.scalars(query).unique())
