"""Digests of rows, by which a reader finds what is not as it was stored.

The digest of a row is the SHA-256 of all that running reads of it, stored in its column `digest`. It is independent of
row ids: in place of another row's id it covers what identifies that row. It is the SHA-256 of a JSON list in ASCII
without spaces, whose objects are sorted by key:

- kernel: ["kernel", KERNEL, symbol, weight_layouts, launch_names, BINARY]
- measurement: ["measurement", DEVICE, problem, KERNEL, launch, status, median_us, final, interval_us, workspace_bytes]
- plan: ["plan", DEVICE, network, median_us, CHOICES, alternatives]
- network: ["network", key, text], of which the row has the packed text

KERNEL is [family, config, dtype, epilogue, target]; the source is left out, because a refactoring may renew it. BINARY
is [digest, kind, target] of the library, or null. DEVICE is [name, target]. CHOICES has [layer, KERNEL, launch, us,
overlap] for each layer. A launch is what `launch_text` returns. `interval_us`, `workspace_bytes` and `alternatives` are
from the column `details`, or null.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuning_db.errors import DatabaseError


def launch_text(launch: Mapping[str, int]) -> str:
    """Return the canonical text of launch values: equal for equal values, in whatever order they are given."""
    return " ".join(f"{name}={int(value)}" for name, value in sorted(launch.items()))


Row = Mapping[str, Any]

KERNEL = ("family", "config", "dtype", "epilogue", "target")
"""The columns that identify a kernel, whichever source it was compiled from."""

_LONGEST_TEXT = 2**24
"""Most bytes of a network's text. ResNet-50 with all alternatives has 38 kB; a damaged row must not fill the memory."""

_DECODER_BYTES = 2**27
"""Most memory of the decoder; the highest preset takes 65 MiB."""

UNREADABLE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions of decoding a column whose content is not what the schema says."""


def kernel(row: Row, library: Row | None) -> str:
    """Return the digest of a kernel's row; `library` is the row of its binary."""
    binary = [_text(library[name]) for name in ("digest", "kind", "target")] if library else None
    layouts = {_text(name): _text(layout) for name, layout in (row["weight_layouts"] or {}).items()}
    names = [_text(name) for name in row["launch_names"] or ()]
    return _digest("kernel", _identity(row), _text(row["symbol"]), layouts, names, binary)


def measurement(row: Row, device: Row, problem: str, measured: Row) -> str:
    """Return the digest of a measurement's row.

    Args:
        row: The measurement.
        device: The row of its device.
        problem: Text of its problem.
        measured: The row of its kernel.
    """
    details = row.get("details") or {}
    return _digest(
        "measurement",
        _device(device),
        _text(problem),
        _identity(measured),
        launch_text(row.get("launch") or {}),
        _text(row["status"]),
        _number(row.get("median_us")),
        bool(row.get("final")),
        details.get("interval_us"),
        details.get("workspace_bytes"),
    )


def candidate(family: str, config: str, symbol: str, binary: str | None, launch: Mapping[str, int]) -> str:
    """Return a digest of a kernel with launch values; `binary` is the digest of its binary, None without one."""
    return _digest("candidate", family, config, symbol, binary, launch_text(launch))


def plan(row: Row, device: Row, kernels: Mapping[int, Row]) -> str:
    """Return the digest of a plan's row; `kernels` holds the rows of its kernels by id."""
    choices = [
        [
            _text(choice["layer"]),
            _identity(kernels[choice["kernel"]]),
            launch_text(choice["launch"]),
            _number(choice.get("us")),
            bool(choice.get("overlap")),
        ]
        for choice in row["choices"]
    ]
    alternatives = (row.get("details") or {}).get("alternatives")
    return _digest("plan", _device(device), _text(row["network"]), _number(row["median_us"]), choices, alternatives)


def packed(text: str) -> str:
    """Return the text of a network as the database keeps it."""
    return base64.b85encode(_lzma().compress(text.encode(), preset=9)).decode()


def unpacked(body: str) -> str:
    """Return the text that `packed` was given; raises ValueError if it is damaged or longer than _LONGEST_TEXT."""
    lzma = _lzma()
    decoder = lzma.LZMADecompressor(memlimit=_DECODER_BYTES)
    try:
        text = decoder.decompress(base64.b85decode(_text(body)), _LONGEST_TEXT)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"the text of a network is damaged: {error}") from error
    if not decoder.eof or decoder.unused_data:
        raise ValueError(f"the text of a network is damaged, or longer than {_LONGEST_TEXT} bytes")
    return str(text, "utf-8")


def _lzma() -> Any:
    try:
        import lzma  # not every build of Python has it
    except ImportError as error:
        raise DatabaseError(f"networks are stored by LZMA, which this Python was built without: {error}") from error
    return lzma


def network(row: Row) -> str:
    """Return the digest of a network's row."""
    return _digest("network", _text(row["key"]), unpacked(row["body"]))


def network_text(database: str, row: Row) -> str:
    """Return the text of a network's row; raises DatabaseError if the row is not as it was stored."""
    try:
        if network(row) == row["digest"]:
            return unpacked(row["body"])
    except UNREADABLE as error:
        raise damaged(database, "network", row["id"]) from error
    raise damaged(database, "network", row["id"])


def fill(database: str, tables: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Check the digests of all rows that have one, and set those of the others.

    Args:
        database: Name of the database, for the message.
        tables: Rows of the tables device, problem, library, kernel, measurement, plan and, where there is one, network.
            Blobs are not needed.

    Raises:
        DatabaseError: A row is not as it was stored.
    """
    devices, problems, libraries, kernels = (
        {row["id"]: row for row in tables[name]} for name in ("device", "problem", "library", "kernel")
    )
    makers: dict[str, Callable[[Row], str]] = {
        "kernel": lambda row: kernel(row, None if row["library_id"] is None else libraries[row["library_id"]]),
        "measurement": lambda row: measurement(
            row, devices[row["device_id"]], problems[row["problem_id"]]["text"], kernels[row["kernel_id"]]
        ),
        "plan": lambda row: plan(row, devices[row["device_id"]], kernels),
        "network": network,
    }
    for table, make in makers.items():
        for row in tables.get(table, ()):
            try:
                digest = make(row)
            except UNREADABLE:
                digest = ""
            if not digest or row["digest"] not in (None, digest):
                raise damaged(database, table, row["id"])
            row["digest"] = digest


def damaged(database: str, table: str, number: object) -> DatabaseError:
    """Return the error of a row that is not as it was stored."""
    return DatabaseError(
        f"{database}: row {number} of table '{table}' is damaged or was changed after it was stored: restore the file "
        "from a copy, or tune again"
    )


def _digest(*values: object) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(row: Row) -> list[str]:
    return [_text(row[name]) for name in KERNEL]


def _device(row: Row) -> list[str]:
    return [_text(row["name"]), _text(row["target"])]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]
