"""The measuring process: answers requests of worker_client.

Run as: python -m autotune.measure.worker_main FD DEVICE.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from autotune.core import measure_device
from autotune.libraries import cudnn
from autotune.measure.candidate_bench import Case
from autotune.measure.network_bench import NetworkCase
from autotune.measure.nvtx import span
from autotune.measure.result import Result
from autotune.measure.timers import Timing
from autotune.measure.worker_client import FinalsRequest, NetworkRequest, TrialRequest, VendorRequest

_SHARE = 0.25
"""Of the device's memory, for the problems that are kept."""
_BYTES = 4 * 2**30
"""On a CPU."""


def serve(connection: Connection, device: torch.device) -> None:
    """Answer until the other side goes away, or until an error may have ruined the device's context."""
    server = _Server(device)
    connection.send("ready")
    while True:
        request = connection.recv()
        try:
            answer = server.answer(request)
        except Exception as error:  # no memory, a failed launch, an illegal address
            lines = str(error).splitlines() or [""]
            connection.send(Result("crashed", f"{type(error).__name__}: {lines[0]}"))
            return
        connection.send(answer)


class _Server:
    """Answers requests; keeps the operands and references of the last problems, and the last network."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cases: OrderedDict[tuple[str, Timing], Case] = OrderedDict()
        cuda = device.type == "cuda"
        self._room = int(_SHARE * torch.cuda.get_device_properties(device).total_memory) if cuda else _BYTES
        self._network: NetworkCase | None = None

    def answer(self, request: object) -> object:
        """One result of a trial; of anything else, whatever was asked for."""
        if isinstance(request, TrialRequest):
            with span(str(request.problem), self._device):
                return self._trial(request)
        if isinstance(request, FinalsRequest):
            with span(str(request.problem), self._device):
                return self._case(request).finals(request.candidates, request.rounds)
        if isinstance(request, NetworkRequest):
            if self._network is None or self._network.network.key != request.network.key:
                self._network = NetworkCase(request.network, self._device)
            return self._network.compare(request.plans, request.rounds)
        if isinstance(request, VendorRequest):
            return cudnn.offers(request.problem, self._device)
        return measure_device(self._device)

    def _trial(self, request: TrialRequest) -> Result:
        """Verify and time a candidate. Seconds of neither loading nor timing are of verifying: operands, failures."""
        started = time.perf_counter()
        result = self._case(request).run(request.candidate, request.best_us)
        others = {name: spent for name, spent in result.details.get("seconds", {}).items() if name != "verify"}
        verify = time.perf_counter() - started - sum(others.values())
        return replace(result, details={**result.details, "seconds": {**others, "verify": round(verify, 5)}})

    def _case(self, request: TrialRequest | FinalsRequest) -> Case:
        """The operands of a request's problem: made once, and again after a kernel has written where it must not."""
        key = (str(request.problem), request.timing)
        if key not in self._cases or self._cases[key].spoiled:
            self._cases[key] = Case(request.problem, self._device, timing=request.timing)
        self._cases.move_to_end(key)
        while len(self._cases) > 1 and sum(case.bytes for case in self._cases.values()) > self._room:
            self._cases.popitem(last=False)
        return self._cases[key]


def main() -> None:
    """Entry point of the process."""
    descriptor, device_name = sys.argv[1:]
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    with torch.inference_mode(), suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the tuner has gone
        serve(Connection(int(descriptor)), device)


if __name__ == "__main__":
    main()
