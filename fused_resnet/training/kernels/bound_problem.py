"""Kernels that are bound to a problem on a device and kept: what the operators of compiled training graphs run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import Lock

import torch

from autotune.core import AutotuneError
from autotune.ir import TENSOR_DTYPES, Problem, parse
from autotune.runtime import ACCESS, Candidate, KernelChoice, TensorSlot, bind
from autotune.runtime.engine import EngineError, Program
from fused_resnet.training.kernels.winners import Winners

Key = tuple[str, str, str, tuple[float, ...], torch.device]
"""The arguments of `bound`: what a kernel is bound for."""

_known: dict[str, Winners] = {}
_bound: dict[Key, BoundProblem] = {}
_counters: list[Counter[Key]] = []
_lock = Lock()


class UnsolvedError(AutotuneError):
    """A compiled graph asks for a kernel that the database does not have."""


def use(winners: Winners) -> None:
    """Let the operators read a database with the keys of `winners`."""
    _known[winners.database] = winners


class BoundProblem:
    """A kernel that is bound to a problem on a device; each call provides the tensors.

    Args:
        problem: The problem.
        candidate: The kernel of ours, or the plan of cuDNN.
        scalars: The problem's scalars, then those of its epilogue.
        device: The device.

    Attributes:
        candidate: The kernel.

    Raises:
        EngineError: The kernel cannot solve the problem, or cannot be loaded.
    """

    def __init__(
        self, problem: Problem, candidate: Candidate, scalars: tuple[float, ...], device: torch.device
    ) -> None:
        self.candidate = candidate
        self._device, self._operands = device, problem.operands()
        slots = {operand.name: TensorSlot(i) for i, operand in enumerate(self._operands)}
        self._step = bind(candidate, problem, slots, scalars, device, str(problem))
        self._program = Program()
        self._workspace = Lock()  # threads share it; on a GPU a stream orders what uses it
        if self._step.kernel:
            self._program.add(self._step.kernel, self._step.pointers)

    def run(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Solve the problem; on a GPU the results are ready when the current stream is.

        Args:
            operands: The inputs, weights and vectors in the problem's order. Those with four dimensions have torch's
                order of axes, and so have the results.

        Returns:
            The outputs in the problem's order, those with four dimensions channels last.
        """
        given = iter(operands)
        tensors = [
            torch.empty(operand.shape, dtype=TENSOR_DTYPES[operand.dtype], device=self._device)
            if operand.role == "output"
            else _readable(next(given), operand.role)
            for operand in self._operands
        ]
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                self._launch(tensors, torch.cuda.current_stream().cuda_stream)
        else:
            self._launch(tensors, 0)
        return [
            y.permute(0, 3, 1, 2) if y.dim() == 4 else y
            for y, operand in zip(tensors, self._operands, strict=True)
            if operand.role == "output"
        ]

    def _launch(self, tensors: Sequence[torch.Tensor], stream: int) -> None:
        kernel = self._step.kernel
        if kernel is None:
            assert self._step.function
            self._step.function(tensors)
            return
        with self._workspace if kernel.workspace_bytes and self._device.type == "cpu" else nullcontext():
            self._program.run(stream, [tensor.data_ptr() for tensor in tensors])


def _readable(tensor: torch.Tensor, role: str) -> torch.Tensor:
    """Return an operand in the kernels' order of axes, contiguous and aligned."""
    in_order = tensor.permute(0, 2, 3, 1) if role == "input" and tensor.dim() == 4 else tensor
    ready = in_order.contiguous()
    return ready.clone() if ready.data_ptr() % ACCESS else ready


def run(
    problem: str, operands: Sequence[torch.Tensor], database: str, layout: str = "", scalars: tuple[float, ...] = ()
) -> list[torch.Tensor]:
    """Solve a problem with the fastest kernel of a database; it is bound at the first call.

    Args:
        problem: Text of the problem.
        operands: As for `BoundProblem.run`.
        database: The database.
        layout: Layout in which the weight is given; empty for problems without one.
        scalars: As for BoundProblem.
    """
    key = problem, database, layout, scalars, operands[0].device
    for calls in _counters:
        calls[key] += 1
    return (_bound.get(key) or bound(*key)).run(operands)


@contextmanager
def counted_calls() -> Iterator[Counter[Key]]:
    """Count the calls of `run` of all threads by what they ask for."""
    calls: Counter[Key] = Counter()
    _counters.append(calls)
    try:
        yield calls
    finally:
        _counters[:] = [one for one in _counters if one is not calls]


def exchange(key: Key, other: BoundProblem) -> BoundProblem:
    """Let another kernel solve a problem that was bound, and return the one that did.

    A CUDA graph that was recorded before still runs the former, and needs it to live.
    """
    with _lock:
        before, _bound[key] = _bound[key], other
    return before


def can_solve(
    problem: Problem, database: str, device: torch.device, layout: str = "", scalars: tuple[float, ...] = ()
) -> bool:
    """Bind the fastest kernel for a problem, which calls then use; return False if no kernel can be bound."""
    try:
        bound(str(problem), database, layout, scalars, device)
    except UnsolvedError:
        return False
    return True


def bound(problem: str, database: str, layout: str, scalars: tuple[float, ...], device: torch.device) -> BoundProblem:
    """Return the kernel that solves a problem; arguments as for `run`.

    Raises:
        DatabaseError: The database cannot be read.
        UnsolvedError: It has no kernel that runs here.
    """
    with _lock:
        key = problem, database, layout, scalars, device
        if key not in _bound:
            choices = _known.get(database, Winners(database)).kernels(parsed(problem), device, layout)
            _bound[key] = _bound_outside_pools(key, choices)
        return _bound[key]


@cache
def parsed(text: str) -> Problem:
    """Return the problem of a text."""
    return parse(text)


def _bound_outside_pools(key: Key, choices: Sequence[KernelChoice]) -> BoundProblem:
    """Return the first kernel that can be bound, with memory that no pool of a CUDA graph owns.

    Inductor runs a graph once while this thread and its stream allocate from the pool of the CUDA graph, and refuses
    tensors of the pool that outlive the run, as a kernel's workspace does. Another thread does not allocate from it.
    """

    def bind_and_wait() -> BoundProblem:
        made, device = _first_bound(key, choices), key[-1]
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # it may still fill the workspace
        return made

    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(bind_and_wait).result()


def _first_bound(key: Key, choices: Sequence[KernelChoice]) -> BoundProblem:
    problem, database, layout, scalars, device = key
    refused = ""
    for choice in choices:
        try:
            return BoundProblem(parsed(problem), choice.candidate, scalars, device)
        except EngineError as error:
            refused = f": {error}"
    weight = f" with a weight in {layout}" if layout else ""
    raise UnsolvedError(
        f"{database} has no kernel for '{problem}'{weight} that runs here{refused}; compile the model again, after "
        "torch.compiler.reset()"
    )
