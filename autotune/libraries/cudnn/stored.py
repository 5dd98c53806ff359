"""Plans of cuDNN as candidates of a database: what is kept of them, and how they come back.

A plan is kept with its engine, knobs and notes, and in cuDNN's own form, which is good for the version that wrote it
and for the problem that it was made for. Anything else refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from autotune.core import LibraryError
from autotune.ir import Problem, Tensors
from autotune.libraries.cudnn.graph import arguments, check, operand_numbers
from autotune.libraries.cudnn.library import CudnnLibrary, first_line, library
from autotune.libraries.cudnn.plans import ExecutionPlan, FoundPlans, find_plans
from autotune.libraries.cudnn_names import FAMILY


@dataclass(frozen=True)
class SerializedPlan:
    """A plan for the database: its config and its own form, or the error for which it has none."""

    config: dict[str, Any]
    data: bytes = b""
    error: str | None = None


@dataclass(frozen=True)
class SerializedPlans:
    """All plans of a problem. source: what made them; reason: without any, why, in a sentence."""

    source: str
    plans: tuple[SerializedPlan, ...] = ()
    reason: str | None = None


def offers(problem: Problem | None, device: torch.device) -> SerializedPlans:
    """All plans of a problem on the current GPU, in the heuristics' order; without a problem, only their source."""
    try:
        source = library(device).source
    except LibraryError as error:
        return SerializedPlans("", reason=str(error))
    if problem is None:
        return SerializedPlans(source)
    found = find_plans(problem, device)
    count = len(found.plans)
    plans = (
        SerializedPlan(_config(plan, rank, count, source), *_form(found, plan)) for rank, plan in enumerate(found.plans)
    )
    return SerializedPlans(source, tuple(plans), found.reason)


def _form(found: FoundPlans, plan: ExecutionPlan) -> tuple[bytes, str | None]:
    """A plan's own form, or an error."""
    if plan.error:
        return b"", plan.error
    try:
        return found.serialized(plan), None
    except Exception as error:  # the package's errors have no common base
        return b"", f"cannot be stored: {first_line(error)}"


def _config(plan: ExecutionPlan, rank: int, count: int, source: str) -> dict[str, Any]:
    """What the database tells of a plan: what it is, its rank among so many, and what it was made by."""
    return {
        "plan": plan.name,
        "engine": plan.engine,
        "knobs": dict(plan.knobs),
        "bias": plan.bias,
        "numeric_notes": None if plan.numeric is None else list(plan.numeric),
        "behavior_notes": list(plan.notes),
        "workspace_bytes": plan.workspace_bytes,
        "made_by": source,
        "rank": rank,
        "of": count,
    }


def summary(config: Mapping[str, Any]) -> str:
    """A stored plan in few characters."""
    return f"{FAMILY} {config['plan']}" + (f" bias={config['bias']}" if config["bias"] else "")


def bind(
    problem: Problem,
    path: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    scalars: tuple[float, ...],
    device: torch.device,
) -> Callable[[Tensors], None]:
    """Returns run(late): solves `problem` with the plan in a file on torch's current stream.

    late: operands by name that are taken instead of those in `tensors`. Raises LibraryError where the plan cannot be
    used here.
    """
    convolution, loaded = check(problem), library(device)
    if config["made_by"] != loaded.source:
        raise LibraryError(f"the plan is of {config['made_by']}, and here is {loaded.source}: tune again to have one")
    graph = _restored(loaded, path)
    numbers = operand_numbers(problem)
    pack = arguments(convolution, config["bias"], tensors, scalars)

    def run(late: Tensors) -> None:
        workspace = torch.empty(max(config["workspace_bytes"], 1), dtype=torch.uint8, device=device)  # the stream's own
        stream = torch.cuda.current_stream(device).cuda_stream
        given = {**pack, **{numbers[name]: tensor for name, tensor in late.items()}} if late else pack
        with loaded.lock:
            loaded.cudnn.set_stream(loaded.handle, stream)
            graph.execute(given, workspace, handle=loaded.handle)

    return run


@lru_cache(maxsize=512)
def _restored(loaded: CudnnLibrary, path: Path) -> Any:
    """A graph with the plan of a file; raises LibraryError."""
    graph = loaded.cudnn.pygraph(handle=loaded.handle)
    try:
        graph.deserialize(loaded.handle, list(path.read_bytes()))
    except Exception as error:
        raise LibraryError(f"{loaded.source} does not take its plan {path.stem[:12]}: {first_line(error)}") from error
    return graph
