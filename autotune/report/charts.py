"""The charts of a report as positions and labels; the page's template draws them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import FlopUnit, format_bytes, number
from autotune.report.axes import Axis, Tick, log_axis
from autotune.report.records import DeviceReport, Layer, NetworkTime, Run
from autotune.runtime import ActivationPlace

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 400, 78, 64, 14, 46
"""Size of a chart and its margins; the units are pixels in a window that is wide enough."""

LANE, LANE_GAP = 20, 8
"""Height of a lane, and the gap above it."""


@dataclass(frozen=True)
class Point:
    """A layer in the roofline chart.

    Attributes:
        x: Horizontal position.
        y: Vertical position.
        layer: The layer.
        label: What the tooltip and a screen reader tell.
    """

    x: float
    y: float
    layer: Layer
    label: str


@dataclass(frozen=True)
class Roofline:
    """The roofline chart of a device.

    Attributes:
        points: The layers, the slowest first, so that small ones stay on top.
        roof: Points of the limit's line.
        roof_y: Vertical position of its level part.
        ridge: Arithmetic intensity in FLOP/byte from which on arithmetic is the limit.
        x_ticks: Ticks of the arithmetic intensity.
        y_ticks: Ticks of the arithmetic rate, in the unit of the device.
        left_out: Number of layers without arithmetic or without a time.
    """

    points: tuple[Point, ...]
    roof: str
    roof_y: float
    ridge: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    left_out: int


def roofline(device: DeviceReport) -> Roofline | None:
    """Return the roofline chart of a device; None if no layer has arithmetic and a time."""
    unit = device.unit.flops_per_us
    drawn = [
        (one, one.intensity, one.flops_per_us / unit) for one in device.layers if one.intensity and one.flops_per_us
    ]
    drawn = sorted(drawn, key=lambda row: -(row[0].us or 0.0))
    if not drawn:
        return None
    peak, per_byte = device.flops_per_us / unit, device.bytes_per_us / unit
    ridge = peak / per_byte
    x = log_axis([ridge, *(intensity or 0.0 for _, intensity, _ in drawn)], LEFT, WIDTH - RIGHT)
    y = log_axis([peak, *(rate for *_, rate in drawn)], HEIGHT - BOTTOM, TOP)
    foot = max(x.low, y.low / per_byte)
    roof = [(foot, foot * per_byte), (ridge, peak), (x.high, peak)]
    return Roofline(
        points=tuple(
            Point(x.at(at or 0.0), y.at(rate), layer, describe(layer, device.unit)) for layer, at, rate in drawn
        ),
        roof=" ".join(f"{x.at(at)},{y.at(rate)}" for at, rate in roof),
        roof_y=y.at(peak),
        ridge=ridge,
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        left_out=len(device.layers) - len(drawn),
    )


def describe(layer: Layer, unit: FlopUnit) -> str:
    """Return the numbers of a layer in a few lines."""
    lines = [layer.name]
    if layer.us:
        lines.append(f"{number(layer.us)} us by {layer.family}")
    if layer.flops_per_us:
        lines.append(f"{unit.text(layer.flops_per_us, 3)}, {layer.intensity:.3g} FLOP/byte")
    if layer.gb_per_s:
        lines.append(f"{layer.gb_per_s:.4g} GB/s")
    if layer.share_of_limit:
        lines.append(f"{layer.share_of_limit:.0%} of the limit by {layer.limiter}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Lane:
    """The seconds of one phase over the time of a run.

    Attributes:
        name: Name of the phase.
        total: Its seconds in the run.
        y: Position of the lane's lower edge.
        path: Bars, one for each interval; the longest one is as high as the lane.
    """

    name: str
    total: float
    y: float
    path: str


@dataclass(frozen=True)
class History:
    """The chart of a run.

    Attributes:
        run: The run.
        height: Height of the chart with its lanes.
        line: Path of the sum of the best times so far.
        x_ticks: Ticks of the seconds.
        y_ticks: Ticks of the sum in microseconds.
        lanes: A lane for each phase whose seconds are stored.
    """

    run: Run
    height: float
    line: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lanes: tuple[Lane, ...]


def history(run: Run) -> History:
    """Return the chart of a run."""
    x = Axis(0.0, run.seconds, LEFT, WIDTH - RIGHT)
    y = log_axis((us for _, us in run.best), HEIGHT - BOTTOM, TOP, margin=1.1)
    line = "".join(f"H{x.at(at)}V{y.at(us)}" for at, us in run.best)
    lanes = tuple(
        _lane(name, seconds, HEIGHT + (i + 1) * (LANE + LANE_GAP)) for i, (name, seconds) in enumerate(run.busy.items())
    )
    height = HEIGHT + len(lanes) * (LANE + LANE_GAP) + LANE_GAP
    start = f"M{x.at(0.0)} {y.at(run.best[0][1])}"
    return History(run, height, start + line, x.ticks(), y.ticks(), lanes)


@dataclass(frozen=True)
class Block:
    """An activation in the memory chart: a rectangle from its first to its last layer.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
        label: What the tooltip tells.
    """

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class MemoryChart:
    """The activations of a network in memory, over the layers in the order in which they are launched.

    Attributes:
        blocks: The activations.
        x_ticks: Ticks of the layers' numbers.
        y_ticks: Ticks of the offset in MiB.
        bytes: Size of the memory of all activations.
        sum_bytes: Sum of their sizes.
    """

    blocks: tuple[Block, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bytes: int
    sum_bytes: int


def memory(network: NetworkTime) -> MemoryChart | None:
    """Return the memory chart of a network; None if its plan tells no activations."""
    places = network.memory
    size = max((place.offset + place.bytes for place in places), default=0)
    if not size:
        return None
    names = [layer.name for layer in network.layers]
    x = Axis(0.0, max(place.last for place in places) + 1.0, LEFT, WIDTH - RIGHT)
    y = Axis(0.0, size / 2**20, HEIGHT - BOTTOM, TOP)

    def block(place: ActivationPlace) -> Block:
        left, right = x.at(place.first), x.at(place.last + 1)
        top, bottom = y.at((place.offset + place.bytes) / 2**20), y.at(place.offset / 2**20)
        since, until = (names[i] if i < len(names) else str(i) for i in (place.first, place.last))
        label = f"{place.name.lstrip('%')}\n{format_bytes(place.bytes)}\nfrom {since} to {until}"
        return Block(left, top, round(right - left, 1), round(bottom - top, 1), label)

    total = sum(place.bytes for place in places)
    return MemoryChart(tuple(map(block, places)), x.ticks(), y.ticks(), size, total)


def _lane(name: str, seconds: Sequence[float], y: float) -> Lane:
    width, longest = (WIDTH - RIGHT - LEFT) / len(seconds), max(seconds)
    bars = [
        f"M{LEFT + i * width:.1f} {y}v-{LANE * spent / longest:.1f}h{width:.1f}V{y}z"
        for i, spent in enumerate(seconds)
        if spent
    ]
    return Lane(name, sum(seconds), y, "".join(bars))
