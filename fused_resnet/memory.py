"""The memory that calls of one kind need, before it is allocated: of a module, or of a plan without its device."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from autotune.core import format_bytes
from autotune.ir import TENSOR_DTYPES, Layer, Network, State, pack_weight
from autotune.ir.operators import Convolution
from autotune.libraries import cudnn_names
from autotune.runtime import NetworkPlan, SharedConstants, activations, aligned, place
from fused_resnet.text_table import percent

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device, Plan


@dataclass(frozen=True)
class MemoryReport:
    """The memory for calls of one kind, in bytes; str() formats it.

    It does not count what CUDA and a CUDA graph take, what torch's operators allocate while they run, and what Inductor
    and cuDNN keep.

    Attributes:
        parameters: The parameters and buffers of the module; 0 for a plan that is read without a module.
        constants: Folded and packed weights: of a module's plans that are bound, where those that plans share count
            once, or of one plan.
        code: The binaries of the kernels.
        activations: Activations at the peak. Plans that run on one stream share this memory.
        unshared: Activations if each had memory of its own.
        workspaces: Workspaces of the kernels.
        results: The tensors that a call returns.
        not_recorded: Layers whose workspace is not recorded, and does not count; kernels that are bound say theirs.
    """

    parameters: int
    constants: int
    code: int
    activations: int
    unshared: int
    workspaces: int
    results: int
    not_recorded: int = 0

    @property
    def total(self) -> int:
        """Sum of all but `unshared`."""
        kept = self.parameters + self.constants + self.code
        return kept + self.activations + self.workspaces + self.results

    def __str__(self) -> str:
        saved = percent(max(0.0, 1 - self.activations / self.unshared) if self.unshared else 0.0)  # results count, too
        lines = [
            f"activations: {format_bytes(self.activations)} at the peak, {saved} less than one buffer each",
            f"workspaces: {format_bytes(self.workspaces)}, results: {format_bytes(self.results)}",
            f"weights: {format_bytes(self.parameters)}, folded and packed: {format_bytes(self.constants)}",
            f"kernels: {format_bytes(self.code)}, all: {format_bytes(self.total)}",
        ]
        if self.not_recorded:
            lines.append(f"workspaces of {self.not_recorded} layers are not recorded, and do not count")
        return "\n".join(lines)


def memory_report(plan: NetworkPlan, constants: SharedConstants, state: State) -> MemoryReport:
    """Return the memory that a plan needs.

    Args:
        plan: The plan.
        constants: The constants of all plans of its module.
        state: The tensors of the module by name.
    """
    own = _storages(state.values())
    made = {key: size for key, size in _storages(constants.alive()).items() if key not in own}
    binaries = {bound.choice.candidate.binary for bound in plan.bound}
    return MemoryReport(
        parameters=sum(own.values()),
        constants=sum(made.values()),
        code=sum(len(binary.data) for binary in binaries if binary),
        activations=plan.activation_bytes,
        unshared=sum(operand.bytes for operand in plan.buffers.values()),
        workspaces=plan.workspace_bytes,
        results=sum(result.bytes for result in plan.network.results),
    )


def planned_memory(store: Database, device: Device, network: Network, plan: Plan) -> MemoryReport:
    """Return the memory of a plan on its device, which need not be there, as the database tells it.

    Args:
        store: The database.
        device: The device of the plan.
        network: The network of the plan.
        plan: The plan.
    """
    kernels = {choice["layer"]: store.kernel(choice["kernel"]) for choice in plan.choices}
    launches = {choice["layer"]: choice["launch"] for choice in plan.choices}
    layers = network.layers_with(plan.details.get("alternatives", []), kernels)
    buffers, constants, workspaces = activations(layers, network.callers), dict[Hashable, int](), list[int | None]()
    for layer in layers:
        kernel = kernels[layer.name]
        constants |= _constants(layer, kernel.weight_layouts if kernel.library else {}, network)
        if kernel.library and kernel.family != cudnn_names.FAMILY:
            workspaces.append(_workspace(store, device, layer, kernel.id, launches[layer.name]))
    libraries = {kernel.library.digest: kernel.library.size for kernel in kernels.values() if kernel.library}
    results = [result.bytes for result in network.results]
    return MemoryReport(
        parameters=0,
        constants=sum(constants.values()),
        code=sum(libraries.values()),
        activations=max([place(layers, buffers).bytes, *results]),
        unshared=sum(operand.bytes for operand in buffers.values()),
        workspaces=sum(aligned(size or 0) for size in workspaces),
        results=sum(results),
        not_recorded=workspaces.count(None),
    )


def _constants(layer: Layer, layouts: Mapping[str, str], network: Network) -> dict[Hashable, int]:
    """Return the sizes of what a plan makes of a layer's weights, by what tells them apart.

    A parameter that a kernel reads as it is in the module is not made anew. Parameters have the network's dtype.
    """
    dtype = dict(network.identity.properties).get("dtype", "").partition("+")[0]
    groups = layer.problem.groups if isinstance(layer.problem, Convolution) else 1
    sizes: dict[Hashable, int] = {}
    for operand in layer.problem.operands():
        source = layer.weights.get(operand.name)
        if source is None:
            continue
        weight = torch.empty(operand.shape, dtype=TENSOR_DTYPES[operand.dtype], device="meta")
        layout = layouts.get(operand.name)
        packed = pack_weight(weight, layout, groups) if layout else weight
        is_parameter = isinstance(source, str) and TENSOR_DTYPES[operand.dtype] is TENSOR_DTYPES.get(dtype)
        if not (is_parameter and packed.untyped_storage()._cdata == weight.untyped_storage()._cdata):
            sizes[source, operand.shape, operand.dtype, layout, groups] = packed.untyped_storage().nbytes()
    return sizes


def _workspace(store: Database, device: Device, layer: Layer, kernel: int, launch: Mapping[str, int]) -> int | None:
    """Return the size of a kernel's workspace for a layer in bytes; None if it is not recorded."""
    rows = store.ranking(device, str(layer.problem))
    found = [row.details.get("workspace_bytes") for row in rows if (row.kernel_id, row.launch) == (kernel, launch)]
    return next((size for size in found if size is not None), None)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the sizes of tensors' storages in bytes, by their addresses; views share one."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
