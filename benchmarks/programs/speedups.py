"""Speedups over torch.compile in a record of `bench_networks.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

PEERS = {"compile_frozen": "reduce-overhead", "compile_max": "max-autotune"}
"""Variant of `autotune bench` -> mode of torch.compile."""


@dataclass(frozen=True)
class Row:
    """One network at one batch size.

    Attributes:
        network: Its name.
        batch: The batch size.
        us: Time of FusedResNet after the tune, in microseconds; NaN if it did not run.
        speedup: Time of torch.compile's faster mode over `us`.
        untuned: Time of torch.compile's faster mode over that of FusedResNet with nothing tuned.
        peers: Time of each mode of torch.compile over `us`, by its name.
        error: Relative error of FusedResNet's results.
        error_ratio: `error` over that of eager torch in the same dtype.
    """

    network: str
    batch: int
    us: float
    speedup: float
    untuned: float
    peers: Mapping[str, float]
    error: float
    error_ratio: float


def rows(record: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the table: for each network and batch size those that ran."""
    entries = record["networks"].items()
    return [_row(name, batch) for name, entry in entries for batch in entry.get("batches", ())]


def _row(name: str, batch: Mapping[str, Any]) -> Row:
    ran = {key: one for key, one in batch["variants"].items() if one["status"] == "ok"}
    ratios = {key: one["stream_ratio"]["median"] for key, one in ran.items() if one["stream_ratio"]}
    peers = {label: ratios[key] for key, label in PEERS.items() if key in ratios}
    errors = {key: ran[key]["error"] if key in ran else math.nan for key in ("fused", "eager")}
    best = min(peers.values(), default=math.nan)
    return Row(
        network=name,
        batch=batch["batch"],
        us=ran["fused"]["stream"]["median"] if "fused" in ran else math.nan,
        speedup=best,
        untuned=best / ratios.get("untuned", math.nan),
        peers=peers,
        error=errors["fused"],
        error_ratio=errors["fused"] / errors["eager"],
    )


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean of the values that are numbers; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return geometric_mean(known) if known else math.nan
