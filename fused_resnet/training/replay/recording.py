"""Recordings of the compiled passes of a training step, which are replayed as CUDA graphs.

The tensors of a pass stay where they are: a replay checks addresses, copies the input, and hands out the results. A
replay never overwrites a result that another part of the program still holds: such a step runs without a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

from autotune.core import first_line

Run = Callable[[list[Any]], Sequence[Any]]
"""A compiled pass: it takes its arguments in a list, empties the list, and returns its results."""
Record = Callable[[Run, list[torch.Tensor]], tuple[Callable[[], object], Sequence[Any]]]
"""(pass, arguments) -> a function that repeats the pass on these arguments, and the results it fills."""

MOST_RECORDINGS = 4
"""Recordings of a pass whose parameters move, before it runs without a graph."""


def record_cuda_graph(run: Run, arguments: list[torch.Tensor]) -> tuple[Callable[[], object], Sequence[Any]]:
    """Record a pass as a CUDA graph; nothing is computed before the first replay.

    The graph has a memory pool of its own. In a pool that both passes share, gradients may lie where the forward pass
    has its temporary tensors, and its next replay would overwrite gradients that are held.
    """
    with torch.cuda.device(arguments[0].device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = run(list(arguments))
    return graph.replay, results


class Recorder:
    """The state that both passes of a step share.

    Args:
        record: How a pass is recorded.

    Attributes:
        lock: Held while a pass runs.
        addresses: Those that stay valid between steps.
        token: Stands for all that the forward pass saved: a tensor of its memory is alive as long as that is needed.
    """

    def __init__(self, record: Record) -> None:
        self.record, self.lock = record, Lock()
        self.addresses: frozenset[int] = frozenset()
        self.token = torch.empty(1)


@dataclass(frozen=True)
class Recording:
    """A recorded pass. Everything that a replay goes through is a plain list, since the host's time counts.

    Attributes:
        repeat: Computes the results from the arguments.
        fixed: Positions of the arguments that must not move.
        addresses: Their addresses.
        buffers: The tensors that the other arguments are copied to, with the positions of these.
        results: What `repeat` fills.
        passed: Positions of the results that are such an argument, with the position of that.
        copied: Positions of the results of which a copy is handed out.
        held: Positions of the results that are handed out where they are.
        storages: The memory of these, and of the token.
        free: The number of holders of each of `storages` if no result is in use.
    """

    repeat: Callable[[], object]
    fixed: list[int]
    addresses: list[int]
    buffers: list[tuple[int, torch.Tensor]]
    results: list[Any]
    passed: list[tuple[int, int]]
    copied: list[int]
    held: list[int]
    storages: list[torch.UntypedStorage]
    free: list[int]

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Return whether no argument has moved."""
        return [arguments[i].data_ptr() for i in self.fixed] == self.addresses

    def is_in_use(self) -> bool:
        """Return whether a result that was handed out is still held."""
        return _holders(self.storages) != self.free

    def is_ready(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Return whether some arguments fit, and a replay overwrites nothing that is held."""
        return not self.is_in_use() and self.fits(arguments)

    def run(self, arguments: Sequence[torch.Tensor]) -> None:
        """Compute the results for some arguments."""
        for i, buffer in self.buffers:
            buffer.copy_(arguments[i])
        self.repeat()

    def replay(self, arguments: Sequence[torch.Tensor]) -> list[Any]:
        """Return the results for some arguments."""
        self.run(arguments)
        results = self.results.copy()
        for i, j in self.passed:
            results[i] = arguments[j]
        for i in self.copied:
            results[i] = results[i].clone()
        for i in self.held:
            results[i] = results[i].detach()  # another tensor of the same memory, so that its holders are counted
        return results


class Replayed:
    """A compiled pass that is run once and then recorded and replayed.

    Args:
        run: The pass.
        fixed: Positions of the arguments that stay in place as a rule: parameters, and what the forward pass saved.
        held: Positions of the results that are handed out where they are; a copy is made of each other result.
        recorder: What it shares with the other pass.
        is_first: Whether this is the forward pass, whose results stay in place for the other.

    Attributes:
        recording: The recording that is replayed; None before there is one.
        lock, token: Those of the recorder.
    """

    def __init__(
        self, run: Run, fixed: frozenset[int], held: Sequence[int], recorder: Recorder, *, is_first: bool
    ) -> None:
        self._run, self._fixed, self._held, self._recorder = run, fixed, frozenset(held), recorder
        self._is_first, self._is_warm = is_first, False
        self.lock, self.token = recorder.lock, recorder.token
        self.recording: Recording | None = None
        self._recordings_left = MOST_RECORDINGS

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the results for some arguments, and empty the list of these."""
        with self.lock:
            recording = self._ready(arguments)
            results = recording.replay(arguments) if recording else self._run(arguments)
        arguments.clear()
        return results

    def _ready(self, arguments: Sequence[torch.Tensor]) -> Recording | None:
        """Return a recording that fits the arguments and may be replayed now; None to run the pass as it is."""
        found = self.recording
        if found and found.is_in_use():
            return None
        if found and found.fits(arguments):
            return found
        is_warm, self._is_warm = self._is_warm, True  # kernels are compiled and bound in the first run
        if not is_warm or not self._recordings_left or not self._stay_in_place(arguments):
            return None
        self._recordings_left -= 1
        try:
            self.recording = self._recorded(arguments)
        except RuntimeError as error:
            self._recordings_left = 0
            warnings.warn(f"a pass of a training step runs without a CUDA graph: {first_line(error)}", stacklevel=2)
        return self.recording

    def _stay_in_place(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Return whether the next step has its tensors in the same places.

        It has not if the forward pass ran without a graph: what that saved is gone.
        """
        copied = (one for i, one in enumerate(arguments) if i not in self._fixed)
        if any(0 in one.stride() and one.numel() > 1 for one in copied):
            return False  # a tensor that overlaps itself cannot be copied to
        known = self._recorder.addresses
        return self._is_first or all(arguments[i].data_ptr() in known for i in self._fixed)

    def _recorded(self, arguments: Sequence[torch.Tensor]) -> Recording:
        inputs = [one.detach() if i in self._fixed else _empty_like(one) for i, one in enumerate(arguments)]
        fixed = sorted(self._fixed)
        addresses = [inputs[i].data_ptr() for i in fixed]
        run = self._run if self._is_first else self._with_own_memory
        repeat, found = self._recorder.record(run, inputs)
        results, positions = list(found), {id(inputs[i]): i for i in fixed}
        passed = {i: positions[id(one)] for i, one in enumerate(results) if id(one) in positions}
        stay = [i for i, one in enumerate(results) if i not in passed and isinstance(one, torch.Tensor)]
        if self._is_first:
            self._recorder.addresses = frozenset([*addresses, *(results[i].data_ptr() for i in stay)])
        held = [i for i in stay if i in self._held]
        of_arguments = {one.untyped_storage().data_ptr() for one in arguments}
        storages = {storage.data_ptr(): storage for i in held if (storage := results[i].untyped_storage())}
        counted = [storage for address, storage in storages.items() if address not in of_arguments]
        counted += [self.token.untyped_storage()] if self._is_first else []
        return Recording(
            repeat=repeat,
            fixed=fixed,
            addresses=addresses,
            buffers=[(i, one) for i, one in enumerate(inputs) if i not in self._fixed],
            results=results,
            passed=list(passed.items()),
            copied=[i for i in stay if i not in self._held],
            held=held,
            storages=counted,
            free=_holders(counted),
        )

    def _with_own_memory(self, arguments: list[Any]) -> list[Any]:
        """Run the pass, and return a copy of each result that has the memory of an argument.

        Inductor may write a gradient to the memory of a tensor that was saved for it. The next forward pass is replayed
        into the same memory, whether that gradient is held or not.
        """
        memory = {one.untyped_storage().data_ptr() for one in arguments}
        return [
            one.clone() if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() in memory else one
            for one in self._run(arguments)
        ]


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _holders(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """Return the numbers of tensors and storages that hold some memory."""
    return [torch._C._storage_Use_Count(storage._cdata) for storage in storages]
