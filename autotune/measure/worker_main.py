"""The measuring process: answers the requests of worker_client.

Run as: python -m autotune.measure.worker_main FD DEVICE COMPILERS NICENESS CORES. CORES are numbers with commas between
them, or none for all cores.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import assert_never

import torch

from autotune.core import LayerError, in_one_line, measure_device
from autotune.core.process_tree import accept
from autotune.core.timeline import nvtx_range
from autotune.ir import Problem
from autotune.libraries import cudnn
from autotune.measure.candidate_bench import CandidateBench
from autotune.measure.network_bench import NetworkBench
from autotune.measure.protocol import (
    NO_MEMORY,
    READY,
    Answer,
    DeviceRequest,
    FinalsRequest,
    LibraryRequest,
    NetworkRequest,
    Reply,
    Request,
    Result,
    TrialRequest,
)
from autotune.measure.resources import allocator_bytes
from autotune.measure.timers import Timing
from autotune.runtime import BoundStep, Candidate

_GPU_SHARE = 0.25
"""Share of a GPU's memory that the tensors of kept problems may take."""
_UNUSED_GPU_SHARE = 0.1
"""Share of a GPU's memory that torch may keep without using it. References in float32 of a large batch need more memory
than what is timed, and other processes of the tune need it, too."""
_CPU_BYTES = 4 * 2**30
"""Bytes that the tensors of kept problems may take on a CPU."""


def serve(connection: Connection, device: torch.device) -> None:
    """Answer requests until the client goes away, or until an error may have ruined the device's context."""
    server = _Server(device)
    requests = _read_ahead(connection)
    connection.send(READY)
    while (request := requests.get()) is not None:
        started = time.monotonic()
        try:
            answer = _answer(server, request)
        except Exception as error:  # out of memory, a failed launch, an illegal address, an unknown request
            details = {"layer": error.layer} if isinstance(error, LayerError) else {}
            crash = Result("crashed", in_one_line(error), details=details)
            connection.send(Reply(crash, started, time.monotonic()))
            return
        connection.send(Reply(answer, started, time.monotonic()))
        server.free_unused_memory()


def _read_ahead(connection: Connection) -> SimpleQueue[Request | None]:
    """Return a queue that a thread fills with the requests; None says that the client went away.

    A request holds a kernel's binary, and a few fill the connection. The client must not wait in `send` for the device:
    it has results to record and compilers to feed.
    """
    requests: SimpleQueue[Request | None] = SimpleQueue()

    def read() -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    requests.put(connection.recv())
        finally:
            requests.put(None)

    Thread(target=read, daemon=True).start()
    return requests


def _answer(server: _Server, request: Request) -> Answer:
    """Answer a request; if that takes more memory than is free, try again without the tensors of earlier requests."""
    with suppress(torch.OutOfMemoryError):  # other processes may use the device, too
        return server.answer(request)
    # Here the error is gone, whose traceback held the tensors of the first try.
    server.free_memory()
    return server.answer(request)


class _Server:
    """Answers requests. Keeps the tensors of the last problems, and the last network."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._benches: OrderedDict[tuple[str, Timing], CandidateBench] = OrderedDict()
        cuda = device.type == "cuda"
        self._memory = torch.cuda.get_device_properties(device).total_memory if cuda else 0
        self._most_bytes = int(_GPU_SHARE * self._memory) if cuda else _CPU_BYTES
        self._network: NetworkBench | None = None

    def answer(self, request: Request) -> Answer:
        """Return the answer that the request's record in protocol.py describes."""
        match request:
            case TrialRequest():
                with nvtx_range(str(request.problem), self._device):
                    return self._trial(request)
            case FinalsRequest():
                with nvtx_range(str(request.problem), self._device):
                    return self._bench(request).finals(request.candidates, request.rounds)
            case NetworkRequest():
                return self._network_bench(request).compare(request.plans, request.rounds)
            case LibraryRequest():
                return cudnn.offers(request.problem, self._device)
            case DeviceRequest():
                return measure_device(self._device)
        assert_never(request)

    def free_memory(self) -> None:
        """Free the tensors of earlier requests, and what torch keeps for reuse."""
        self._benches.clear()
        self._network = None
        gc.collect()
        torch.cuda.empty_cache()

    def free_unused_memory(self) -> None:
        """Free what torch keeps for reuse if that is much of a GPU's memory."""
        if self._device.type == "cuda":
            reserved, allocated = allocator_bytes(self._device)
            if reserved - allocated > _UNUSED_GPU_SHARE * self._memory:
                torch.cuda.empty_cache()

    def _trial(self, request: TrialRequest) -> Result:
        """Verify and time a candidate.

        Time that was spent neither loading nor timing is reported as "verify"; it includes making the tensors.
        """
        started = time.perf_counter()
        result = self._bench(request).run(request.candidate, request.best_us)
        others = {name: spent for name, spent in result.details.get("seconds", {}).items() if name != "verify"}
        verify = time.perf_counter() - started - sum(others.values())
        return replace(result, details={**result.details, "seconds": {**others, "verify": round(verify, 5)}})

    def _bench(self, request: TrialRequest | FinalsRequest) -> CandidateBench:
        """Return the bench of the request's problem; make a new one if a kernel has overwritten its inputs."""
        key = (str(request.problem), request.timing)
        if key not in self._benches or self._benches[key].corrupted_inputs:
            self._benches[key] = CandidateBench(request.problem, self._device, timing=request.timing)
        self._benches.move_to_end(key)
        while len(self._benches) > 1 and sum(bench.bytes for bench in self._benches.values()) > self._most_bytes:
            self._benches.popitem(last=False)
        return self._benches[key]

    def _network_bench(self, request: NetworkRequest) -> NetworkBench:
        if self._network is None or self._network.network.key != request.network.key:
            self._network = NetworkBench(request.network, self._device, self._compiled)
        return self._network

    def _compiled(self, problem: Problem, candidate: Candidate) -> BoundStep | None:
        """Return a candidate that a trial has compiled, bound to the tensors of the trial; None if there is none."""
        for (text, _), bench in self._benches.items():
            if text == str(problem) and (step := bench.compiled(candidate)):
                return step
        return None


def _open_gpu(device: torch.device) -> None:
    """Make a context on a GPU; end the process with NO_MEMORY if other processes use all of its memory."""
    try:
        torch.cuda.init()
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        sys.exit(NO_MEMORY)


def main() -> None:
    """Run the process."""
    descriptor, device_name, compilers, niceness, cores = sys.argv[1:]
    os.nice(int(niceness))
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = compilers
    device = torch.device(device_name)
    if device.type == "cuda":
        _open_gpu(device)
    # The client may go away at any time; then no error can be reported.
    with torch.inference_mode(), suppress(BrokenPipeError, ConnectionResetError):
        serve(accept(descriptor), device)


if __name__ == "__main__":
    main()
