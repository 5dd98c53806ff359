"""Protocols of a database as the runtime uses it. `Reader` (plain sqlite3) and `Store` (SQLAlchemy) implement them.

The rows are those of tuning_db/schema.py, which documents the columns, with the columns that running needs.
"""

# ruff: noqa: D102
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Device(Protocol):
    """A kind of GPU or CPU."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def flops_per_us(self) -> float: ...
    @property
    def bytes_per_us(self) -> float: ...


class Library(Protocol):
    """A binary, without its bytes."""

    @property
    def id(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def size(self) -> int: ...


class Kernel(Protocol):
    """A kernel, or a torch operator (without a library)."""

    @property
    def id(self) -> int: ...
    @property
    def family(self) -> str: ...
    @property
    def config(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def epilogue(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def symbol(self) -> str: ...
    @property
    def weight_layouts(self) -> Mapping[str, str]: ...
    @property
    def launch_names(self) -> Sequence[str]: ...
    @property
    def library(self) -> Library | None: ...


class Measurement(Protocol):
    """A kernel with launch values that was timed on a problem."""

    @property
    def kernel_id(self) -> int: ...
    @property
    def kernel(self) -> Kernel: ...
    @property
    def launch(self) -> Mapping[str, int]: ...
    @property
    def median_us(self) -> float | None: ...
    @property
    def final(self) -> bool: ...
    @property
    def details(self) -> Mapping[str, Any]: ...


class Plan(Protocol):
    """A network with a candidate for each layer, timed as a whole."""

    @property
    def median_us(self) -> float: ...
    @property
    def choices(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def details(self) -> Mapping[str, Any]: ...
    @property
    def digest(self) -> str | None: ...


class Database(Protocol):
    """A database that is open for reading.

    Attributes:
        name: Its location without what is secret, for messages.
    """

    name: str

    def devices(self) -> Sequence[Device]:
        """Return all devices."""

    def device(self, name: str) -> Device | None:
        """Return a device by its name; None if it is not known."""

    def problem_texts(self) -> Sequence[str]:
        """Return the texts of all problems."""

    def ranking(self, device: Device, problem: str) -> Sequence[Measurement]:
        """Return the verified candidates for a problem (its text) on a device, best first, each once."""

    def best_us(self, device: Device, problem: str) -> float | None:
        """Return the shortest verified time of a problem on a device in microseconds; None if there is none."""

    def plan(self, device: Device, network: str) -> Plan | None:
        """Return the newest plan of a network on a device; None if there is none."""

    def planned(self, device: Device) -> Sequence[str]:
        """Return the networks that have a plan on a device, in the order of their newest plans."""

    def networks(self, start: str = "") -> Sequence[tuple[str, str]]:
        """Return key and text of each network whose key starts with a text, the newest first."""

    def kernel(self, kernel_id: int) -> Kernel:
        """Return a kernel by its id."""

    def binary(self, library: Library) -> bytes:
        """Return the binary of a library; raises DatabaseError if it is damaged or not trusted."""
