"""Plans of cuDNN in databases: how they are stored and restored.

A plan is stored as its engine, knobs and notes, and in cuDNN's serialized form, which is valid only for the version
that wrote it and for the problem that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from autotune.core import LibraryError, first_line
from autotune.ir import Problem, Tensors
from autotune.libraries.cudnn.graph import arguments, check, operand_numbers
from autotune.libraries.cudnn.library import CudnnLibrary, library
from autotune.libraries.cudnn.plans import ExecutionPlan, FoundPlans, find_plans
from autotune.libraries.cudnn_names import FAMILY


@dataclass(frozen=True)
class SerializedPlan:
    """A plan for the database.

    Attributes:
        config: Its name, engine, knobs and notes.
        data: Its serialized form.
        error: Why it has none.
    """

    config: dict[str, Any]
    data: bytes = b""
    error: str | None = None


@dataclass(frozen=True)
class SerializedPlans:
    """All plans of a problem for the database.

    Attributes:
        source: The versions of cuDNN and of its package that made them.
        plans: The plans, in the heuristics' order.
        reason: Why there are none.
    """

    source: str
    plans: tuple[SerializedPlan, ...] = ()
    reason: str | None = None


def offers(problem: Problem | None, device: torch.device) -> SerializedPlans:
    """Return all plans of a problem on the current GPU; without a problem, only their source."""
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
    """Return a plan's serialized form, or an error."""
    if plan.error:
        return b"", plan.error
    try:
        return found.serialized(plan), None
    except Exception as error:  # the package's errors have no common base
        return b"", f"cannot be stored: {first_line(error)}"


def _config(plan: ExecutionPlan, rank: int, count: int, source: str) -> dict[str, Any]:
    """Return the config of a plan: what it is, its rank, the number of plans, and the versions that made it."""
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
    """Return a short name of a stored plan."""
    return f"{FAMILY} {config['plan']}" + (f" bias={config['bias']}" if config["bias"] else "")


def bind(
    problem: Problem,
    data: bytes,
    config: Mapping[str, Any],
    tensors: Tensors,
    scalars: tuple[float, ...],
    device: torch.device,
) -> Callable[[Tensors], None]:
    """Return a function that solves a problem with a stored plan, on torch's current stream.

    Args:
        problem: The problem for which the plan was made.
        data: The plan's serialized form.
        config: The plan's config.
        tensors: The operands that are known now, by name.
        scalars: The epilogue's scalars, in the order of its steps.
        device: The GPU.

    Returns:
        A function of the remaining operands by name, which take precedence over `tensors`.

    Raises:
        LibraryError: The plan cannot be used here.
    """
    convolution, loaded = check(problem), library(device)
    if config["made_by"] != loaded.source:
        raise LibraryError(
            f"the plan was made by {config['made_by']}, and this is {loaded.source}: tune again for this version"
        )
    graph = _restored(loaded, data)
    numbers = operand_numbers(problem)
    pack = arguments(convolution, config["bias"], tensors, scalars)

    def run(late: Tensors) -> None:
        workspace = torch.empty(
            max(config["workspace_bytes"], 1), dtype=torch.uint8, device=device
        )  # allocated for this stream
        stream = torch.cuda.current_stream(device).cuda_stream
        given = {**pack, **{numbers[name]: tensor for name, tensor in late.items()}} if late else pack
        with loaded.lock:
            loaded.cudnn.set_stream(loaded.handle, stream)
            graph.execute(given, workspace, handle=loaded.handle)

    return run


@lru_cache(maxsize=512)
def _restored(loaded: CudnnLibrary, data: bytes) -> Any:
    """Return a graph with a serialized plan; raises LibraryError if cuDNN does not take it."""
    graph = loaded.cudnn.pygraph(handle=loaded.handle)
    try:
        graph.deserialize(loaded.handle, list(data))
    except Exception as error:
        raise LibraryError(f"{loaded.source} cannot restore its plan: {first_line(error)}") from error
    return graph
