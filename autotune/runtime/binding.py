"""Binding: a row of the database -> a candidate; candidate + problem + tensors -> a step that can be launched.

The tuner times the steps that a network runs, because both are made here. A candidate holds the binary of its kernel:
no file lies between the bytes and their code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from autotune.core import AutotuneError, LayerError, LibraryError
from autotune.ir import Problem, Tensors, abi, pack_weight
from autotune.ir.operators import Convolution
from autotune.libraries import aten, cudnn_names, inductor
from autotune.runtime import engine
from autotune.runtime.shared_constants import Pack
from tuning_db.trust.digests import candidate as candidate_digest

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Kernel, Library

NAMES = {"device_image": "{}.cubin", "shared_library": "autotune-{}.so", "cudnn_plan": "{}.plan"}
"""Kind of a binary -> its name in messages, debuggers and profilers; {} is the start of its digest."""


@dataclass(frozen=True)
class Binary:
    """One or more compiled kernels, or a plan of cuDNN. Binaries are equal if their kinds and digests are.

    Attributes:
        kind: A key of NAMES.
        digest: SHA-256 of the bytes, in hexadecimal.
        data: The bytes.
    """

    kind: str
    digest: str
    data: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, kind: str, data: bytes) -> Binary:
        """Return the binary of bytes that are trusted, such as those that a compiler has just written."""
        return cls(kind, hashlib.sha256(data).hexdigest(), data)

    @property
    def name(self) -> str:
        """Its name in messages, debuggers and profilers."""
        return NAMES[self.kind].format(self.digest[:12])


@lru_cache(maxsize=512)
def load(binary: Binary, device: int) -> engine.SharedLibrary | engine.DeviceImage:
    """Return the engine's handle of a binary's kernels; each binary is loaded once.

    Args:
        binary: A shared library or a device image.
        device: Number of the GPU that loads a device image.

    Raises:
        EngineError: The binary cannot be loaded.
    """
    match binary.kind:
        case "shared_library":
            return engine.SharedLibrary(binary.data, binary.name)
        case "device_image":
            return engine.DeviceImage(binary.data, device)
    raise AutotuneError(f"a binary of the kind '{binary.kind}' holds no kernels")


@dataclass(frozen=True)
class Candidate:
    """One implementation of a problem: a kernel of ours, a plan of cuDNN, or an operator of torch.

    Attributes:
        family: Name of the family; that of torch's operators is `aten.FAMILY`, of those that Inductor compiles
            `inductor.FAMILY`.
        config: Compile-time parameters, as JSON.
        symbol: The kernel's name in its binary; for a plan of cuDNN, the text of the problem that it was made for.
        binary: The binary that holds it; None for an operator of torch.
        weight_layouts: Layout in which the kernel reads each weight, by the operand's name.
        launch: Launch values by name.
        launch_names: Names of the launch values in the order in which the kernel takes them.
    """

    family: str
    config: str
    symbol: str
    binary: Binary | None = None
    weight_layouts: Mapping[str, str] = field(default_factory=dict)
    launch: Mapping[str, int] = field(default_factory=dict)
    launch_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str | None:
        """Kind of the binary; None for an operator of torch."""
        return self.binary.kind if self.binary else None

    @property
    def compiled(self) -> bool:
        """True for calls of torch's operators that Inductor compiles when they are bound."""
        return self.family == inductor.FAMILY

    @property
    def native(self) -> bool:
        """True for a kernel of ours, which the engine launches."""
        return self.kind not in (None, cudnn_names.KIND)

    @property
    def digest(self) -> str:
        """The digest by which tuning_db/evidence.py knows a kernel with its launch values."""
        binary = self.binary.digest if self.binary else None
        return candidate_digest(self.family, self.config, self.symbol, binary, self.launch)

    def __str__(self) -> str:
        if self.kind == cudnn_names.KIND:
            from autotune.libraries import cudnn

            return cudnn.summary(json.loads(self.config))
        values = {**json.loads(self.config), **self.launch}
        return " ".join([self.family, *(f"{name}={value}" for name, value in values.items())])


_in_use: WeakValueDictionary[tuple[str, str], Binary] = WeakValueDictionary()
"""Binaries that some candidate has, by kind and digest: a library of several kernels is unpacked once."""


def candidate(store: Database, row: Kernel, launch: Mapping[str, int]) -> Candidate:
    """Return the candidate of a kernel's row.

    Args:
        store: The database that holds the row.
        row: The kernel.
        launch: Launch parameters by name.

    Raises:
        DatabaseError: The kernel's binary is damaged, or is not trusted.
    """
    if row.library is None:
        return Candidate(row.family, row.config, row.symbol)
    return Candidate(
        row.family,
        row.config,
        row.symbol,
        _binary(store, row.library),
        row.weight_layouts,
        dict(launch),
        tuple(row.launch_names),
    )


def _binary(store: Database, library: Library) -> Binary:
    key = library.kind, library.digest
    binary = _in_use.get(key)
    if binary is None:
        binary = _in_use[key] = Binary(*key, store.binary(library))
    return binary


CHANNELS_LAST = "channels_last"
"""Launch parameter of kernels that read the caller's image in either memory format: 1 for channels last."""


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor that each run provides: the caller's input or output, or a part of a plan's memory.

    Attributes:
        index: Position among the tensors that `BoundStep.run` receives.
    """

    index: int


@dataclass
class BoundStep:
    """A candidate bound to its tensors: either a native kernel with its pointers, or a function of torch or cuDNN.

    Attributes:
        name: The layer's name, for messages.
        kernel: The native kernel, prepared for its problem.
        pointers: Arguments of the native kernel; -1 - i stands for slot i.
        function: Runs an operator of torch or a plan of cuDNN on the tensors in the slots.
        keep: Tensors that must live as long as the step: packed weights and the workspace.
    """

    name: str
    kernel: engine.Prepared | None = None
    pointers: list[int] = field(default_factory=list)
    function: Callable[[Sequence[torch.Tensor]], None] | None = None
    keep: list[torch.Tensor] = field(default_factory=list)

    def run(self, stream: int = 0, slots: Sequence[torch.Tensor] = ()) -> None:
        """Launch this step alone.

        Args:
            stream: Handle of a CUDA stream; 0 on a CPU.
            slots: The tensors in the slots, in their order.

        Raises:
            LayerError: An operator of torch or a plan of cuDNN fails.
        """
        if self.function:
            self.function(slots)
        else:
            assert self.kernel
            program = engine.Program()
            program.add(self.kernel, self.pointers)
            program.run(stream, [tensor.data_ptr() for tensor in slots])


def bind(
    candidate: Candidate,
    problem: Problem,
    tensors: Mapping[str, torch.Tensor | TensorSlot],
    scalars: tuple[float, ...],
    device: torch.device,
    name: str = "",
    workspace: TensorSlot | None = None,
    pack: Pack | None = None,
) -> BoundStep:
    """Bind a candidate to the tensors of a problem.

    Args:
        candidate: The implementation.
        problem: The problem that it solves.
        tensors: Every operand by name, with the shapes and dtypes of `problem.operands()`; activations may be slots.
        scalars: The epilogue's scalars, in the order of its steps.
        device: Where it runs.
        name: The layer's name, for messages.
        workspace: Slot of the kernel's workspace. The caller then provides memory that is zero at first and used by no
            other step; without a slot the step allocates its own.
        pack: Packs the weights, in place of `pack_weight`.

    Raises:
        RefusedError: The candidate cannot solve the problem.
        EngineError: Its binary cannot be loaded.
    """
    slots = {key: value.index for key, value in tensors.items() if isinstance(value, TensorSlot)}
    fixed = {key: value for key, value in tensors.items() if isinstance(value, torch.Tensor)}
    if candidate.family == inductor.FAMILY:
        return _called(name, problem, slots, _bind_inductor(candidate, problem, fixed, device))
    if candidate.binary is None:
        return _called(name, problem, slots, aten.bind(problem, json.loads(candidate.config), fixed, scalars))
    if candidate.kind == cudnn_names.KIND:
        plan = _bind_cudnn_plan(candidate, candidate.binary, problem, fixed, scalars, device)
        return _called(name, problem, slots, plan)

    library = load(candidate.binary, device.index or 0)
    prepared = library.prepare(
        candidate.symbol, abi.pack_problem(problem, scalars, candidate.launch, candidate.launch_names)
    )
    packed = _packed(candidate, problem, fixed, pack)
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


def _called(name: str, problem: Problem, slots: Mapping[str, int], function: Callable[[Tensors], object]) -> BoundStep:
    """Return a step that calls a function with the tensors in slots, by operand name, each in the operand's shape.

    Layers may disagree on the shape of an activation: an image (n, 1, 1, c) for one is a matrix (n, c) for another.
    """
    shapes = {operand.name: operand.shape for operand in problem.operands()}
    places = [(key, index, shapes[key]) for key, index in slots.items()]

    def run(given: Sequence[torch.Tensor]) -> None:
        tensors = {}
        for key, index, shape in places:
            tensor = given[index]
            tensors[key] = tensor if tensor.shape == shape else tensor.view(shape)
        try:
            function(tensors)
        except torch.OutOfMemoryError:
            raise  # it may work when there is memory again
        except Exception as error:  # an operator of torch or a library may raise anything
            raise LayerError(name, error) from error

    return BoundStep(name, function=run)


def _bind_inductor(
    candidate: Candidate, problem: Problem, tensors: Tensors, device: torch.device
) -> Callable[[Tensors], None]:
    """Compile a problem; raises RefusedError if that is not possible."""
    try:
        return inductor.bind(
            problem, json.loads(candidate.config), tensors, device, bool(candidate.launch.get(CHANNELS_LAST))
        )
    except LibraryError as error:
        raise engine.RefusedError(str(error)) from error


def _bind_cudnn_plan(
    candidate: Candidate,
    binary: Binary,
    problem: Problem,
    tensors: Tensors,
    scalars: tuple[float, ...],
    device: torch.device,
) -> Callable[[Tensors], None]:
    """Bind a plan of cuDNN; raises RefusedError if it was made for another problem or by another version of cuDNN."""
    from autotune.libraries import cudnn  # imported late: most networks have no such plan

    if candidate.symbol != str(problem):
        raise engine.RefusedError(f"the plan of cuDNN is for '{candidate.symbol}', not for '{problem}'")
    try:
        return cudnn.bind(problem, binary.data, json.loads(candidate.config), tensors, scalars, device)
    except LibraryError as error:
        raise engine.RefusedError(str(error)) from error


def _packed(candidate: Candidate, problem: Problem, tensors: Tensors, pack: Pack | None) -> dict[str, torch.Tensor]:
    """Return the tensors, each weight in the layout that the kernel reads."""
    groups = problem.groups if isinstance(problem, Convolution) else 1
    result = dict(tensors)
    for name, layout in candidate.weight_layouts.items():
        if name in tensors:  # a family may serve problems with and without some of its weights
            weight = tensors[name]
            result[name] = pack(name, weight, layout, groups) if pack else pack_weight(weight, layout, groups)
    return result
