"""Lists all algorithms that cuDNN has for a pass of a convolution, then verifies and times them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from autotune.core import LibraryError, ProblemError, format_bytes
from autotune.cudnn_algorithms.selection import Algorithm
from autotune.ir import DTYPES, Epilogue, Problem
from autotune.ir.operators import Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution
from autotune.libraries import cudnn
from autotune.libraries.cudnn.classic import (
    BACKWARD_DATA,
    BACKWARD_FILTER,
    FORWARD,
    AlgorithmInfo,
    ClassicConvolution,
    Geometry,
)
from autotune.libraries.cudnn.plans import WORKSPACE_LIMIT
from autotune.measure import CandidateBench, DeviceLostError, Runnable

SLOW = 20
"""An algorithm slower than SLOW x the best time so far is timed by single launches only."""

KINDS = ("classic", "engine")
"""Kinds of algorithms: those that cuDNN's classic API numbers, and execution plans of its graph API."""

ConvTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x, weight and y of a convolution. A gradient pass writes the gradient of one of them in its place."""

_PASSES: dict[str, type[Convolution]] = {
    FORWARD: Conv2d,
    BACKWARD_DATA: Conv2dDgrad,
    BACKWARD_FILTER: Conv2dWgrad,
}


def passes(problem: Problem) -> dict[str, Convolution]:
    """Return the three passes of a convolution, without an epilogue; raises ProblemError for another problem."""
    if not isinstance(problem, Convolution):
        raise ProblemError(f"algorithms are listed for convolutions, not for '{problem}'")
    values = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return {name: cls(**{**values, "epilogue": Epilogue()}) for name, cls in _PASSES.items()}


@dataclass(frozen=True)
class RunnableAlgorithm:
    """An algorithm with the functions that run it.

    enqueue: Runs it on a CUDA stream, on x, weight and y as torch has them (NCHW shapes). For a gradient pass, the slot
        of the tensor being differentiated receives the result.
    bind: Returns what is timed, on the tensors of a bench.
    bind_verified: Returns what is verified; it also copies the result to the bench's output if it lies elsewhere.
    """

    algorithm: Algorithm
    enqueue: Callable[[ConvTensors, int], None]
    bind: Callable[[CandidateBench], Runnable]
    bind_verified: Callable[[CandidateBench], Runnable]


def list_algorithms(
    problem: Convolution, device: torch.device, channels_last: bool = True, kinds: Sequence[str] = KINDS
) -> tuple[list[RunnableAlgorithm], list[str]]:
    """List the algorithms for a pass on the current GPU; none of them is run.

    Args:
        problem: The pass.
        device: The GPU.
        channels_last: Memory format of the tensors, else NCHW.
        kinds: Kinds to list, of KINDS.

    Returns:
        The algorithms, and for each kind without any a sentence that says why.

    Raises:
        LibraryError: Without cuDNN or a GPU.
    """
    if device.type != "cuda":
        raise LibraryError(f"cuDNN's algorithms need an NVIDIA GPU, not {device}")
    direction = next(name for name, cls in _PASSES.items() if isinstance(problem, cls))
    found: list[RunnableAlgorithm] = []
    reasons: list[str] = []
    if "classic" in kinds:
        found += _classic(problem, direction, device, channels_last)
    if "engine" in kinds and not channels_last:
        reasons.append(
            "cuDNN's engines are used with channels-last tensors only: .to(memory_format=torch.channels_last)"
        )
    elif "engine" in kinds:
        engines = cudnn.find_plans(problem, device)
        found += [_engine(direction, engines, plan) for plan in engines.plans]
        reasons += [engines.reason] if engines.reason else []
    return found, reasons


def _classic(
    problem: Convolution, direction: str, device: torch.device, channels_last: bool
) -> Iterator[RunnableAlgorithm]:
    if problem.dtype not in ("f16", "bf16", "f32", "tf32"):
        raise LibraryError(f"cuDNN's algorithms are listed in f16, bf16, f32 and tf32, not in {problem.dtype}")
    geometry = Geometry.of(problem, DTYPES[problem.dtype], channels_last, device, problem.dtype == "tf32")
    library = ClassicConvolution(geometry)
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
        enqueue = partial(_run_classic, library, direction, answer)
        bind = partial(_OnBench, enqueue, direction, geometry.memory_format)
        yield RunnableAlgorithm(algorithm, enqueue, bind, partial(bind, copied=True))


def _engine(direction: str, found: cudnn.FoundPlans, plan: cudnn.ExecutionPlan) -> RunnableAlgorithm:
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
    names = {
        FORWARD: ("x", "weight", "y"),
        BACKWARD_DATA: ("y", "weight", "dy"),
        BACKWARD_FILTER: ("x", "y", "dy"),
    }[direction]  # the problem's names of x, weight and y

    def enqueue(tensors: ConvTensors, stream: int) -> None:
        found.bind(plan, dict(zip(names, tensors, strict=True))).run(stream)

    def bind(bench: CandidateBench) -> Runnable:
        return found.bind(plan, bench.tensors)

    return RunnableAlgorithm(algorithm, enqueue, bind, bind)


def _run_classic(
    library: ClassicConvolution, direction: str, answer: AlgorithmInfo, tensors: ConvTensors, stream: int
) -> None:
    workspace = torch.empty(max(answer.workspace_bytes, 1), dtype=torch.uint8, device=tensors[0].device)
    library.run(direction, answer.number, dict(zip(("x", "weight", "y"), tensors, strict=True)), workspace, stream)


class _OnBench:
    """A classic algorithm on the tensors of a bench, which it gets in its own memory format.

    copied: The result is copied to the bench's output if it lies elsewhere.
    """

    def __init__(
        self,
        enqueue: Callable[[ConvTensors, int], None],
        direction: str,
        form: torch.memory_format,
        bench: CandidateBench,
        copied: bool = False,
    ) -> None:
        self._enqueue = enqueue
        given = {name: t if name == "weight" else t.permute(0, 3, 1, 2) for name, t in bench.tensors.items()}
        self._result = given.pop("y")
        self._own = torch.empty_like(self._result, memory_format=form)
        if self._own.stride() == self._result.stride():
            self._own = self._result
        inputs = {name: tensor.contiguous(memory_format=form) for name, tensor in given.items()}
        at = {FORWARD: "y", BACKWARD_DATA: "x", BACKWARD_FILTER: "weight"}[direction]
        all_three = {"y": inputs.pop("dy", self._own), **inputs, at: self._own}
        self._tensors = (all_three["x"], all_three["weight"], all_three["y"])
        self._copied = copied and self._own is not self._result

    def run(self, stream: int = 0) -> None:
        """Enqueue on a CUDA stream."""
        self._enqueue(self._tensors, stream)
        if self._copied:
            self._result.copy_(self._own)


def benchmark_algorithms(
    bench: CandidateBench,
    algorithms: list[RunnableAlgorithm],
    energy: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[Algorithm]:
    """Verify and time algorithms, one after the other.

    Args:
        bench: The tensors of the algorithms' pass.
        algorithms: What `list_algorithms` returned for the pass.
        energy: Whether to measure energy too.
        tell: Called with a description of the algorithm that is measured next.

    Yields:
        Each algorithm with its result. One that cannot be used is not run. One slower than SLOW x the best time so far
        is timed by single launches only.

    Raises:
        LibraryError: If an algorithm ruins the device's context.
    """
    best_us = math.inf
    for found in algorithms:
        if not found.algorithm.usable:
            yield found.algorithm
            continue
        tell(f"{found.algorithm.direction} {found.algorithm}")
        result = _benchmark(bench, found, energy, SLOW * best_us)
        best_us = min(best_us, math.inf if result.us is None else result.us)
        yield result


def _benchmark(bench: CandidateBench, found: RunnableAlgorithm, energy: bool, slow_us: float) -> Algorithm:
    algorithm = found.algorithm
    if algorithm.workspace_bytes > WORKSPACE_LIMIT:
        reason = (
            f"needs {format_bytes(algorithm.workspace_bytes)} of workspace, more than {format_bytes(WORKSPACE_LIMIT)}"
        )
        return dataclasses.replace(algorithm, status="failed", reason=reason)
    try:
        result = bench.run_library(
            partial(found.bind, bench), partial(found.bind_verified, bench), slow_us=slow_us, energy=energy
        )
    except DeviceLostError as ruin:
        raise LibraryError(f"{algorithm} of {algorithm.direction} ruined the GPU's context: {ruin}") from ruin
    if result.median_us is None:
        return dataclasses.replace(
            algorithm, status=result.status, reason=result.error, relative_error=result.relative_error
        )
    return dataclasses.replace(
        algorithm,
        status="ok",
        us=result.median_us,
        spread_us=result.spread_us,
        energy_uj=result.details.get("energy_uj"),
        relative_error=result.relative_error,
    )
