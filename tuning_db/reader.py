"""Reads the rows that running a network needs, with plain sqlite3: importing SQLAlchemy would delay the first result.

tuning_db/schema.py defines the tables. Each row must have the digest that was stored with it; where keys are given, the
digest must be one that they signed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tuning_db import rows
from tuning_db.errors import DatabaseError, explained
from tuning_db.location import check, connect, execute
from tuning_db.ranking import ranked
from tuning_db.trust import digests
from tuning_db.trust.binaries import Unpacker
from tuning_db.trust.signature import TRUSTED, Content, Origin, is_signed

if TYPE_CHECKING:
    from tuning_db import protocols

Made = TypeVar("Made")

_MEASUREMENTS = "m.id, m.digest, m.kernel_id, m.launch, m.status, m.median_us, m.final, m.details FROM measurement m"
_PLANS = "p.id, p.digest, p.network, p.median_us, p.choices, p.details FROM plan p"
"""SQL of the columns that are read of a row, its digest among them."""


class Reader:
    """A database file that one thread reads. It implements `protocols.Database` and is a context manager.

    All methods raise DatabaseError if the file cannot be read or a row is damaged; so does the constructor if there is
    no database, or if it is not signed by one of the keys.

    Args:
        path: The file.
        keys: Public keys (trust/signature.py), one of which must have signed the database; without any it may be
            unsigned.
        name: Name of the database in messages; the path by default.
    """

    def __init__(self, path: Path, keys: Sequence[str] = (), name: str = "") -> None:
        self.name, self._path = name or str(path), path
        check(path)
        self._kernels: dict[int, rows.Kernel] = {}
        self._unpacker = Unpacker(self.name, self._dictionary)
        self._signed: frozenset[str] | None = None
        self._connection = connect(path)
        try:
            if keys:
                self._signed = self._signed_digests(keys)
            self._origin = Origin(self.name) if keys else Origin.of(path, self.name)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def devices(self) -> Sequence[rows.Device]:
        """Return all devices."""
        return self._devices

    def device(self, name: str) -> rows.Device | None:
        """Return a device by its name; None if it is not known."""
        return next((row for row in self._devices if row.name == name), None)

    def problem_texts(self) -> Sequence[str]:
        """Return the texts of all problems."""
        return self._problem_texts

    def ranking(self, device: protocols.Device, problem: str) -> list[rows.Measurement]:
        """Return the verified candidates for a problem (its text) on a device, best first, each once."""
        return ranked(self._measured(device, problem, "AND m.status = 'ok' ORDER BY m.median_us, m.id"))

    def best_us(self, device: protocols.Device, problem: str) -> float | None:
        """Return the shortest verified time of a problem on a device in microseconds; None if there is none."""
        fastest = "AND m.median_us IS NOT NULL ORDER BY m.median_us, m.id LIMIT 1"
        return next((row.median_us for row in self._measured(device, problem, fastest)), None)

    def plan(self, device: protocols.Device, network: str) -> rows.Plan | None:
        """Return the newest plan of a network on a device; None if there is none."""
        newest = f"SELECT {_PLANS} WHERE p.device_id = ? AND p.network = ? ORDER BY p.id DESC LIMIT 1"
        return next((self._plan(device, *row) for row in self._rows(newest, device.id, network)), None)

    def planned(self, device: protocols.Device) -> list[str]:
        """Return the networks that have a plan on a device, in the order of their newest plans."""
        newest = "SELECT max(id) FROM plan WHERE device_id = ? GROUP BY network"
        found = self._rows(f"SELECT {_PLANS} WHERE p.id IN ({newest}) ORDER BY p.id", device.id)
        for row in found:
            self._plan(device, *row)
        return [network for _, _, network, *_ in found]

    def networks(self, start: str = "") -> list[tuple[str, str]]:
        """Return key and text of each network whose key starts with a text, the newest first."""
        return [self._network(*row) for row in self._network_rows if str(row[2]).startswith(start)]

    def kernel(self, kernel_id: int) -> rows.Kernel:
        """Return a kernel by its id; raises KeyError if there is none."""
        if kernel_id not in self._kernels:
            self._kernels[kernel_id] = self._read_kernel(kernel_id)
        return self._kernels[kernel_id]

    def kernel_sources(self, target: str, kinds: Collection[str]) -> dict[int, str]:
        """Return kernel id -> digest of its source, of kernels for a target that have a binary.

        Args:
            target: The compilation target.
            kinds: Their dtypes and epilogues, as at the end of a problem's text: "f16 epilogue=bias,relu".
        """
        query = "SELECT id, source, dtype, epilogue FROM kernel WHERE target = ? AND library_id IS NOT NULL"
        found = self._rows(query, target)
        return {
            one: rows.text(source) for one, source, dtype, epilogue in found if f"{dtype} epilogue={epilogue}" in kinds
        }

    def build_facts(self, library: protocols.Library) -> dict[str, Any]:
        """Return how a binary was made: compiler, flags, cutlass and abi_version."""
        names = ("compiler", "flags", "cutlass", "abi_version")
        [values] = self._rows(f"SELECT {', '.join(names)} FROM library WHERE id = ?", library.id)
        return dict(zip(names, values, strict=True))

    def binary(self, library: protocols.Library) -> bytes:
        """Return the binary of a library; raises DatabaseError if it is damaged, or another user's native code."""
        self._origin.require_trust(library.kind)
        return self._unpacked(library)

    def content(self) -> Content:
        """Return all that a signature covers."""
        kernels, measurements, plans = (
            [str(digest) for (digest,) in self._rows(f"SELECT digest FROM {table} ORDER BY id")]
            for table in ("kernel", "measurement", "plan")
        )
        devices, networks = [row[1:] for row in self._devices], [str(row[1]) for row in self._network_rows]
        return Content(devices, self._problem_texts, kernels, measurements, plans, networks)

    def check_all(self) -> dict[str, int]:
        """Check all rows and binaries that running can read.

        Returns:
            The number of rows of each table.

        Raises:
            DatabaseError: A row or binary is damaged.
        """
        kernels = [self.kernel(number) for (number,) in self._rows("SELECT id FROM kernel")]
        libraries = {kernel.library for kernel in kernels if kernel.library}
        for library in libraries:
            self._unpacked(library)
        devices, measurements, plans = {row.id: row for row in self._devices}, 0, 0
        texts = dict(self._rows("SELECT id, text FROM problem"))
        for device_id, problem_id, *row in self._rows(f"SELECT m.device_id, m.problem_id, {_MEASUREMENTS}"):
            self._checked("measurement", row[0], lambda: (devices[device_id], texts[problem_id]))  # noqa: B023
            self._measurement(devices[device_id], texts[problem_id], *row)
            measurements += 1
        for device_id, *row in self._rows(f"SELECT p.device_id, {_PLANS}"):
            self._plan(self._checked("plan", row[0], lambda: devices[device_id]), *row)  # noqa: B023
            plans += 1
        return {
            "device": len(devices),
            "problem": len(texts),
            "library": len(libraries),
            "kernel": len(kernels),
            "measurement": measurements,
            "plan": plans,
            "network": len(self.networks()),
        }

    # Cached: the runtime reads these small tables once for each layer.

    @cached_property
    def _devices(self) -> list[rows.Device]:
        query = "SELECT id, name, target, flops_per_us, bytes_per_us FROM device ORDER BY id"
        return [self._checked("device", row[0], lambda: rows.device(*row)) for row in self._rows(query)]  # noqa: B023

    @cached_property
    def _problem_texts(self) -> list[str]:
        return [
            self._checked("problem", number, lambda: rows.text(text))  # noqa: B023
            for number, text in self._rows("SELECT id, text FROM problem ORDER BY id")
        ]

    @cached_property
    def _network_rows(self) -> list[Any]:
        is_known = self._rows("SELECT 1 FROM sqlite_master WHERE name = 'network'")  # older versions have no such table
        return self._rows("SELECT id, digest, key, body FROM network ORDER BY id DESC") if is_known else []

    def _unpacked(self, library: protocols.Library) -> bytes:
        [[blob]] = self._rows("SELECT blob FROM library WHERE id = ?", library.id)
        return self._unpacker.binary(blob, library.digest, library.size)

    def _dictionary(self, number: int) -> tuple[Any, Any] | None:
        """Return size and blob of a dictionary."""
        return next(iter(self._rows("SELECT size, blob FROM dictionary WHERE id = ?", number)), None)

    def _measured(self, device: protocols.Device, problem: str, condition: str) -> list[rows.Measurement]:
        """Return measurements of a problem on a device."""
        where = "WHERE m.device_id = ? AND m.problem_id = (SELECT id FROM problem WHERE text = ?)"
        found = self._rows(f"SELECT {_MEASUREMENTS} {where} {condition}", device.id, problem)
        return [self._measurement(device, problem, *row) for row in found]

    def _measurement(
        self,
        device: protocols.Device,
        problem: str,
        number: int,
        stored: str | None,
        kernel_id: int,
        launch: str,
        status: str,
        median_us: float | None,
        final: int,
        details: str,
    ) -> rows.Measurement:
        def made() -> tuple[rows.Measurement, str]:
            kernel = self.kernel(kernel_id)
            row = rows.Measurement(
                kernel_id,
                kernel,
                rows.launch(json.loads(launch)),
                rows.time(median_us),
                bool(final),
                rows.mapping(details),
            )
            values = {**row._asdict(), "status": status}
            return row, digests.measurement(values, _named(device), problem, kernel._asdict())

        return self._whole("measurement", number, stored, made)

    def _plan(
        self,
        device: protocols.Device,
        number: int,
        stored: str | None,
        network: str,
        median_us: float,
        choices: str,
        details: str,
    ) -> rows.Plan:
        def made() -> tuple[rows.Plan, str]:
            row = rows.Plan(float(median_us), json.loads(choices), rows.mapping(details), stored)
            for choice in row.choices:
                rows.launch(choice["launch"])
            kernels = {choice["kernel"]: self.kernel(choice["kernel"])._asdict() for choice in row.choices}
            return row, digests.plan({**row._asdict(), "network": network}, _named(device), kernels)

        return self._whole("plan", number, stored, made)

    def _network(self, number: int, stored: str | None, key: str, body: str) -> tuple[str, str]:
        def made() -> tuple[tuple[str, str], str]:
            return (rows.text(key), digests.unpacked(body)), digests.network({"key": key, "body": body})

        return self._whole("network", number, stored, made)

    def _read_kernel(self, kernel_id: int) -> rows.Kernel:
        query = """
            SELECT k.digest, k.id, k.family, k.config, k.dtype, k.epilogue, k.target, k.symbol,
                k.weight_layouts, k.launch_names, k.library_id, l.id, l.digest, l.kind, l.target, l.size
            FROM kernel k LEFT JOIN library l ON l.id = k.library_id WHERE k.id = ?"""
        found = self._rows(query, kernel_id)
        if not found:
            raise KeyError(kernel_id)  # the row that refers to it is damaged
        stored, *plain, layouts, names, library_id, number, digest, kind, target, size = found[0]

        def made() -> tuple[rows.Kernel, str]:
            library = None if library_id is None else rows.library(number, digest, kind, target, size)
            decoded = {"weight_layouts": rows.mapping(layouts), "launch_names": json.loads(names), "library": library}
            row = rows.Kernel(**dict(zip(rows.Kernel._fields, plain, strict=False)), **decoded)
            return row, digests.kernel(row._asdict(), library and library._asdict())

        return self._whole("kernel", kernel_id, stored, made)

    def _whole(self, table: str, number: int, stored: str | None, make: Callable[[], tuple[Made, str]]) -> Made:
        """Return a row that `make` decodes, after comparing its digest with the one stored, and with those signed.

        If it were compared with those signed alone, the newest plan and an older one could change places.
        """
        row, digest = self._checked(table, number, make)
        signed = self._signed is None or digest in self._signed
        if not (signed and digest == stored):
            raise digests.damaged(self.name, table, number)
        return row

    def _checked(self, table: str, number: int, make: Callable[[], Made]) -> Made:
        """Return what `make` makes of the columns of a row; raises DatabaseError if they cannot be decoded."""
        try:
            return make()
        except digests.UNREADABLE as error:
            raise digests.damaged(self.name, table, number) from error

    def _signed_digests(self, keys: Sequence[str]) -> frozenset[str]:
        """Return the digests of rows that one of the keys signed; raises DatabaseError without such a signature."""
        content, signatures = self.content(), dict(self._rows("SELECT key, value FROM signature"))
        if is_signed(content, signatures, keys):
            return content.digests
        known = ", ".join(sorted(map(str, signatures))) or "nobody"
        why = "it was changed after it was signed" if any(key in signatures for key in keys) else f"{known} signed it"
        raise DatabaseError(
            f"{self.name} has no valid signature by a key that you trust: {why}; get the signed file, or sign it with "
            f"`autotune db sign`, or name another key in trusted_keys or {TRUSTED}"
        )

    def _rows(self, query: str, *values: object) -> list[Any]:
        with explained(self.name):
            try:
                return execute(self._connection, self._path, query, values)
            except OverflowError as error:  # an id of more than 64 bits
                raise sqlite3.DataError(str(error)) from error


def _named(device: protocols.Device) -> dict[str, str]:
    return {"name": device.name, "target": device.target}
