"""The measuring process: answers the requests of autotune/worker.py. Run as: python -m autotune.serve FD DEVICE."""

from __future__ import annotations

import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch

from autotune.device import measure_device
from autotune.measure import Case
from autotune.network import NetworkCase
from autotune.result import Result
from autotune.spans import span
from autotune.timing import Timing
from autotune.vendor import cudnn
from autotune.worker import NetworkRequest, Request, VendorRequest

_CASES_KEPT = 24


def serve(connection: Connection, device: torch.device) -> None:
    """Answer until the other side goes away, or until an error may have ruined the device's context."""
    server = _Server(device)
    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            for answer in server.answers(request):
                connection.send(answer)
        except Exception as error:  # no memory, a failed launch, an illegal address
            lines = str(error).splitlines() or [""]
            connection.send(Result("crashed", f"{type(error).__name__}: {lines[0]}"))
            return


class _Server:
    """Answers requests; keeps the operands and references of the last problems, and the last network."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cases: OrderedDict[tuple[str, Timing], Case] = OrderedDict()
        self._network: NetworkCase | None = None

    def answers(self, request: object) -> Iterator[object]:
        """One answer for each candidate of a trial; one for all of anything else."""
        if isinstance(request, NetworkRequest):
            if self._network is None or self._network.network.key != request.network.key:
                self._network = NetworkCase(request.network, self._device)
            yield self._network.compare(request.plans, request.rounds)
        elif isinstance(request, Request):
            with span(str(request.problem), self._device):
                if request.rounds:
                    yield self._case(request).finals(request.candidates, request.rounds)
                    return
                for candidate in request.candidates:
                    yield self._case(request).run(candidate)
        elif isinstance(request, VendorRequest):
            yield cudnn.offers(request.problem, self._device)
        else:
            yield measure_device(self._device)

    def _case(self, request: Request) -> Case:
        """The operands of a request's problem: made once, and again after a kernel has written where it must not."""
        key = (str(request.problem), request.timing)
        if key not in self._cases or self._cases[key].spoiled:
            self._cases[key] = Case(request.problem, self._device, timing=request.timing)
        self._cases.move_to_end(key)
        while len(self._cases) > _CASES_KEPT:
            self._cases.popitem(last=False)
        return self._cases[key]


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    descriptor, device_name = sys.argv[1:]
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    with torch.inference_mode():
        serve(Connection(int(descriptor)), device)


if __name__ == "__main__":
    main()
