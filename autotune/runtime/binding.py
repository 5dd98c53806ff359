"""Candidate + problem + tensors -> a step that can be run. The tuner measures what this makes, the plan runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from autotune.core import LibraryError
from autotune.ir import Convolution, Problem, Tensors, abi, pack_weight
from autotune.libraries import aten, cudnn_names
from autotune.runtime import engine


@dataclass(frozen=True)
class Candidate:
    """Anything that can solve a problem. kind is None for a torch operator; path is where the binary lies.

    symbol: the kernel's name in its binary or, for a plan of cuDNN, the text of the problem that it was made for.
    """

    family: str
    config: str
    symbol: str
    kind: str | None = None
    path: Path | None = None
    weight_layouts: Mapping[str, str] = field(default_factory=dict)
    launch: Mapping[str, int] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        """Whether it is a kernel that the engine runs: one of ours."""
        return self.kind not in (None, cudnn_names.KIND)

    def __str__(self) -> str:
        if self.kind == cudnn_names.KIND:
            from autotune.libraries import cudnn

            return cudnn.summary(json.loads(self.config))
        values = {**json.loads(self.config), **self.launch}
        return " ".join([self.family, *(f"{name}={value}" for name, value in values.items())])


@dataclass(frozen=True)
class TensorSlot:
    """Stands for a tensor that is known only at a run: the caller's input or output, or a part of a plan's memory."""

    index: int


@dataclass
class BoundStep:
    """A bound candidate: either a native kernel with its pointers, or a function of torch or cuDNN."""

    name: str
    kernel: engine.Prepared | None = None
    pointers: list[int] = field(default_factory=list)
    function: Callable[[Sequence[torch.Tensor]], None] | None = None
    keep: list[torch.Tensor] = field(default_factory=list)
    """Tensors that must live as long as the step: packed weights and the workspace."""

    def run(self, stream: int = 0, slots: Sequence[torch.Tensor] = ()) -> None:
        """Run this step alone, on a CUDA stream (0 on a CPU)."""
        if self.function:
            self.function(slots)
        else:
            assert self.kernel
            program = engine.Program()
            program.add(self.kernel, self.pointers)
            program.run(stream, [tensor.data_ptr() for tensor in slots])


@lru_cache(maxsize=512)
def _load(kind: str, path: Path, device: int) -> engine.SharedLibrary | engine.DeviceImage:
    if kind == "shared_library":
        return engine.SharedLibrary(str(path))
    return engine.DeviceImage(path.read_bytes(), device)


def bind(
    candidate: Candidate,
    problem: Problem,
    tensors: Mapping[str, torch.Tensor | TensorSlot],
    scalars: tuple[float, ...],
    device: torch.device,
    name: str = "",
    workspace: TensorSlot | None = None,
) -> BoundStep:
    """Bind a candidate to the tensors of a problem.

    tensors: every operand by name, as problem.py describes them; activations may be Slots.
    workspace: where the kernel's workspace will be, which is the caller's to make then: zeroed, and never shared.
    Raises RefusedError if the kernel cannot solve the problem, EngineError if it cannot be loaded.
    """
    slots = {key: value.index for key, value in tensors.items() if isinstance(value, TensorSlot)}
    fixed = {key: value for key, value in tensors.items() if isinstance(value, torch.Tensor)}
    if candidate.kind is None or candidate.path is None:
        run = aten.bind(problem, json.loads(candidate.config), fixed, scalars)
        return BoundStep(name, function=lambda given: run(_late(problem, slots, given)))
    if candidate.kind == cudnn_names.KIND:
        replay = _vendor_plan(candidate, candidate.path, problem, fixed, scalars, device)
        return BoundStep(name, function=lambda given: replay(_late(problem, slots, given)))

    library = _load(candidate.kind, candidate.path, device.index or 0)
    prepared = library.prepare(candidate.symbol, abi.pack(problem, scalars, list(candidate.launch.values())))
    packed = _packed(candidate, problem, fixed)
    keep = list(packed.values())
    pointers = [0] * abi.MAX_POINTERS
    for i, operand in enumerate(problem.operands()):
        pointers[i] = -1 - slots[operand.name] if operand.name in slots else packed[operand.name].data_ptr()
    if workspace:
        pointers[abi.WORKSPACE] = -1 - workspace.index
    else:
        keep.append(torch.zeros(max(prepared.workspace_bytes, 1), dtype=torch.uint8, device=device))
        pointers[abi.WORKSPACE] = keep[-1].data_ptr()
    return BoundStep(name, prepared, pointers, keep=keep)


def _late(problem: Problem, slots: Mapping[str, int], given: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors in slots by operand, each in the operand's shape: the same memory may be an image and a row."""
    shapes = {operand.name: operand.shape for operand in problem.operands()}
    tensors = {key: given[index] for key, index in slots.items()}
    return {key: t if t.shape == shapes[key] else t.view(shapes[key]) for key, t in tensors.items()}


def _vendor_plan(
    candidate: Candidate,
    path: Path,
    problem: Problem,
    tensors: Tensors,
    scalars: tuple[float, ...],
    device: torch.device,
) -> Callable[[Tensors], None]:
    """A plan of cuDNN; raises RefusedError where it is for another problem or another version."""
    from autotune.libraries import cudnn  # here, for most networks have no such plan

    if candidate.symbol != str(problem):
        raise engine.RefusedError(f"the plan of cuDNN is for '{candidate.symbol}', not for '{problem}'")
    try:
        return cudnn.bind(problem, path, json.loads(candidate.config), tensors, scalars, device)
    except LibraryError as error:
        raise engine.RefusedError(str(error)) from error


def _packed(candidate: Candidate, problem: Problem, tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors with each weight in the order that the kernel wants."""
    groups = problem.groups if isinstance(problem, Convolution) else 1
    result = dict(tensors)
    for name, layout in candidate.weight_layouts.items():
        if name in tensors:  # a family may solve problems with more weights and fewer
            result[name] = pack_weight(tensors[name], layout, groups)
    return result
