"""What running a network asks of a database: answered by a Reader, in plain sqlite3, and by a Store.

The rows are those of tuning_db/schema.py, which says what is in them, with the columns that running needs.
"""

# ruff: noqa: D102
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Device(Protocol):
    """One kind of GPU or CPU."""

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


class Kernel(Protocol):
    """A kernel, or an operator without a library."""

    @property
    def id(self) -> int: ...
    @property
    def family(self) -> str: ...
    @property
    def config(self) -> str: ...
    @property
    def symbol(self) -> str: ...
    @property
    def weight_layouts(self) -> Mapping[str, str]: ...
    @property
    def library(self) -> Library | None: ...


class Measurement(Protocol):
    """A kernel that was timed on a problem."""

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
    """A network that was settled as a whole."""

    @property
    def median_us(self) -> float: ...
    @property
    def choices(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def details(self) -> Mapping[str, Any]: ...


class Database(Protocol):
    """What answers."""

    def devices(self) -> Sequence[Device]:
        """All devices that measured."""

    def device(self, name: str) -> Device | None:
        """A device by name."""

    def problem_texts(self) -> Sequence[str]:
        """All problems by their text."""

    def ranking(self, device: Device, problem: str) -> Sequence[Measurement]:
        """Verified candidates for a problem (its text) on a device, best first, each once."""

    def best_us(self, device: Device, problem: str) -> float | None:
        """The shortest verified time of a problem on a device, in microseconds."""

    def plan(self, device: Device, network: str) -> Plan | None:
        """The newest plan of a network on a device."""

    def planned(self, device: Device) -> Sequence[str]:
        """The networks that have a plan on a device."""

    def kernel(self, kernel_id: int) -> Kernel:
        """A kernel by its number."""

    def binary(self, library: Library) -> bytes:
        """The binary of a library; raises DatabaseError if it is not what its digest says."""
