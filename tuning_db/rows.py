"""The rows that a reader returns, and what their columns must be: they may come from somebody else's file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("device_image", "shared_library", "cudnn_plan")
"""All kinds of binaries."""

_INT32 = 2**31
"""Launch values are passed to kernels as 32-bit integers."""


class Device(NamedTuple):
    """A kind of device."""

    id: int
    name: str
    target: str
    flops_per_us: float
    bytes_per_us: float


class Library(NamedTuple):
    """A binary, without its bytes."""

    id: int
    digest: str
    kind: str
    target: str
    size: int


class Kernel(NamedTuple):
    """A kernel."""

    id: int
    family: str
    config: str
    dtype: str
    epilogue: str
    target: str
    symbol: str
    weight_layouts: Mapping[str, str]
    launch_names: Sequence[str]
    library: Library | None


class Measurement(NamedTuple):
    """A kernel timed for a problem, with launch values."""

    kernel_id: int
    kernel: Kernel
    launch: Mapping[str, int]
    median_us: float | None
    final: bool
    details: Mapping[str, Any]


class Plan(NamedTuple):
    """A network with a kernel for each layer."""

    median_us: float
    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    digest: str | None


def device(number: int, name: object, target: object, flops: object, moved: object) -> Device:
    """Return a device; raises TypeError or ValueError if a column is none of one, as the other functions do."""
    return Device(number, text(name), text(target), rate(flops), rate(moved))


def library(number: int, digest: object, kind: object, target: object, size: object) -> Library:
    """Return a binary."""
    if not re.fullmatch("[0-9a-f]{64}", text(digest)) or kind not in KINDS or not isinstance(size, int):
        raise ValueError(f"{digest!r}, {kind!r}, {size!r} are not the digest, kind and size of a binary")
    return Library(number, text(digest), text(kind), text(target), size)


def mapping(text: str) -> dict[str, Any]:
    """Return the JSON object of a text."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"{text} is not a JSON object")
    return value


def launch(values: Mapping[str, int]) -> Mapping[str, int]:
    """Return launch values; raises TypeError or ValueError if they are none."""
    if not all(isinstance(value, int) and -_INT32 <= value < _INT32 for value in values.values()):
        raise ValueError(f"{values} are not 32-bit launch values")
    return values


def time(value: float | None) -> float | None:
    """Return a time, or None."""
    return None if value is None else float(value)


def rate(value: Any) -> float:
    """Return a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value} is not a rate")
    return float(value)


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
