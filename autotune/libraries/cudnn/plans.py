"""cuDNN's execution plans for a convolution: every one that its heuristics know, built.

What is missing or unsupported, and each plan that cannot be built, is a sentence in the answer, never an exception.

cuDNN is asked twice where there are vectors: its ready-made kernels take a bias in the dtype of the problem only, which
is also how torch calls it; those that it compiles at run time take float32 as well. Both count as cuDNN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autotune.core import LibraryError, format_bytes
from autotune.ir import Convolution, Problem, Tensors
from autotune.libraries.cudnn.graph import arguments, check, describe, vector_dtypes
from autotune.libraries.cudnn.library import CudnnLibrary, first_line, library

WORKSPACE_LIMIT = 4 << 30
"""Bytes of workspace above which a plan is not run."""


@dataclass(frozen=True)
class ExecutionPlan:
    """One execution plan, numbered from the heuristics' first choice on. `error` says why it cannot run.

    name: cuDNN's own, engine and knobs in one word. It, `engine` and `knobs` hold for one version of cuDNN.
    bias: dtype in which this plan reads vectors; None without any.
    notes: cuDNN's notes on its behaviour; numeric: those on its arithmetic, None where they could not be had.
    """

    index: int
    name: str
    bias: str | None = None
    engine: int | None = None
    knobs: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    numeric: tuple[str, ...] | None = None
    workspace_bytes: int = 0
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.name} bias={self.bias}" if self.bias else self.name

    @property
    def deterministic(self) -> bool | None:
        """Whether the same input gives the same bits; None where cuDNN could not be asked."""
        return None if self.numeric is None else "NONDETERMINISTIC" not in self.numeric


@dataclass(frozen=True)
class FoundPlans:
    """The plans of a problem, the heuristics' first choice first; without any, `reason` says why in a sentence."""

    plans: list[ExecutionPlan]
    reason: str | None = None
    graphs: Mapping[str | None, _Graph] = field(default_factory=dict, repr=False)

    def bind(self, plan: ExecutionPlan, tensors: Tensors, scalars: tuple[float, ...] = ()) -> BoundExecutionPlan:
        """Bind a plan without `error` to a problem's tensors on the GPU."""
        return BoundExecutionPlan(self.graphs[plan.bias], plan, tensors, scalars)

    def serialized(self, plan: ExecutionPlan) -> bytes:
        """cuDNN's own form of a plan without `error`: `list` of it is what `pygraph.deserialize` takes."""
        return self.graphs[plan.bias].serialized(plan)


class BoundExecutionPlan:
    """A plan with its tensors and workspace."""

    def __init__(self, graph: _Graph, plan: ExecutionPlan, tensors: Tensors, scalars: tuple[float, ...]) -> None:
        self._graph, self._index = graph, plan.index  # the plan's kernels live as long as its graph
        self._pack = arguments(graph.problem, plan.bias, tensors, scalars)
        device = next(iter(tensors.values())).device
        self._workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device=device)

    def run(self, stream: int = 0, late: Mapping[int, torch.Tensor] | None = None) -> None:
        """Enqueue on a CUDA stream, which may be being captured if it was used before.

        late: tensors by cuDNN's numbers that are taken instead of those bound.
        """
        library = self._graph.library
        pack = {**self._pack, **late} if late else self._pack
        with library.lock:
            library.cudnn.set_stream(library.handle, stream)
            self._graph.graph.execute_plan_at_index(pack, self._workspace, index=self._index, handle=library.handle)


def find_plans(problem: Problem, device: torch.device) -> FoundPlans:
    """All execution plans of `problem` on the current GPU, built."""
    try:
        convolution, loaded = check(problem), library(device)
    except LibraryError as error:
        return FoundPlans([], str(error))
    graphs: dict[str | None, _Graph] = {}
    plans: list[ExecutionPlan] = []
    reasons: list[str] = []
    for vectors in vector_dtypes(convolution):
        try:
            graphs[vectors] = _Graph(loaded, convolution, vectors)
            plans += graphs[vectors].plans()
        except Exception as error:  # the package's errors have no common base
            reasons.append(f"cuDNN {loaded.version} does not support '{problem}': {first_line(error)}")
    return FoundPlans(plans, None if plans else reasons[0] if reasons else f"cuDNN has no plan for '{problem}'", graphs)


class _Graph:
    """A problem as a graph whose vectors have one dtype, with the plans of all its heuristics."""

    def __init__(self, library: CudnnLibrary, problem: Convolution, vectors: str | None) -> None:
        self.library, self.problem, self._vectors = library, problem, vectors
        self.graph = describe(library, problem, vectors)

    def plans(self) -> Iterator[ExecutionPlan]:
        """Build all plans, in the heuristics' order; what two heuristics name comes once."""
        numeric = self._numeric_notes()
        seen: set[str] = set()
        for index in range(self.graph.get_execution_plan_count()):
            plan = self._build(index)
            if plan.name not in seen:
                yield replace(plan, numeric=None if numeric is None else numeric.get(plan.name, ()))
            seen.add(plan.name)

    def _build(self, index: int) -> ExecutionPlan:
        known: dict[str, Any] = {"index": index, "name": f"plan {index}", "bias": self._vectors}
        try:
            known["name"] = self.graph.get_plan_name_at_index(index)
            engine, knobs = self.graph.get_engine_and_knobs_at_index(index)
            known |= {"engine": int(engine), "knobs": {knob.name: int(value) for knob, value in knobs.items()}}
            notes = self.graph.get_behavior_notes_for_plan_at_index(index)
            known["notes"] = tuple(sorted(note.name for note in notes))
            self.graph.build_plan_at_index(index)
            known["workspace_bytes"] = int(self.graph.get_workspace_size_plan_at_index(index))
        except Exception as error:  # one plan's failure is its result
            return ExecutionPlan(**known, error=first_line(error))
        if known["workspace_bytes"] > WORKSPACE_LIMIT:
            return ExecutionPlan(**known, error=f"needs {format_bytes(known['workspace_bytes'])} of workspace")
        return ExecutionPlan(**known)

    def _numeric_notes(self) -> dict[str, tuple[str, ...]] | None:
        """Plan's name -> notes on its arithmetic. The package cannot be asked for them, only to leave out who has one.

        So a graph is made for each note, its plans without the note are refused for their workspace, and who is refused
        as deselected has the note. Nothing is built for that.
        """
        notes: dict[str, tuple[str, ...]] = {}
        try:
            for note in self.library.cudnn.numerical_note.__members__.values():
                graph = describe(self.library, self.problem, self._vectors)
                graph.deselect_workspace_greater_than(-1)
                graph.deselect_numeric_notes([note])
                for index in range(graph.get_execution_plan_count()):
                    name = graph.get_plan_name_at_index(index)
                    if _deselected(graph, index) and note.name not in notes.get(name, ()):
                        notes[name] = (*notes.get(name, ()), note.name)
        except Exception:  # a plan without notes is worth more than none
            return None
        return notes or None  # none has any: then they were not understood

    def serialized(self, plan: ExecutionPlan) -> bytes:
        """The graph with this plan in cuDNN's own form; raises LibraryError for a plan that is not the backend's."""
        self.graph.build_plan_at_index(plan.index)  # what is serialized is the plan that was built last
        if self.graph.selected_engine is not None:
            raise LibraryError(f"{plan.name} is an engine of the Python package, which has no form to be stored in")
        return bytes(self.graph.serialize())


def _deselected(graph: Any, index: int) -> bool:
    try:
        graph.build_plan_at_index(index)
    except Exception as error:
        return "Deselecting execution plan" in str(error)
    return False
