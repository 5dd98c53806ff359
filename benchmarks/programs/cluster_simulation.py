"""Replays a recording on clusters of different sizes: how long a search takes, and how it scales."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from autotune.search import DEFAULT_SAMPLER, TuneTrace
from autotune.tuner import replay
from autotune_cli.chart import FAINT, INK, OURS

CORES_PER_HOST = 16
"""Cores of a machine that compiles."""
HOSTS = (1, 2, 4, 8, 16, 32, 64)
"""Machines that compile."""
DEVICES = (1, 2, 4, 8)
"""GPUs that measure."""
NEAR_BEST = 0.02
"""The search counts as done when the sum of the layers' best times is at most this much above its optimum."""
COLORS = ("#c9d0da", "#8d99a8", "#7fb08a", OURS)
"""Of the curves of DEVICES."""


@dataclass(frozen=True)
class ClusterTime:
    """The time of a search on a cluster.

    Attributes:
        hosts: Machines that compile, of CORES_PER_HOST cores.
        devices: GPUs that measure.
        seconds: Simulated seconds until the search is done, of each seed.
    """

    hosts: int
    devices: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the seeds."""
        return statistics.median(self.seconds)


def simulate(trace: TuneTrace, seeds: int, share: float, gain: float) -> list[ClusterTime]:
    """Return the time of a search on each cluster of HOSTS and DEVICES.

    Args:
        trace: The recording.
        seeds: Searches of each cluster.
        share: Share of a layer's configs that may be tried.
        gain: Expected improvement below which the search of a layer rests.
    """
    return [
        ClusterTime(
            hosts,
            devices,
            tuple(
                replay(
                    trace, DEFAULT_SAMPLER, seed, CORES_PER_HOST * hosts, share, gain, devices=devices
                ).seconds_within(NEAR_BEST)
                for seed in range(seeds)
            ),
        )
        for devices in DEVICES
        for hosts in HOSTS
    ]


def least_seconds(trace: TuneTrace) -> float:
    """Return the least time of any search: until each layer has compiled and measured a kernel near its best."""
    best = trace.best_us()
    earliest = dict.fromkeys(best, math.inf)
    for traced in trace.spaces:
        problem = traced.space.problem
        for result in traced.results:
            if result.best_us and result.best_us <= (1 + NEAR_BEST) * best[problem]:
                seconds = result.compile_seconds + result.device_seconds
                earliest[problem] = min(earliest[problem], seconds)
    return max(earliest.values())


def table(times: Sequence[ClusterTime], title: str) -> Table:
    """Return the medians, a row for each number of devices."""
    made = Table(title=title, title_justify="left", box=None, header_style="bold")
    made.add_column("GPUs", justify="right")
    for hosts in HOSTS:
        made.add_column(f"{hosts} host{'s' * (hosts > 1)}", justify="right", no_wrap=True)
    for devices in DEVICES:
        own = [one for one in times if one.devices == devices]
        made.add_row(str(devices), *(f"{one.median:.1f} s" for one in own))
    return made


def save(times: Sequence[ClusterTime], trace: TuneTrace, made_by: dict[str, Any], path: Path) -> None:
    """Write the times of all seeds to a file.

    Args:
        times: The times.
        trace: The recording.
        made_by: The commit, and the machine of the simulation.
        path: JSON file to write.
    """
    clusters = [{"hosts": one.hosts, "gpus": one.devices, "seconds": list(one.seconds)} for one in times]
    facts: dict[str, Any] = {"device": trace.device, "layers": len(trace.best_us()), "cores_per_host": CORES_PER_HOST}
    facts["least_seconds"] = round(least_seconds(trace), 2)
    path.write_text(json.dumps({**made_by, "recording": facts, "clusters": clusters}, indent=1) + "\n")


def draw(times: Sequence[ClusterTime], title: str, path: Path) -> None:
    """Draw how many times faster each cluster is than one host and one GPU, beside the ideal.

    Args:
        times: The times.
        title: Title of the figure.
        path: PNG file to write.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.2), dpi=160, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold")
    axis = figure.subplots()
    one = next(each.median for each in times if (each.hosts, each.devices) == (HOSTS[0], DEVICES[0]))
    cores = [CORES_PER_HOST * hosts for hosts in HOSTS]
    axis.plot(cores, HOSTS, color=FAINT, linestyle=":", linewidth=1.4, label="ideal")
    for devices, color in zip(DEVICES, COLORS, strict=True):
        own = [one / each.median for each in times if each.devices == devices]
        label = f"{devices} GPU{'s' * (devices > 1)}"
        axis.plot(cores, own, color=color, linewidth=2.2, marker="o", markersize=4, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_ylim(0.5, 2 ** math.ceil(math.log2(HOSTS[-1])))
    axis.set_xticks(cores, [str(count) for count in cores])
    axis.yaxis.set_major_formatter("{x:g}x")
    axis.set_xlabel(f"cores that compile, in hosts of {CORES_PER_HOST}", color=FAINT)
    axis.set_ylabel(f"times faster than {CORES_PER_HOST} cores and 1 GPU ({one:.0f} s)", color=FAINT)
    axis.grid(color="#eef1f5")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.legend(frameon=False, labelcolor=INK, loc="upper left")
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)
