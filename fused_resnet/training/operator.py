"""`fused_resnet::solve(operands, problem, database, layout)`: an operator of torch that runs a problem's tuned kernel.

Compiled graphs contain it in place of torch's convolutions. Its arguments are texts, so a graph that a compiler has
stored runs in another process, too. A kernel is bound at the first call of its problem on a device, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock

import torch

from autotune.core import AutotuneError
from autotune.ir import TENSOR_DTYPES, Convolution, parse
from autotune.runtime import ACCESS, Candidate, TensorSlot, bind
from autotune.runtime.engine import EngineError, Program
from fused_resnet.training.winners import Winners, layout_of

# Inductor passes operands with the strides that the rewritten graph notes for them, so that nothing is copied here.
_TAGS = [getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)]
_LIBRARY = torch.library.Library("fused_resnet", "FRAGMENT")
_LIBRARY.define("solve(Tensor[] operands, str problem, str database, str layout) -> Tensor", tags=_TAGS)
SOLVE: Callable[[Sequence[torch.Tensor], str, str, str], torch.Tensor] = torch.ops.fused_resnet.solve.default
"""(the problem's inputs, its text, the database, the layout of the weight) -> the result.

Activations and the result have torch's order of axes and are channels last in memory, as those of torch's convolutions,
so that a compiler keeps all tensors between them channels last. The weight is packed, as the kernel reads it. The graph
packs it by operators of torch, which a compiler fuses with what computes it, such as autocast's conversion."""

_known: dict[str, Winners] = {}
_bound: dict[tuple[str, str, str, torch.device], BoundProblem] = {}
_lock = Lock()


class UnsolvedError(AutotuneError):
    """A compiled graph asks for a kernel that the database does not have."""


def use(winners: Winners) -> None:
    """Let the operator read a database with the keys of `winners`."""
    _known[winners.database] = winners


class BoundProblem:
    """A kernel that is bound to a problem on a device; each call provides the tensors.

    Args:
        problem: The problem.
        candidate: The kernel of ours, or the plan of cuDNN.
        device: The device.

    Raises:
        EngineError: The kernel cannot solve the problem, or cannot be loaded.
    """

    def __init__(self, problem: Convolution, candidate: Candidate, device: torch.device) -> None:
        self._device = device
        *self._inputs, self._y = problem.operands()
        slots = {operand.name: TensorSlot(i) for i, operand in enumerate(problem.operands())}
        self._step = bind(candidate, problem, slots, (), device, str(problem))
        self._program = Program()
        if self._step.kernel:
            self._program.add(self._step.kernel, self._step.pointers)

    def run(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the result for some inputs; on a GPU it is ready when the current stream is."""
        given = [
            _readable(tensor if operand.role == "weight" else tensor.permute(0, 2, 3, 1))
            for tensor, operand in zip(operands, self._inputs, strict=True)
        ]
        y = torch.empty(self._y.shape, dtype=TENSOR_DTYPES[self._y.dtype], device=self._device)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                self._launch([*given, y], torch.cuda.current_stream().cuda_stream)
        else:
            self._launch([*given, y], 0)
        return y.permute(0, 3, 1, 2)

    def _launch(self, tensors: Sequence[torch.Tensor], stream: int) -> None:
        if self._step.function:
            self._step.function(tensors)
        else:
            self._program.run(stream, [tensor.data_ptr() for tensor in tensors])


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return an input contiguous, and aligned for the kernels."""
    ready = tensor.contiguous()
    return ready.clone() if ready.data_ptr() % ACCESS else ready


def can_solve(problem: Convolution, database: str, layout: str, device: torch.device) -> bool:
    """Bind the fastest kernel for a problem, which calls then use; return False if no kernel can be bound."""
    try:
        _bind(str(problem), database, layout, device)
    except UnsolvedError:
        return False
    return True


def _solve(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    device = operands[0].device
    bound = _bound.get((problem, database, layout, device)) or _bind(problem, database, layout, device)
    return bound.run(operands)


def _bind(problem: str, database: str, layout: str, device: torch.device) -> BoundProblem:
    with _lock:
        key = problem, database, layout, device
        if key not in _bound:
            _bound[key] = _bound_outside_pools(_parsed(problem), database, layout, device)
        return _bound[key]


def _bound_outside_pools(problem: Convolution, database: str, layout: str, device: torch.device) -> BoundProblem:
    """Return the fastest kernel that can be bound, with memory that no pool of a CUDA graph owns.

    Inductor runs a graph once while this thread and its stream allocate from the pool of the CUDA graph, and refuses
    tensors of the pool that outlive the run, as a kernel's workspace does. Another thread does not allocate from it.

    Raises:
        DatabaseError: The database cannot be read.
        UnsolvedError: It has no kernel that runs here.
    """

    def bind_and_wait() -> BoundProblem:
        bound = _bound_problem(problem, database, layout, device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # it may still fill the workspace
        return bound

    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(bind_and_wait).result()


def _bound_problem(problem: Convolution, database: str, layout: str, device: torch.device) -> BoundProblem:
    """Return the fastest kernel that can be bound.

    Raises:
        DatabaseError: The database cannot be read.
        UnsolvedError: It has no kernel that runs here.
    """
    refused = ""
    for candidate in _known.get(database, Winners(database)).candidates(problem, device):
        if layout_of(candidate) != layout:
            continue
        try:
            return BoundProblem(problem, candidate, device)
        except EngineError as error:
            refused = f": {error}"
    raise UnsolvedError(
        f"{database} has no kernel for '{problem}' with a weight in {layout} that runs here{refused}; compile the "
        "model again, after torch.compiler.reset()"
    )


@cache
def _parsed(text: str) -> Convolution:
    problem = parse(text)
    assert isinstance(problem, Convolution)
    return problem


def _fake(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    y = _parsed(problem).operands()[-1]
    return operands[0].new_empty(y.shape, dtype=TENSOR_DTYPES[y.dtype]).permute(0, 3, 1, 2)


_LIBRARY.impl("solve", _solve, "CompositeExplicitAutograd")
torch.library.register_fake("fused_resnet::solve", _fake, lib=_LIBRARY)
