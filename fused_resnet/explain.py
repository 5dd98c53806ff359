"""What runs each layer of a bound network, why, and how good that is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune.core import ceil_div, device_name, format_bytes
from autotune.ir import Problem, limit_us, with_batch
from autotune.runtime import BoundLayer, ExecutionContext, batches
from tuning_db.protocols import Database, Device


@dataclass(frozen=True)
class Row:
    """One layer. Times are in microseconds; None is what the database cannot say.

    dtype: of what it reads and multiplies.
    kernel: what runs it, with its config. source: why: "tuned", "batch 128", "batch 128 on DEVICE", or "untuned".
    expected_us: its tuned time or, at another batch, the most that it should take.
    loss: by what share it may be slower than a kernel tuned for this batch would be, at most.
    limit_share: the time that the device's rates of arithmetic and memory allow, as a share of expected_us.
    """

    layer: str
    dtype: str
    kernel: str
    source: str
    expected_us: float | None
    loss: float | None
    limit_share: float | None


@dataclass(frozen=True)
class Explanation:
    """A table: str() prints it, iterating yields its rows.

    network_us: the whole network's time, where it was settled as a whole. arena_bytes: peak memory of activations,
    of which buffer_bytes would be needed without sharing; frame_bytes: all memory of one stream, with workspaces.
    kept: where layers are in bytes, the convolutions and linear layers that are not, and why.
    """

    rows: tuple[Row, ...]
    network_us: float | None
    arena_bytes: int
    buffer_bytes: int
    frame_bytes: int
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected_us(self) -> float | None:
        """Sum of the layers' times."""
        times = [row.expected_us for row in self.rows]
        return sum(time for time in times if time is not None) if None not in times else None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        mixed = len({row.dtype for row in self.rows}) > 1  # a column more, and room for it
        name, kernel = (18, 17) if mixed else (24, 20)
        lines = [("layer", "in", "kernel", "from", "us", "loss <=", "of limit")]
        lines += [
            (
                _cut(row.layer, name),
                row.dtype,
                _cut(row.kernel.split()[0], kernel),
                _cut(row.source, 12),
                _number(row.expected_us),
                _percent(row.loss),
                _percent(row.limit_share),
            )
            for row in self.rows
        ]
        lines.append(("sum", "", "", "", _number(self.expected_us), "", ""))
        padded = [
            [cell.ljust(max(map(len, column))) if i < 4 else cell.rjust(max(map(len, column))) for cell in column]
            for i, column in enumerate(zip(*lines, strict=True))
            if mixed or i != 1
        ]
        table = ["  ".join(line) for line in zip(*padded, strict=True)]
        table.insert(1, "-" * len(table[0]))
        if self.network_us is not None:
            table.append(f"the whole network, timed as one: {self.network_us:.1f} us")
        table += textwrap.wrap(self._told(), 80) if self.kept else []
        saved = 1 - self.arena_bytes / self.buffer_bytes if self.buffer_bytes else 0.0
        table.append(
            f"activations: {format_bytes(self.arena_bytes)} at the peak, {saved:.0%} less than one buffer each"
        )
        table.append(f"with workspaces: {format_bytes(self.frame_bytes)} for each stream")
        return "\n".join(line.rstrip() for line in table)

    def _told(self) -> str:
        """Which layers are not in bytes, and why."""
        reasons = dict.fromkeys(self.kept.values())
        named = {why: ", ".join(name for name, its in self.kept.items() if its == why) for why in reasons}
        return "not in bytes: " + "; ".join(f"{names} ({why})" for why, names in named.items())


def explain(frame: ExecutionContext, store: Database) -> Explanation:
    """The table of what a frame runs."""
    plan = frame.plan
    device = store.device(device_name(plan.device))
    settled = store.plan(device, plan.network.key) if device else None
    return Explanation(
        tuple(_row(item, store, device) for item in plan.bound),
        settled.median_us if settled else None,
        plan.arena.bytes,
        sum(operand.bytes for operand in plan.buffers.values()),
        frame.bytes,
        plan.network.kept,
    )


def _row(item: BoundLayer, store: Database, device: Device | None) -> Row:
    choice, problem = item.choice, item.layer.problem
    least = limit_us(problem, device.flops_per_us, device.bytes_per_us) if device else None
    expected, loss = None, None
    if choice.source == "tuned":
        expected, loss = choice.expected_us, 0.0
    elif choice.expected_us is not None and choice.tuned_batch and " on " not in choice.source:
        # A kernel does no more for fewer images, and at worst it is run again for more.
        expected = choice.expected_us * ceil_div(problem.batch, choice.tuned_batch)
        best = _least_us(problem, store, device, least)
        loss = max(0.0, expected / best - 1) if best else None
    share = least / expected if least is not None and expected else None
    return Row(item.layer.name, problem.dtype, str(choice.candidate), choice.source, expected, loss, share)


def _least_us(problem: Problem, store: Database, device: Device | None, limit: float | None) -> float | None:
    """What even the best kernel needs for this batch, as the tuned batches tell.

    For fewer images it would serve as well, so it takes no less than the best for fewer; and a larger batch is
    solved by running it several times, so it takes no less than that share of the best for more.
    """
    if device is None:
        return None
    bounds = [limit or 0.0]
    for n in batches(store, problem):
        time = store.best_us(device, str(with_batch(problem, n)))
        if time is not None:
            bounds.append(time / ceil_div(n, problem.batch))
    return max(bounds) or None


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.0f} %"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
