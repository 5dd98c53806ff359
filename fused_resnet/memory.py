"""The memory that a module needs for calls of one kind, before it is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autotune.core import format_bytes
from autotune.ir import State
from autotune.runtime import NetworkPlan, SharedConstants
from fused_resnet.text_table import percent


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a module for calls of one kind, in bytes; str() formats it.

    It does not count what CUDA and a CUDA graph take, what torch's operators allocate while they run, and what Inductor
    and cuDNN keep.

    Attributes:
        parameters: The parameters and buffers of the module.
        constants: Folded and packed weights of all plans that are bound; those that plans share count once.
        code: The binaries of the kernels.
        activations: Activations at the peak. Plans that run on one stream share this memory.
        unshared: Activations if each had memory of its own.
        workspaces: Workspaces of the kernels.
        results: The tensors that a call returns.
    """

    parameters: int
    constants: int
    code: int
    activations: int
    unshared: int
    workspaces: int
    results: int

    @property
    def total(self) -> int:
        """Sum of all but `unshared`."""
        kept = self.parameters + self.constants + self.code
        return kept + self.activations + self.workspaces + self.results

    def __str__(self) -> str:
        saved = percent(1 - self.activations / self.unshared if self.unshared else 0.0)
        lines = [
            f"activations: {format_bytes(self.activations)} at the peak, {saved} less than one buffer each",
            f"workspaces: {format_bytes(self.workspaces)}, results: {format_bytes(self.results)}",
            f"weights: {format_bytes(self.parameters)}, folded and packed: {format_bytes(self.constants)}",
            f"kernels: {format_bytes(self.code)}, all: {format_bytes(self.total)}",
        ]
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


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the sizes of tensors' storages in bytes, by their addresses; views share one."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
