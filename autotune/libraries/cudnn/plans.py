"""cuDNN's execution plans for a convolution: all that its heuristics list, built.

Whatever is missing or unsupported, and each plan that cannot be built, is a sentence in the result, not an exception.

With vectors in the epilogue, cuDNN is asked once for each dtype that they can have: its precompiled kernels take a bias
in the problem's dtype only, which is also how torch calls it; those that it compiles at run time take float32, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autotune.core import LibraryError, first_line, format_bytes
from autotune.ir import Problem, Tensors
from autotune.ir.operators import Convolution
from autotune.libraries.cudnn.graph import arguments, check, describe, vector_dtypes
from autotune.libraries.cudnn.library import CudnnLibrary, is_error, library

WORKSPACE_LIMIT = 4 << 30
"""Largest workspace of a plan in bytes; a plan that needs more is not run."""


@dataclass(frozen=True)
class ExecutionPlan:
    """One execution plan.

    Attributes:
        index: Position in the heuristics' order, the first choice first.
        name: cuDNN's name: engine and knobs in one word. `name`, `engine` and `knobs` hold for one version of cuDNN.
        bias: Dtype in which the plan reads the epilogue's vectors; None without any.
        engine: Number of the engine.
        knobs: Value of each knob of the engine.
        notes: cuDNN's behavior notes.
        numeric: cuDNN's numerical notes; None if they could not be determined.
        workspace_bytes: Size of the workspace it needs.
        error: Why it cannot run; None if it can.
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
        """True if the same input always gives the same bits; None if unknown."""
        return None if self.numeric is None else "NONDETERMINISTIC" not in self.numeric


@dataclass(frozen=True)
class FoundPlans:
    """The plans of a problem.

    Attributes:
        plans: The plans, the heuristics' first choice first.
        reason: Why there are none.
        graphs: The graph of the plans for each dtype of vectors.
    """

    plans: list[ExecutionPlan]
    reason: str | None = None
    graphs: Mapping[str | None, _Graph] = field(default_factory=dict, repr=False)

    def bind(self, plan: ExecutionPlan, tensors: Tensors, scalars: tuple[float, ...] = ()) -> BoundExecutionPlan:
        """Bind a plan without `error` to a problem's tensors on the GPU."""
        return BoundExecutionPlan(self.graphs[plan.bias], plan, tensors, scalars)

    def serialized(self, plan: ExecutionPlan) -> bytes:
        """Return the serialized form of a plan without `error`; `pygraph.deserialize` takes it as a list."""
        return self.graphs[plan.bias].serialized(plan)


class BoundExecutionPlan:
    """An execution plan with its tensors and workspace."""

    def __init__(self, graph: _Graph, plan: ExecutionPlan, tensors: Tensors, scalars: tuple[float, ...]) -> None:
        self._graph, self._index = graph, plan.index  # the plan's kernels live as long as its graph
        self._pack = arguments(graph.problem, plan.bias, tensors, scalars)
        device = next(iter(tensors.values())).device
        self._workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device=device)

    def run(self, stream: int = 0, late: Mapping[int, torch.Tensor] | None = None) -> None:
        """Launch the plan.

        Args:
            stream: Handle of a CUDA stream. It may be captured if the plan has run before.
            late: Tensors by UID that replace those bound.
        """
        library = self._graph.library
        pack = {**self._pack, **late} if late else self._pack
        with library.lock:
            library.cudnn.set_stream(library.handle, stream)
            self._graph.graph.execute_plan_at_index(pack, self._workspace, index=self._index, handle=library.handle)


def find_plans(problem: Problem, device: torch.device) -> FoundPlans:
    """Return all execution plans of a problem on the current GPU, built."""
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
    """A problem as a graph whose vectors have one dtype, with the plans of all heuristics."""

    def __init__(self, library: CudnnLibrary, problem: Convolution, vectors: str | None) -> None:
        self.library, self.problem, self._vectors = library, problem, vectors
        self.graph = describe(library, problem, vectors)

    def plans(self) -> Iterator[ExecutionPlan]:
        """Build and yield all plans in the heuristics' order, each once."""
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
        """Return the numerical notes of each plan by its name; None if they cannot be determined.

        The package does not report these notes; it only deselects the plans that have one. For each note, a graph is
        made that deselects all plans by their workspace, and those with the note by the note. To build a plan then
        fails at once, and the error tells which of the two it was.
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
        except Exception:  # plans without notes are still useful
            return None
        return notes or None  # every engine has some note: with none at all, the errors were not understood

    def serialized(self, plan: ExecutionPlan) -> bytes:
        """Return the graph with this plan, serialized; raises LibraryError for an engine of the Python package."""
        self.graph.build_plan_at_index(plan.index)  # the plan that was built last is serialized
        if self.graph.selected_engine is not None:
            raise LibraryError(f"{plan.name} is an engine of the Python package, which cannot be serialized")
        return bytes(self.graph.serialize())


def _deselected(graph: Any, index: int) -> bool:
    """Return whether a plan was deselected by its notes."""
    try:
        graph.build_plan_at_index(index)
    except Exception as error:
        return is_error(error, "deselected by a note")
    return False
