"""Every algorithm that cuDNN has for a pass of a convolution: listed before any is run, then verified and timed."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from autotune.algorithms import Algorithm
from autotune.epilogue import Epilogue
from autotune.errors import ProblemError, VendorError
from autotune.measure import Case, Runnable, sampler
from autotune.problem import DTYPES, Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution, Problem
from autotune.vendor import cudnn
from autotune.vendor.cudnn.classic import BACKWARD_DATA, BACKWARD_FILTER, FORWARD, Classic, Geometry

WORKSPACE_LIMIT = 4 << 30
"""Bytes of workspace above which nothing is run."""

ENERGY_SECONDS = 0.3
"""How long an algorithm runs for its energy: NVML's counter moves several times in it."""

_PASSES: dict[str, type[Convolution]] = {
    FORWARD: Conv2d,
    BACKWARD_DATA: Conv2dDgrad,
    BACKWARD_FILTER: Conv2dWgrad,
}


def passes(problem: Problem) -> dict[str, Convolution]:
    """The three passes of a convolution, without an epilogue; raises ProblemError for another problem."""
    if not isinstance(problem, Convolution):
        raise ProblemError(f"algorithms are listed for convolutions, not for '{problem}'")
    values = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return {name: cls(**{**values, "epilogue": Epilogue()}) for name, cls in _PASSES.items()}


@dataclass(frozen=True)
class Offered:
    """An algorithm that was not run yet, and how it is bound to the operands of a case.

    prove: what is verified, where that which is timed leaves its result elsewhere.
    """

    algorithm: Algorithm
    bind: Callable[[Case], Runnable] | None = None
    prove: Callable[[Case], Runnable] | None = None


def offered(problem: Convolution, device: torch.device, channels_last: bool = True) -> tuple[list[Offered], list[str]]:
    """All algorithms for a pass on the current GPU, and sentences about kinds of which there are none.

    Raises VendorError without cuDNN or a GPU.
    """
    direction = next(name for name, cls in _PASSES.items() if isinstance(problem, cls))
    found = list(_classic(problem, direction, device, channels_last))
    if not channels_last:
        return found, ["engines are listed for channels-last tensors only"]
    engines = cudnn.find_plans(problem, device)
    found += [_engine(direction, engines, plan) for plan in engines.plans]
    return found, [engines.reason] if engines.reason else []


def _classic(problem: Convolution, direction: str, device: torch.device, channels_last: bool) -> Iterator[Offered]:
    if problem.dtype not in ("f16", "bf16", "f32", "tf32"):
        raise VendorError(f"cuDNN's algorithms are listed in f16, bf16, f32 and tf32, not in {problem.dtype}")
    geometry = Geometry.of(problem, DTYPES[problem.dtype], channels_last, device, problem.dtype == "tf32")
    library = Classic(geometry)
    for answer in library.answers(direction):
        algorithm = Algorithm(
            direction,
            "classic",
            str(answer.number),
            answer.name,
            answer.workspace_bytes,
            answer.deterministic,
            answer.math,
            "unsupported" if answer.error else "offered",
            answer.error,
        )
        bind = partial(BoundClassic, library, direction, answer.number, answer.workspace_bytes)
        yield Offered(algorithm, bind, partial(bind, copied=True))


def _engine(direction: str, found: cudnn.Found, plan: cudnn.Plan) -> Offered:
    algorithm = Algorithm(
        direction,
        "engine",
        plan.name,
        f"engine {plan.engine}",
        plan.workspace_bytes,
        plan.deterministic,
        ", ".join(note.lower() for note in plan.numeric or () if note != "NONDETERMINISTIC"),
        "unsupported" if plan.error else "offered",
        plan.error,
    )
    return Offered(algorithm, lambda case: found.bind(plan, case.tensors, case.scalars))


class BoundClassic:
    """A classic algorithm on a case's operands, which it takes in the geometry's memory format.

    copied: the result is copied to the case's output, should it lie elsewhere.
    """

    def __init__(
        self, library: Classic, direction: str, number: int, workspace_bytes: int, case: Case, copied: bool = False
    ) -> None:
        self._library, self._direction, self._number = library, direction, number
        form = library.geometry.memory_format
        given = {name: t if name == "weight" else t.permute(0, 3, 1, 2) for name, t in case.tensors.items()}
        self._result = given.pop("y")
        self._own = torch.empty_like(self._result, memory_format=form)
        if self._own.stride() == self._result.stride():
            self._own = self._result
        output = {FORWARD: "y", BACKWARD_DATA: "x", BACKWARD_FILTER: "weight"}[direction]
        inputs = {"y" if name == "dy" else name: t.contiguous(memory_format=form) for name, t in given.items()}
        self._tensors = {**inputs, output: self._own}
        self._workspace = torch.empty(max(workspace_bytes, 1), dtype=torch.uint8, device=case.device)
        self._copied = copied and self._own is not self._result

    def run(self, stream: int = 0) -> None:
        """Enqueue on a CUDA stream."""
        self._library.run(self._direction, self._number, self._tensors, self._workspace, stream)
        if self._copied:
            self._result.copy_(self._own)


def measured(
    case: Case, offers: list[Offered], energy: bool = False, tell: Callable[[str], object] = lambda _: None
) -> Iterator[Algorithm]:
    """Verify and time each algorithm on a case's operands; `tell` hears which is next.

    energy: measure that too. Raises VendorError if one of them ruins the device's context.
    """
    for offer in offers:
        tell(str(offer.algorithm))
        yield _measured(case, offer, energy)


def _measured(case: Case, offer: Offered, energy: bool) -> Algorithm:
    algorithm = offer.algorithm
    if algorithm.status == "unsupported" or not offer.bind:
        return algorithm
    if algorithm.workspace_bytes > WORKSPACE_LIMIT:
        return dataclasses.replace(algorithm, status="failed", reason="needs more than 4 GiB of workspace")
    try:
        error, complaint = case.verify((offer.prove or offer.bind)(case))
        if complaint:
            return dataclasses.replace(algorithm, status="wrong", reason=complaint, relative_error=error)
        step = offer.bind(case)
        sample = sampler(step, case.device)
        samples = [sample() for _ in range(5)]
        quartiles = statistics.quantiles(samples, n=4)
        us = statistics.median(samples)
        joules = energy_uj(step, us, case.device) if energy else None
    except Exception as failure:  # a library's errors have no common base
        try:
            torch.cuda.synchronize(case.device)
        except RuntimeError as ruin:
            raise VendorError(f"{algorithm} of {algorithm.direction} ruined the GPU's context: {ruin}") from failure
        return dataclasses.replace(algorithm, status="failed", reason=str(failure).partition("\n")[0])
    return dataclasses.replace(
        algorithm,
        status="ok",
        us=us,
        spread_us=quartiles[2] - quartiles[0],
        energy_uj=joules,
        relative_error=error,
    )


def energy_uj(step: Runnable, us: float, device: torch.device) -> float | None:
    """Microjoules that the GPU takes for one run, from NVML's counter; None where it has none."""
    import pynvml

    repeats = 50
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            step.run(torch.cuda.current_stream(device).cuda_stream)
    replays = max(1, round(ENERGY_SECONDS * 1e6 / (us * repeats)))
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        graph.replay()
        torch.cuda.synchronize(device)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize(device)
        after = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return (after - before) * 1e3 / (replays * repeats)
