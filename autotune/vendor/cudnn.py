"""cuDNN's execution plans for a convolution, through its graph API: every one that its heuristics know, built.

Needs the package nvidia-cudnn-frontend and the cuDNN that torch brings. What is missing or unsupported, and each plan
that cannot be built, is a sentence in the answer, never an exception.

cuDNN is asked twice where there is a bias: its ready-made kernels take one in the dtype of the problem only, which is
also how torch calls it; those that it compiles at run time take float32 as well. Both count as cuDNN.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from autotune.errors import VendorError
from autotune.problem import DTYPES, Conv2d, Problem, Tensors

PACKAGE = "nvidia-cudnn-frontend==1.28.0"
"""What to install: the last version without large dependencies."""

OLDEST = 90000
"""The oldest cuDNN whose graphs are used here, as its version number counts: 9.0.0."""

WORKSPACE_LIMIT = 4 << 30
"""Bytes of workspace above which a plan is not run."""

STEPS = ("bias", "add", "relu")
"""Epilogue steps that are handed to cuDNN."""


@dataclass(frozen=True)
class Plan:
    """One execution plan, numbered from the heuristics' first choice on. `error` says why it cannot run.

    name: cuDNN's own, engine and knobs in one word. It, `engine` and `knobs` hold for one version of cuDNN.
    bias: dtype in which this plan reads the bias; None without one.
    """

    index: int
    name: str
    bias: str | None = None
    engine: int | None = None
    knobs: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    workspace_bytes: int = 0
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.name} bias={self.bias}" if self.bias else self.name


@dataclass(frozen=True)
class Found:
    """The plans of a problem, the heuristics' first choice first; without any, `reason` says why in a sentence."""

    plans: list[Plan]
    reason: str | None = None
    graphs: Mapping[str | None, _Graph] = field(default_factory=dict, repr=False)

    def bind(self, plan: Plan, tensors: Tensors) -> BoundPlan:
        """Bind a plan without `error` to a problem's tensors on the GPU."""
        return BoundPlan(self.graphs[plan.bias], plan, tensors)

    def serialized(self, plan: Plan) -> bytes:
        """cuDNN's own form of a plan without `error`: `list` of it is what `pygraph.deserialize` takes."""
        return self.graphs[plan.bias].serialized(plan)


class BoundPlan:
    """A plan with its tensors and workspace."""

    def __init__(self, graph: _Graph, plan: Plan, tensors: Tensors) -> None:
        self._graph, self._index = graph, plan.index  # the plan's kernels live as long as its graph
        self._pack = graph.pack(tensors)
        self._workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device=tensors["x"].device)

    def run(self, stream: int = 0) -> None:
        """Enqueue on a CUDA stream, which may be being captured if it was used before."""
        library = self._graph.library
        library.cudnn.set_stream(library.handle, stream)
        self._graph.graph.execute_plan_at_index(self._pack, self._workspace, index=self._index, handle=library.handle)


def find_plans(problem: Problem, device: torch.device) -> Found:
    """All execution plans of `problem` on the current GPU, built."""
    try:
        _check(problem)
        library = _library(device)
    except VendorError as error:
        return Found([], str(error))
    graphs: dict[str | None, _Graph] = {}
    plans: list[Plan] = []
    reasons: list[str] = []
    for bias in dict.fromkeys((problem.dtype, "f32")) if "bias" in problem.epilogue.names else (None,):
        try:
            graphs[bias] = _Graph(library, problem, bias)
            plans += graphs[bias].plans()
        except Exception as error:  # the package's errors have no common base
            reasons.append(f"cuDNN {library.version} does not support '{problem}': {_first_line(error)}")
    return Found(plans, None if plans else reasons[0] if reasons else f"cuDNN has no plan for '{problem}'", graphs)


def versions(device: torch.device) -> dict[str, str]:
    """The versions of cuDNN and of its package; raises VendorError where they cannot be used."""
    library = _library(device)
    return {"cudnn": library.version, "frontend": library.cudnn.__version__}


def _check(problem: Problem) -> None:
    if not isinstance(problem, Conv2d):
        raise VendorError(f"cuDNN's plans are used for convolutions, not for '{problem}'")
    if problem.dtype not in ("f16", "bf16"):
        raise VendorError(f"cuDNN's plans are used in f16 and bf16, not in {problem.dtype}")
    foreign = [name for name in problem.epilogue.names if name not in STEPS]
    if foreign:
        raise VendorError(f"cuDNN's plans are used with the steps {', '.join(STEPS)}, not with {', '.join(foreign)}")


@dataclass(frozen=True)
class _Library:
    """The package, its handle for one device, and cuDNN's version."""

    cudnn: Any
    handle: Any
    version: str


@cache
def _library(device: torch.device) -> _Library:
    """Load the package and make a handle; raises VendorError."""
    if device.type != "cuda":
        raise VendorError("cuDNN's plans need an NVIDIA GPU")
    try:
        cudnn = importlib.import_module("cudnn")
        version, name = cudnn.backend_version(), cudnn.backend_version_string()
        logging.getLogger("cudnn").setLevel(logging.ERROR)  # what it warns of is in its errors
        if not hasattr(cudnn.pygraph, "get_engine_and_knobs_at_index"):
            raise VendorError(f"the package cudnn is {cudnn.__version__}, too old: pip install {PACKAGE}")
        if version < OLDEST:
            raise VendorError(f"cuDNN {name} is too old for its plans to be used here: 9.0 or newer is needed")
        with torch.cuda.device(device):
            return _Library(cudnn, cudnn.create_handle(), name)
    except VendorError:
        raise
    except ModuleNotFoundError as error:
        raise VendorError(f"no cuDNN plans without its Python package: pip install {PACKAGE}") from error
    except Exception as error:  # it looks for libraries while it is imported, and asserts what it finds
        raise VendorError(f"the package cudnn cannot be used: {_first_line(error)}") from error


class _Graph:
    """A problem as a cuDNN graph that reads its bias in one dtype, with the plans of all its heuristics."""

    def __init__(self, library: _Library, problem: Problem, bias: str | None) -> None:
        self.library, self._bias = library, bias
        cudnn = library.cudnn
        self._dtypes = {
            "f16": cudnn.data_type.HALF,
            "bf16": cudnn.data_type.BFLOAT16,
            "f32": cudnn.data_type.FLOAT,
        }
        self.graph = cudnn.pygraph(
            io_data_type=self._dtypes[problem.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=library.handle,
        )
        assert isinstance(problem, Conv2d)
        self._operands = self._describe(problem)
        self.graph.validate()
        self.graph.build_operation_graph()
        modes = cudnn.heur_mode
        self.graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])

    def _describe(self, problem: Conv2d) -> dict[str, Any]:
        """Add the operators; returns cuDNN's tensors by the names of the problem's operands."""
        n, p, q, k = problem.output_shape
        output = (n, k, p, q)
        operands = {
            "x": self._tensor("x", (n, problem.c, problem.h, problem.w), problem.dtype),
            "weight": self._tensor("weight", (k, problem.c // problem.groups, problem.r, problem.s), problem.dtype),
        }
        value = self.graph.conv_fprop(
            image=operands["x"],
            weight=operands["weight"],
            padding=list(problem.pad),
            stride=list(problem.stride),
            dilation=list(problem.dilation),
        )
        for step in problem.epilogue.steps:
            # Where extents are 1 cuDNN could take an intermediate value for channels first: say what it is.
            value.set_dim(list(output)).set_stride(channels_last(output))
            name = step.arguments[0].name if step.arguments else ""
            if step.name == "bias":
                operand = self._tensor(name, (1, k, 1, 1), self._bias or problem.dtype)
                value = self.graph.bias(input=value, bias=operand)
            elif step.name == "add":
                operand = self._tensor(name, output, problem.dtype)
                value = self.graph.add(a=value, b=operand)
            else:
                value = self.graph.relu(input=value)
                continue
            operands[name] = operand
        value.set_dim(list(output)).set_stride(channels_last(output))
        value.set_output(True).set_data_type(self._dtypes[problem.dtype])
        return {**operands, "y": value}

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return self.graph.tensor(name=name, dim=list(shape), stride=channels_last(shape), data_type=self._dtypes[dtype])

    def plans(self) -> Iterator[Plan]:
        """Build all plans, in the heuristics' order; what two heuristics name comes once."""
        seen: set[str] = set()
        for index in range(self.graph.get_execution_plan_count()):
            plan = self._build(index)
            if plan.name not in seen:
                yield plan
            seen.add(plan.name)

    def _build(self, index: int) -> Plan:
        known: dict[str, Any] = {"index": index, "name": f"plan {index}", "bias": self._bias}
        try:
            known["name"] = self.graph.get_plan_name_at_index(index)
            engine, knobs = self.graph.get_engine_and_knobs_at_index(index)
            known |= {"engine": int(engine), "knobs": {knob.name: int(value) for knob, value in knobs.items()}}
            notes = self.graph.get_behavior_notes_for_plan_at_index(index)
            known["notes"] = tuple(sorted(note.name for note in notes))
            self.graph.build_plan_at_index(index)
            known["workspace_bytes"] = int(self.graph.get_workspace_size_plan_at_index(index))
        except Exception as error:  # one plan's failure is its result
            return Plan(**known, error=_first_line(error))
        if known["workspace_bytes"] > WORKSPACE_LIMIT:
            return Plan(**known, error=f"needs {known['workspace_bytes'] / 2**30:.1f} GiB of workspace")
        return Plan(**known)

    def pack(self, tensors: Tensors) -> dict[Any, torch.Tensor]:
        """cuDNN's tensors -> ours, the weight in channels-last order and the bias in this graph's dtype."""
        ours = {name: tensors[name] for name in self._operands}
        ours["weight"] = ours["weight"].contiguous(memory_format=torch.channels_last)
        ours |= {
            name: tensor.to(DTYPES[self._bias or "f32"]) for name, tensor in ours.items() if name.startswith("bias")
        }
        return {self._operands[name]: tensor for name, tensor in ours.items()}

    def serialized(self, plan: Plan) -> bytes:
        """The graph with this plan in cuDNN's own form."""
        self.graph.build_plan_at_index(plan.index)  # what is serialized is the plan that was built last
        return bytes(self.graph.serialize())


def channels_last(shape: tuple[int, ...]) -> list[int]:
    """Strides of (n, c, h, w), or of weights (k, c, r, s), with the second extent innermost."""
    _, c, h, w = shape
    return [c * h * w, 1, c * w, c]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
