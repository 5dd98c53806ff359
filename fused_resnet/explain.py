"""The table of `FusedResNet.explain`: the kernel of each layer, why it was chosen, and how fast it is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from autotune.core import ceil_div, device_name, software
from autotune.ir import Problem, limit_us, with_batch
from autotune.libraries import inductor
from autotune.runtime import BoundLayer, NetworkPlan, batches, differs_in_batch_alone
from fused_resnet.memory import MemoryReport
from fused_resnet.text_table import end_of, format_table, number, percent, shortened
from tuning_db import evidence
from tuning_db.protocols import Database, Device, Plan


@dataclass(frozen=True)
class LayerRow:
    """One layer of the table. A number is None where the database has no data for it.

    Attributes:
        layer: Name of the layer.
        problem: What it computes: the text of the problem in the database.
        dtype: Dtype of its operands.
        kernel: The candidate that runs it, with its config and launch parameters.
        source: Where the choice comes from: "tuned", "batch 128", "size 64x64", each with " on DEVICE" or not, or
            "untuned".
        expected_us: Its tuned time in microseconds; for a kernel tuned at another batch size, an upper bound; for one
            tuned at another image size, that time in proportion to the roofline limits of the two sizes.
        loss: Upper bound on the share by which it is slower than a kernel tuned for this batch size; None at another
            image size.
        limit_share: Time by the device's peak rates of arithmetic and memory (roofline), divided by expected_us.
    """

    layer: str
    problem: str
    dtype: str
    kernel: str
    source: str
    expected_us: float | None
    loss: float | None
    limit_share: float | None


@dataclass(frozen=True)
class Explanation:
    """A table of layers: str() formats it, iterating over it yields its rows.

    Attributes:
        rows: One row for each layer, in order.
        network_us: Time of the whole network in microseconds, if it was tuned as a whole.
        torch_us: Times of torch's operators for the whole network in the rounds of that time, by candidate.
        is_throttled: Whether the device was slowed down in these rounds.
        verified: What `autotune verify` found about the plan on this device with this software, as a sentence.
        memory: The memory that the module needs for such calls.
        kept: For a network in an 8-bit format, the reason for each convolution or linear layer that is not.
    """

    rows: tuple[LayerRow, ...]
    network_us: float | None
    torch_us: Mapping[str, float]
    memory: MemoryReport
    kept: Mapping[str, str] = field(default_factory=dict)
    is_throttled: bool = False
    verified: str = ""

    @property
    def expected_us(self) -> float | None:
        """Sum of the layers' times in microseconds; None if one of them is unknown."""
        times = [row.expected_us for row in self.rows]
        return sum(time for time in times if time is not None) if None not in times else None

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        mixed = len({row.dtype for row in self.rows}) > 1  # the column of dtypes needs room
        name, kernel = (18, 17) if mixed else (24, 20)
        lines: list[tuple[str, ...]] = [("layer", "in", "kernel", "from", "us", "loss <=", "of limit")]
        lines += [
            (
                end_of(row.layer, name),
                row.dtype,
                shortened(row.kernel.split()[0], kernel),
                shortened(row.source, 12),
                number(row.expected_us),
                percent(row.loss),
                percent(row.limit_share),
            )
            for row in self.rows
        ]
        lines.append(("sum", "", "", "", number(self.expected_us), "", ""))
        if not mixed:
            lines = [line[:1] + line[2:] for line in lines]
        table = format_table(lines, left=range(4 if mixed else 3))
        if self.network_us is None and not any(row.expected_us for row in self.rows):
            table.append("nothing is tuned for such inputs: fused_resnet.tune or `autotune tune` does")
        if self.network_us is not None:
            table.append(f"the whole network, timed as one: {self.network_us:.1f} us")
            table += textwrap.wrap(self._compared(), 80)
            table.append(self.verified)
        table += textwrap.wrap(self._kept_layers(), 80) if self.kept else []
        return "\n".join([*table, str(self.memory)])

    def _compared(self) -> str:
        """Return a sentence about the plan and torch's operators for the whole network, timed in one run."""
        fastest: dict[str, float] = {}
        for candidate, us in self.torch_us.items():
            name = "torch.compile" if inductor.compiles(candidate) else "eager PyTorch"
            fastest[name] = min(us, fastest.get(name, us))
        told = [f"{name} takes {us:.1f} us in the same run" for name, us in fastest.items()]
        if "torch.compile" not in fastest:
            told.append("it was not compared with torch.compile, which a longer tune does")
        if self.is_throttled:
            told.append("other processes or heat slowed the device down meanwhile: tune again")
        return "; ".join(told)

    def _kept_layers(self) -> str:
        """Return a sentence about the layers that are not in bytes, by reason."""
        reasons = dict.fromkeys(self.kept.values())
        named = {why: ", ".join(name for name, other in self.kept.items() if other == why) for why in reasons}
        return "not in bytes: " + "; ".join(f"{names} ({why})" for why, names in named.items())


def explain(plan: NetworkPlan, store: Database, memory: MemoryReport) -> Explanation:
    """Return the table of what a plan runs, with the times that the database has.

    Args:
        plan: The plan.
        store: The database.
        memory: The memory that it needs.
    """
    from autotune.measure import THROTTLED  # not needed to run a network

    device = store.device(device_name(plan.device))
    settled = store.plan(device, plan.network.key) if device else None
    return Explanation(
        tuple(_row(item, store, device) for item in plan.bound),
        settled.median_us if settled else None,
        settled.details.get("torch_us", {}) if settled else {},
        memory,
        plan.network.kept,
        bool(settled and settled.details.get(THROTTLED)),
        _verified(settled, plan.device) if settled else "",
    )


def _verified(plan: Plan, device: torch.device) -> str:
    """Return a sentence about the newest check of a plan with this software on this device."""
    found = evidence.last(plan.digest or "", device=device_name(device), **software(device))
    if found is None:
        return "never verified on this driver, torch and cuDNN: autotune verify DB"
    said = {evidence.WRONG: "found wrong", evidence.FAILED: "failed to run"}
    return f"{said.get(found.status, 'verified')} on this driver and torch on {found.date[:10]}"


def _row(item: BoundLayer, store: Database, device: Device | None) -> LayerRow:
    choice, problem = item.choice, item.layer.problem
    least = limit_us(problem, device.flops_per_us, device.bytes_per_us) if device else None
    expected, loss = None, None
    if choice.source == "tuned":
        expected, loss = choice.expected_us, 0.0
    elif choice.expected_us is not None and choice.tuned_for and " on " not in choice.source:
        tuned = choice.tuned_for
        if differs_in_batch_alone(tuned, problem):
            # Upper bound: time(n) <= ceil(n / tuned_n) x time(tuned_n).
            expected = choice.expected_us * ceil_div(problem.batch, tuned.batch)
            best = _least_us(problem, store, device, least)
            loss = max(0.0, expected / best - 1) if best else None
        elif device and least:
            expected = choice.expected_us * least / limit_us(tuned, device.flops_per_us, device.bytes_per_us)
    share = least / expected if least is not None and expected else None
    return LayerRow(
        item.layer.name, str(problem), problem.dtype, str(choice.candidate), choice.source, expected, loss, share
    )


def _least_us(problem: Problem, store: Database, device: Device | None, limit: float | None) -> float | None:
    """Return a lower bound on the time of the best kernel for this batch size n; None without data.

    It is the largest of: the roofline limit; the best time for each smaller batch size, because a kernel for n serves
    that, too; and the best time for each larger batch size m divided by ceil(m / n), because m images can be
    processed by that many runs for n.
    """
    if device is None:
        return None
    bounds = [limit or 0.0]
    for n in batches(store, problem):
        time = store.best_us(device, str(with_batch(problem, n)))
        if time is not None:
            bounds.append(time / ceil_div(n, problem.batch))
    return max(bounds) or None
