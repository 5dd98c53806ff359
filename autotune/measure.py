"""Verifies and times candidates on the device of this process. Runs inside the worker.

Timing follows three rules. Nothing is timed that was not verified on random data with poisoned outputs. A GPU
sample is a replayed CUDA graph of many launches between two events, so host cost stays out; the operands stay where
the network's own would be, in L2 if they fit. Finalists are timed in interleaved rounds, so that drift hits all alike.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from autotune.problem import DTYPES, Operand, Problem
from autotune.reference import compute
from fused_resnet.binding import Candidate, Step, bind
from fused_resnet.engine import RefusedError

# Largest relative error (norm) of a right result: a few times what rounding the output to the dtype costs.
# tf32 rounds the factors; half-precision sums are rounded at every step of the reduction.
HALF_SUMS = "f16 sums"
TOLERANCE = {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, HALF_SUMS: 1e-2}
# Largest error of one element, relative to that element and the root mean square of all.
ELEMENT_TOLERANCE = {"f32": 1e-3, "f16": 8e-3, "bf16": 6e-2, "tf32": 1.5e-2, HALF_SUMS: 8e-2}
# s8 is exact but for the float32 epilogue: what it may lose before the result is rounded to a whole number, a few
# roundings of values up to the hundreds.
WHOLE_SLACK = 1e-3

_GUARD = 4096  # bytes before and after each output that must stay untouched
_GUARD_BYTE = 0xA5
_BYTE_RMS = 74.0  # of uniform signed bytes
_SAMPLE_US = 400.0  # length of one GPU sample
_CPU_SAMPLE_US = 3000.0


class Runnable(Protocol):
    """What can be verified and timed: a bound candidate, or anything else that solves the problem on a stream."""

    def run(self, stream: int = 0) -> None:
        """Enqueue the work on a CUDA stream, or do it on a CPU."""


@dataclass(frozen=True)
class Result:
    """What became of one candidate: its times in microseconds, or why there are none."""

    status: str
    error: str | None = None
    relative_error: float | None = None
    median_us: float | None = None
    spread_us: float | None = None
    samples_us: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def timed(samples: list[float], **values: Any) -> Result:
    """A result from samples: median and interquartile range."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return Result(
        "ok",
        median_us=statistics.median(samples),
        spread_us=quartiles[2] - quartiles[0],
        samples_us=[round(sample, 4) for sample in samples],
        **values,
    )


class Case:
    """One problem on one device: random operands, the reference's answer, and guarded outputs."""

    def __init__(self, problem: Problem, device: torch.device, seed: int = 0) -> None:
        self.problem, self.device = problem, device
        generator = torch.Generator().manual_seed(seed)
        own = torch.empty(problem.scalars).uniform_(0.25, 1.0, generator=generator).tolist()
        self.scalars = (*own, *problem.epilogue.random_scalars(generator))
        self.tensors: dict[str, torch.Tensor] = {}
        self._guarded: dict[str, torch.Tensor] = {}
        for operand in problem.operands():
            if operand.role == "output":
                self._guarded[operand.name], self.tensors[operand.name] = _guarded(operand, device)
            else:
                self.tensors[operand.name] = random_tensor(operand, generator).to(device)
        if problem.dtype == "s8":
            self._spread_bytes()
        self.expected = self._expected()

    def _spread_bytes(self) -> None:
        """Scale the first step that scales, so that results spread over a signed byte instead of saturating."""
        fan_in = math.prod(self.tensors["weight"].shape[1:]) if "weight" in self.tensors else 1
        gain = 64 / (_BYTE_RMS**2 * math.sqrt(fan_in))
        first = next((step for step in self.problem.epilogue.steps if step.name in ("scale", "mul_scalar")), None)
        if first and first.name == "scale":
            self.tensors[first.arguments[0].name] *= 2 * gain
        elif first:
            own = self.problem.scalars + first.arguments[0].index
            self.scalars = tuple(s * (gain if i == own else 1.0) for i, s in enumerate(self.scalars))

    def _expected(self) -> dict[str, torch.Tensor]:
        # In float32 torch may choose algorithms that are less exact than what is checked against them.
        exact = self.device.type == "cpu" or self.problem.dtype in ("f32", "s8")
        precise = torch.float64 if exact else torch.float32
        operands = {name: tensor.to(precise) for name, tensor in self.tensors.items()}
        with torch.backends.cudnn.flags(allow_tf32=False), torch.no_grad():
            tf32, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
            try:
                return compute(self.problem, operands, self.scalars)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = tf32

    def bind(self, candidate: Candidate) -> Step:
        """Bind a candidate to this case's tensors."""
        return bind(candidate, self.problem, self.tensors, self.scalars, self.device)

    def poison(self) -> None:
        """Fill every output with NaN, or bytes far from the expected, and its surroundings with a known byte."""
        for name, whole in self._guarded.items():
            whole.fill_(_GUARD_BYTE)
            if self.tensors[name].is_floating_point():
                self.tensors[name].fill_(math.nan)
            else:
                self.tensors[name].copy_(_to_bytes(self.expected[name]).bitwise_xor(-128))

    def verify(self, step: Runnable, accuracy: str = "") -> tuple[float, str | None]:
        """Run a step on poisoned outputs: the largest relative error, and what is wrong, if anything."""
        self.poison()
        step.run(_stream(self.device))
        _synchronize(self.device)
        return self.check(accuracy)

    def check(self, accuracy: str = "") -> tuple[float, str | None]:
        """Compare all outputs with the reference: the largest relative error, and what is wrong, if anything.

        accuracy: a key of TOLERANCE instead of the problem's dtype.
        """
        worst = 0.0
        accuracy = accuracy or self.problem.dtype
        for name, expected in self.expected.items():
            if self.problem.dtype == "s8":
                expected = expected.clamp(-128, 127)  # noqa: PLW2901 (what a byte can hold of it)
            actual = self.tensors[name].to(expected.dtype)
            difference = actual - expected
            error = float(difference.norm() / expected.norm().clamp_min(1e-30))
            worst = max(worst, error) if math.isfinite(error) else math.inf
            if not bool(torch.isfinite(actual).all()):
                return math.inf, f"{name} holds values that are not finite, or that were never written"
            if complaint := _complaint(difference, expected, error, accuracy):
                return worst, f"{name} has {complaint}"
            whole = self._guarded[name]
            if not bool((whole[:_GUARD] == _GUARD_BYTE).all() and (whole[-_GUARD:] == _GUARD_BYTE).all()):
                return worst, f"bytes around {name} were overwritten"
        return worst, None

    def run(self, candidate: Candidate) -> Result:
        """Verify a candidate, then time it."""
        started = time.perf_counter()
        try:
            step = self.bind(candidate)
        except RefusedError as refusal:
            return Result("refused", str(refusal))
        accuracy = _accuracy(self.problem, candidate)
        error, complaint = self.verify(step, accuracy)
        if complaint:
            return Result("wrong", complaint, error)
        verified = time.perf_counter()
        sample = sampler(step, self.device)
        samples = [sample() for _ in range(5)]
        description = step.kernel.describe() if step.kernel else "cuDNN" if candidate.kind else "torch"
        seconds = {"verify": round(verified - started, 5), "time": round(time.perf_counter() - verified, 5)}
        details = {"kernel": description, "seconds": seconds, "tolerance": TOLERANCE.get(accuracy, WHOLE_SLACK)}
        return timed(samples, relative_error=error, details=details)

    def finals(self, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds."""
        samplers = [sampler(self.bind(candidate), self.device) for candidate in candidates]
        samples: list[list[float]] = [[] for _ in samplers]
        before = device_state(self.device)
        for _ in range(rounds):
            for sample, kept in zip(samplers, samples, strict=True):
                kept.append(sample())
        details = {"rounds": rounds, "before": before, "after": device_state(self.device)}
        return [timed(kept, details=details) for kept in samples]


def _accuracy(problem: Problem, candidate: Candidate) -> str:
    """What a candidate is held to: the dtype's tolerance, unless it sums in half precision."""
    return HALF_SUMS if json.loads(candidate.config).get("accumulator") == "f16" else problem.dtype


def _to_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-128, 127).round().to(torch.int8)


def _complaint(difference: torch.Tensor, expected: torch.Tensor, error: float, accuracy: str) -> str | None:
    """What is wrong with an output, if anything. error: the norm of the difference over that of the expected."""
    if accuracy == "s8":
        worst = float(difference.abs().max())
        return f"an element that is off by {worst:.3f} before rounding" if worst > 0.5 + WHOLE_SLACK else None
    if error > TOLERANCE[accuracy]:
        return f"a relative error of {error:.2e}"
    scale = expected.abs() + expected.square().mean().sqrt()
    element = float((difference.abs() / scale).max())
    return f"an element with a relative error of {element:.2e}" if element > ELEMENT_TOLERANCE[accuracy] else None


def random_tensor(operand: Operand, generator: torch.Generator) -> torch.Tensor:
    """Normal values; weights are scaled by their fan-in, so that sums stay of order one. Bytes are uniform."""
    if operand.dtype == "s8":
        return torch.randint(-128, 128, operand.shape, generator=generator, dtype=torch.int8)
    values = torch.randn(operand.shape, generator=generator)
    if operand.role == "weight":
        values /= math.sqrt(math.prod(operand.shape[1:]))
    elif operand.role == "vector":
        values *= 0.5
    return values.to(DTYPES[operand.dtype])


def _guarded(operand: Operand, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.empty(operand.bytes + 2 * _GUARD, dtype=torch.uint8, device=device)
    return whole, whole[_GUARD:-_GUARD].view(DTYPES[operand.dtype]).view(operand.shape)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sampler(step: Runnable, device: torch.device) -> Callable[[], float]:
    """A function that runs `step` many times and returns the microseconds of one run; warmed up."""
    return _cuda_sampler(step, device) if device.type == "cuda" else _cpu_sampler(step)


def _cpu_sampler(step: Runnable) -> Callable[[], float]:
    def sample(repeats: int) -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            step.run()
        return (time.perf_counter() - started) / repeats * 1e6

    sample(1)
    repeats = max(1, round(_CPU_SAMPLE_US / sample(2)))
    return lambda: sample(repeats)


def between(work: Callable[[], object]) -> float:
    """Device time of what `work` enqueues on the current stream, in microseconds."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def replay_sampler(replay: Callable[[], object], replays: int = 10) -> Callable[[], float]:
    """A function that runs a graph several times and returns the microseconds of one run; warmed up."""

    def repeat() -> None:
        for _ in range(replays):
            replay()

    repeat()
    return lambda: between(repeat) / replays


def _cuda_sampler(step: Runnable, device: torch.device) -> Callable[[], float]:
    def repeat(times: int) -> None:
        for _ in range(times):
            step.run(_stream(device))

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            repeat(3)
            repeats = max(3, min(100, round(_SAMPLE_US / max(1.0, between(lambda: repeat(5)) / 5))))
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            repeat(repeats)
    graph.replay()

    def sample() -> float:
        assert step  # held here: the graph runs on a workspace and on weights that nothing else keeps alive
        return between(graph.replay) / repeats

    return sample


def device_state(device: torch.device) -> dict[str, Any]:
    """Clocks, temperature, power and throttle reasons of a GPU, where NVML tells; empty for a CPU."""
    if device.type != "cuda":
        return {}
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
    except pynvml.NVMLError as error:
        return {"nvml": str(error)}
