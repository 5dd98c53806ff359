"""The contents of a report: plain records, collected from a database once and independent of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.codegen import KernelResources
from autotune.core import FlopUnit, flop_unit
from autotune.runtime import ActivationPlace
from autotune.tuner.optuna_export import Value

OURS, CUDNN, TORCH = "ours", "cuDNN", "torch"
"""The runners of candidates: kernels of families, plans of cuDNN, and operators of torch (eager or by Inductor)."""


@dataclass(frozen=True)
class Trial:
    """One measurement of a layer's candidate.

    Attributes:
        kernel: Id of the kernel in the database.
        launch: Text of the launch values.
        family: Name of the family or of the library.
        params: Values of the parameters of the kernel and of its launch.
        status: "ok", or the kind of failure.
        error: Message of a failure.
        us: Median time in microseconds; None for a failure.
        spread_us: Interquartile range of the samples in microseconds.
        final: Whether it was timed in interleaved rounds with the other finalists.
        recorded: When it was recorded, in seconds since 1970; None if that is not known.
        seconds: Seconds of each phase of the trial, as far as they are stored.
        states: Clocks, temperature, power and reasons of throttling before and after it, as far as they are stored.
        resources: Registers and memory of the kernel; None if it is not a device image of ours.
    """

    kernel: int
    launch: str
    family: str
    params: Mapping[str, Value]
    status: str
    error: str
    us: float | None
    spread_us: float | None
    final: bool
    recorded: float | None
    seconds: Mapping[str, float]
    states: tuple[Mapping[str, Any], ...] = ()
    resources: KernelResources | None = None


@dataclass(frozen=True)
class Importances:
    """How much each parameter of a family matters for a layer's times, or why that is not known.

    Attributes:
        family: Name of the family or of the library.
        values: Parameter -> importance; the sum is 1.
        reason: Why there are no values.
    """

    family: str
    values: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class FailureCause:
    """Candidates of a family that failed with the same message.

    Attributes:
        family: Name of the family or of the library.
        status: "does not compile", or the status of the measurement.
        message: The error message.
        count: Number of candidates.
        example: Text of one of them.
    """

    family: str
    status: str
    message: str
    count: int
    example: str


@dataclass(frozen=True)
class Layer:
    """A problem on a device with its trials.

    Attributes:
        id: Identifies the layer in the page: the rows of its device and problem, such as "1.17".
        problem: Text of the problem.
        name: Short text of the problem.
        batch: Batch size; None if the operator is not known here.
        flops: Floating-point operations; None if the operator is not known here.
        bytes: Smallest number of bytes to move; None if the operator is not known here.
        limit_us: Time at the device's limits in microseconds; None if the operator is not known here.
        limiter: "arithmetic" or "memory", whichever takes longer at the device's limits.
        trials: In the order in which they were made.
        importances: Of each family.
        failures: The failures by cause, the most frequent one first.
        winner: Text of the best candidate; empty if none was verified.
        family: Its family or library.
        runner: What runs it: OURS, CUDNN or TORCH.
        us: Its time in microseconds.
        library_us: OURS, CUDNN, TORCH -> the shortest time of such a candidate.
    """

    id: str
    problem: str
    name: str
    batch: int | None
    flops: int | None
    bytes: int | None
    limit_us: float | None
    limiter: str
    trials: tuple[Trial, ...]
    importances: tuple[Importances, ...]
    failures: tuple[FailureCause, ...]
    winner: str = ""
    family: str = ""
    runner: str = ""
    us: float | None = None
    library_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def share_of_limit(self) -> float | None:
        """Return the time at the device's limits over the time taken."""
        return self.limit_us / self.us if self.limit_us and self.us else None

    @property
    def flops_per_us(self) -> float | None:
        """Return the achieved arithmetic rate in FLOP per microsecond."""
        return self.flops / self.us if self.flops and self.us else None

    @property
    def gb_per_s(self) -> float | None:
        """Return the achieved GB/s, if every operand is moved once."""
        return self.bytes / self.us / 1e3 if self.bytes and self.us else None

    @property
    def intensity(self) -> float | None:
        """Return the arithmetic intensity in FLOP/byte; None for a problem without arithmetic."""
        return self.flops / self.bytes if self.flops and self.bytes else None


@dataclass(frozen=True)
class NetworkLayer:
    """A layer of a network with the candidate that runs it.

    Attributes:
        name: Name of the layer in its network.
        candidate: Text of the candidate.
        runner: OURS, CUDNN or TORCH.
        us: Time of the candidate alone in microseconds.
        share: Its share of the sum over all layers.
        layer: Its problem; None if the database does not tell it.
    """

    name: str
    candidate: str
    runner: str
    us: float
    share: float
    layer: Layer | None

    @property
    def share_of_limit(self) -> float | None:
        """Return the time at the device's limits over the time taken."""
        return self.layer.limit_us / self.us if self.layer and self.layer.limit_us and self.us else None


@dataclass(frozen=True)
class NetworkTime:
    """The plan of a network, with its layers.

    Attributes:
        key: Text that identifies it in the database.
        layers: In the order in which they run.
        label: Name that the user gave the model; empty if it is not known or is that of the key.
        precompiled: Whether the plan is the one for machines without a compiler.
        us: Time of the whole network; None if it was not timed.
        spread_us: Interquartile range of the whole network's samples.
        winners_us: Time of the whole network with the winner of each layer.
        torch_us: Times of the whole network on torch's operators, by candidate.
        is_throttled: Whether the device was slowed down while the network was timed.
        verified: What `autotune verify` found here about the plan, as a sentence; empty if it was never run.
        taken: Names of the alternatives that the plan takes.
        memory: Places of the activations; none if the plan does not tell them.
    """

    key: str
    layers: tuple[NetworkLayer, ...]
    label: str = ""
    precompiled: bool = False
    us: float | None = None
    spread_us: float | None = None
    winners_us: float | None = None
    torch_us: Mapping[str, float] = field(default_factory=dict)
    is_throttled: bool = False
    verified: str = ""
    taken: tuple[str, ...] = ()
    memory: tuple[ActivationPlace, ...] = ()

    @property
    def sum_us(self) -> float:
        """Return the sum of the layers' times."""
        return sum(layer.us for layer in self.layers)

    @property
    def flops(self) -> int | None:
        """Return the floating-point operations of all layers; None if the problem of one is not known."""
        known = [one.layer.flops or 0 for one in self.layers if one.layer]
        return sum(known) if len(known) == len(self.layers) else None

    def has_times_of(self, runner: str) -> bool:
        """Return whether a layer's problem has a time of OURS, CUDNN or TORCH."""
        return any(one.layer and runner in one.layer.library_us for one in self.layers)


@dataclass(frozen=True)
class Run:
    """Trials that follow each other without a long pause.

    Attributes:
        started: When the first trial was recorded, in seconds since 1970.
        seconds: Time from the first trial to the last one.
        trials: Number of trials.
        layers: Number of problems with a time.
        best: Seconds since the start -> sum over the problems of the best time so far in microseconds.
        busy: Phase -> seconds spent in each of equal intervals of the run.
    """

    started: float
    seconds: float
    trials: int
    layers: int
    best: tuple[tuple[float, float], ...]
    busy: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class DeviceReport:
    """All that a database holds of one device.

    Attributes:
        name: Name of the device.
        flops_per_us: Highest arithmetic rate measured.
        bytes_per_us: Highest memory rate measured.
        facts: Name -> text of what is stored about the device and its state.
        layers: The problems with trials.
        networks: Those with a plan, and those of the project whose layers were all timed.
        runs: The tuning runs with a recorded search.
    """

    name: str
    flops_per_us: float
    bytes_per_us: float
    facts: tuple[tuple[str, str], ...]
    layers: tuple[Layer, ...]
    networks: tuple[NetworkTime, ...]
    runs: tuple[Run, ...]

    @property
    def unit(self) -> FlopUnit:
        """Return the unit of arithmetic rates."""
        return flop_unit(self.flops_per_us)

    def has_times_of(self, runner: str) -> bool:
        """Return whether a problem has a time of OURS, CUDNN or TORCH."""
        return any(runner in layer.library_us for layer in self.layers)


@dataclass(frozen=True)
class Report:
    """All that a report shows of one database.

    Attributes:
        name: The database, as the user named it.
        facts: Name -> text of what is stored about software, compilers and trials.
        devices: The devices.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    devices: tuple[DeviceReport, ...]
