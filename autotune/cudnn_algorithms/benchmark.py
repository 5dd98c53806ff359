"""Every algorithm that cuDNN has for a pass of a convolution: listed before any is run, then verified and timed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from autotune.core import LibraryError, ProblemError, format_bytes
from autotune.cudnn_algorithms.selection import Algorithm
from autotune.ir import DTYPES, Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution, Epilogue, Problem
from autotune.libraries import cudnn
from autotune.libraries.cudnn.classic import (
    BACKWARD_DATA,
    BACKWARD_FILTER,
    FORWARD,
    AlgorithmInfo,
    ClassicConvolution,
    Geometry,
)
from autotune.libraries.cudnn.library import first_line
from autotune.libraries.cudnn.plans import WORKSPACE_LIMIT
from autotune.measure import CandidateBench, Runnable, between, sampler

SLOW = 20
"""What takes this many times the best so far is not timed any further."""

KINDS = ("classic", "engine")
"""Kinds of algorithms."""

Trio = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A convolution's x, weight and y."""

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
    """An algorithm that was not run yet.

    enqueue: runs it on a convolution's x, weight and y in torch's order, on a CUDA stream; of a gradient, the place of
    what it is of. bind: to the operands of a case; prove: what is verified, where that which is timed leaves its result
    elsewhere.
    """

    algorithm: Algorithm
    enqueue: Callable[[Trio, int], None]
    bind: Callable[[CandidateBench], Runnable]
    prove: Callable[[CandidateBench], Runnable]


def offered(
    problem: Convolution, device: torch.device, channels_last: bool = True, kinds: Sequence[str] = KINDS
) -> tuple[list[Offered], list[str]]:
    """All algorithms of some kinds for a pass on the current GPU, and sentences about kinds of which there are none.

    Raises LibraryError without cuDNN or a GPU.
    """
    if device.type != "cuda":
        raise LibraryError("cuDNN's algorithms need an NVIDIA GPU")
    direction = next(name for name, cls in _PASSES.items() if isinstance(problem, cls))
    found: list[Offered] = []
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


def _classic(problem: Convolution, direction: str, device: torch.device, channels_last: bool) -> Iterator[Offered]:
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
        bind = partial(_OnCase, enqueue, direction, geometry.memory_format)
        yield Offered(algorithm, enqueue, bind, partial(bind, copied=True))


def _engine(direction: str, found: cudnn.FoundPlans, plan: cudnn.ExecutionPlan) -> Offered:
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
    }[direction]  # what the problem calls x, weight and y

    def enqueue(trio: Trio, stream: int) -> None:
        found.bind(plan, dict(zip(names, trio, strict=True))).run(stream)

    def bind(case: CandidateBench) -> Runnable:
        return found.bind(plan, case.tensors)

    return Offered(algorithm, enqueue, bind, bind)


def _run_classic(library: ClassicConvolution, direction: str, answer: AlgorithmInfo, trio: Trio, stream: int) -> None:
    workspace = torch.empty(max(answer.workspace_bytes, 1), dtype=torch.uint8, device=trio[0].device)
    library.run(direction, answer.number, dict(zip(("x", "weight", "y"), trio, strict=True)), workspace, stream)


class _OnCase:
    """A classic algorithm on a case's operands, which it takes in its own memory format.

    copied: the result is copied to the case's output, should it lie elsewhere.
    """

    def __init__(
        self,
        enqueue: Callable[[Trio, int], None],
        direction: str,
        form: torch.memory_format,
        case: CandidateBench,
        copied: bool = False,
    ) -> None:
        self._enqueue = enqueue
        given = {name: t if name == "weight" else t.permute(0, 3, 1, 2) for name, t in case.tensors.items()}
        self._result = given.pop("y")
        self._own = torch.empty_like(self._result, memory_format=form)
        if self._own.stride() == self._result.stride():
            self._own = self._result
        inputs = {name: tensor.contiguous(memory_format=form) for name, tensor in given.items()}
        at = {FORWARD: "y", BACKWARD_DATA: "x", BACKWARD_FILTER: "weight"}[direction]
        all_three = {"y": inputs.pop("dy", self._own), **inputs, at: self._own}
        self._trio = (all_three["x"], all_three["weight"], all_three["y"])
        self._copied = copied and self._own is not self._result

    def run(self, stream: int = 0) -> None:
        """Enqueue on a CUDA stream."""
        self._enqueue(self._trio, stream)
        if self._copied:
            self._result.copy_(self._own)


def measured(
    case: CandidateBench, offers: list[Offered], energy: bool = False, tell: Callable[[str], object] = lambda _: None
) -> Iterator[Algorithm]:
    """Verify and time each algorithm on a case's operands; `tell` hears which is next.

    energy: measure that too. Raises LibraryError if one of them ruins the device's context.
    """
    best = math.inf
    for offer in offers:
        if not offer.algorithm.usable:
            yield offer.algorithm
            continue
        tell(f"{offer.algorithm.direction} {offer.algorithm}")
        result = _measured(case, offer, energy, SLOW * best)
        best = min(best, math.inf if result.us is None else result.us)
        yield result


def _measured(case: CandidateBench, offer: Offered, energy: bool, slow_us: float) -> Algorithm:
    """What became of an algorithm; one that takes longer than `slow_us` is run a few times only."""
    algorithm = offer.algorithm
    if algorithm.workspace_bytes > WORKSPACE_LIMIT:
        reason = f"needs {format_bytes(algorithm.workspace_bytes)} of workspace"
        return dataclasses.replace(algorithm, status="failed", reason=reason)
    try:
        error, complaint = case.verify(offer.prove(case))
        if complaint:
            return dataclasses.replace(algorithm, status="wrong", reason=complaint, relative_error=error)
        step = offer.bind(case)
        stream = torch.cuda.current_stream(case.device).cuda_stream
        samples, joules = [between(lambda: step.run(stream)) for _ in range(3)], None
        if min(samples) < slow_us:
            sample = sampler(step, case.device)
            samples = [sample() for _ in range(5)]
            joules = case.energy_uj(sample) if energy else None
    except Exception as failure:  # a library's errors have no common base
        try:
            torch.cuda.synchronize(case.device)
        except RuntimeError as ruin:
            raise LibraryError(f"{algorithm} of {algorithm.direction} ruined the GPU's context: {ruin}") from failure
        return dataclasses.replace(algorithm, status="failed", reason=first_line(failure))
    quartiles = statistics.quantiles(samples, n=4)
    return dataclasses.replace(
        algorithm,
        status="ok",
        us=statistics.median(samples),
        spread_us=quartiles[2] - quartiles[0],
        energy_uj=joules,
        relative_error=error,
    )
