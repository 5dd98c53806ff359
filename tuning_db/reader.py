"""Reads the rows that running a network needs, with plain sqlite3: importing SQLAlchemy would delay the first result.

tuning_db/schema.py defines the tables. Every schema so far has all columns that are read here, except the names of
launch values: in files of older schemas they are derived from the recorded launches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuning_db.blob import decompress
from tuning_db.errors import explained
from tuning_db.launch import NAMES_SINCE, RECORDED_NAMES
from tuning_db.location import Location, check, connect, is_address
from tuning_db.ranking import ranked

if TYPE_CHECKING:
    from tuning_db import protocols


class _Device(NamedTuple):
    id: int
    name: str
    target: str
    flops_per_us: float
    bytes_per_us: float


class _Library(NamedTuple):
    id: int
    digest: str
    kind: str
    target: str


class _Kernel(NamedTuple):
    id: int
    family: str
    config: str
    symbol: str
    weight_layouts: Mapping[str, str]
    launch_names: Sequence[str]
    library: _Library | None


class _Measurement(NamedTuple):
    kernel_id: int
    kernel: _Kernel
    launch: Mapping[str, int]
    median_us: float | None
    final: bool
    details: Mapping[str, Any]


class _Plan(NamedTuple):
    median_us: float
    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]


_KERNELS = "kernel k LEFT JOIN library l ON l.id = k.library_id"
_MEASURED = "m.device_id = ? AND m.problem_id = (SELECT id FROM problem WHERE text = ?)"


class Reader:
    """A database file that one thread reads. It implements `protocols.Database` and is a context manager.

    All methods raise DatabaseError if the file cannot be read; so does the constructor if there is no database.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        names = "k.launch_names" if check(path) >= NAMES_SINCE else RECORDED_NAMES.format(kernel="k")
        self._kernel_columns = (
            f"k.id, k.family, k.config, k.symbol, k.weight_layouts, {names}, l.id, l.digest, l.kind, l.target"
        )
        self._connection = connect(path)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def devices(self) -> Sequence[_Device]:
        """Return all devices."""
        return self._devices

    def device(self, name: str) -> _Device | None:
        """Return a device by its name; None if it is not known."""
        return next((row for row in self._devices if row.name == name), None)

    def problem_texts(self) -> Sequence[str]:
        """Return the texts of all problems."""
        return self._problem_texts

    def ranking(self, device: protocols.Device, problem: str) -> list[_Measurement]:
        """Return the verified candidates for a problem (its text) on a device, best first, each once."""
        query = f"""
            SELECT m.launch, m.median_us, m.final, m.details, {self._kernel_columns}
            FROM measurement m, {_KERNELS}
            WHERE {_MEASURED} AND m.status = 'ok' AND k.id = m.kernel_id ORDER BY m.median_us, m.id"""
        return ranked(
            _Measurement(kernel[0], _kernel(kernel), json.loads(launch), median_us, bool(final), json.loads(details))
            for launch, median_us, final, details, *kernel in self._rows(query, device.id, problem)
        )

    def best_us(self, device: protocols.Device, problem: str) -> float | None:
        """Return the shortest verified time of a problem on a device in microseconds; None if there is none."""
        query = f"SELECT min(m.median_us) FROM measurement m WHERE {_MEASURED}"
        [[time]] = self._rows(query, device.id, problem)
        return None if time is None else float(time)

    def plan(self, device: protocols.Device, network: str) -> _Plan | None:
        """Return the newest plan of a network on a device; None if there is none."""
        query = """
            SELECT median_us, choices, details FROM plan
            WHERE device_id = ? AND network = ? ORDER BY id DESC LIMIT 1"""
        for median_us, choices, details in self._rows(query, device.id, network):
            return _Plan(median_us, json.loads(choices), json.loads(details))
        return None

    def planned(self, device: protocols.Device) -> list[str]:
        """Return the networks that have a plan on a device."""
        return [
            network for (network,) in self._rows("SELECT DISTINCT network FROM plan WHERE device_id = ?", device.id)
        ]

    def kernel(self, kernel_id: int) -> _Kernel:
        """Return a kernel by its id."""
        [row] = self._rows(f"SELECT {self._kernel_columns} FROM {_KERNELS} WHERE k.id = ?", kernel_id)
        return _kernel(row)

    def binary(self, library: protocols.Library) -> bytes:
        """Return the binary of a library; raises DatabaseError if it is damaged."""
        [[blob]] = self._rows("SELECT blob FROM library WHERE id = ?", library.id)
        return decompress(blob, library.digest, self.name)

    # Cached: the runtime reads these small tables once for each layer.

    @cached_property
    def _devices(self) -> list[_Device]:
        query = "SELECT id, name, target, flops_per_us, bytes_per_us FROM device ORDER BY id"
        return [_Device(*row) for row in self._rows(query)]

    @cached_property
    def _problem_texts(self) -> list[str]:
        return [text for (text,) in self._rows("SELECT text FROM problem ORDER BY id")]

    def _rows(self, query: str, *values: object) -> list[Any]:
        with explained(self.name):
            return self._connection.execute(query, values).fetchall()


def _kernel(row: Sequence[Any]) -> _Kernel:
    number, family, config, symbol, layouts, names, *library = row
    return _Kernel(
        id=number,
        family=family,
        config=config,
        symbol=symbol,
        weight_layouts=json.loads(layouts),
        launch_names=json.loads(names),
        library=_Library(*library) if library[0] is not None else None,
    )


def reader(where: Location) -> AbstractContextManager[protocols.Database]:
    """Open a database for running networks; raises DatabaseError if there is none or it cannot be read."""
    if is_address(where):
        from tuning_db.store import Store

        return Store.open(where)
    return Reader(Path(where))
