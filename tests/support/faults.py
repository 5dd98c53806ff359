"""Kernels that go wrong, on a CPU and on a GPU: what is said of each, and the one after it is measured all the same.

tests/kernels/faulty.cpp and faulty.cu hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from helpers import tried

from autotune.ir import parse
from autotune.measure import Result, Worker
from autotune.runtime import Candidate

PROBLEM = parse("avg_pool2d n=2 h=9 w=7 c=7 r=3 s=3 stride=2 pad=1 dtype=f32")

# Kernel -> how it ends and what is said; those that both devices have.
FAULTS = {
    "does_nothing": ("wrong", "never written"),
    "scaled": ("wrong", "relative error of 1.00e-03"),
    "one_missing": ("wrong", "never written"),
    "one_wrong": ("wrong", "relative error"),
    "writes_behind": ("wrong", "bytes around y were overwritten"),
    "writes_before": ("wrong", "bytes around y were overwritten"),
    "writes_input": ("wrong", "x was overwritten"),
    "made_up": ("wrong", "relative error"),
    "jitters": ("unstable", "the same input gave other results in another run: y differs in 1 of 280 elements"),
    "tires": ("unstable", "after many launches y differs in 1 of 280 elements"),
    "strays": ("wrong", "after many launches x was overwritten"),
    "keeps_largest": ("wrong", "the result depends on what the output held before: y differs in 140 of 280"),
}
DEADLINE = 2.0  # seconds that a kernel which never ends is given


def answers(
    worker: Worker, faulty: Callable[[str], Candidate], names: Iterable[str]
) -> dict[str, tuple[Result, Result]]:
    """Kernel -> its answer, and that of the good kernel after it; all but the one that never ends in one request."""
    wanted = [name for fault in names if fault != "loops" for name in (fault, "good")]
    found = tried(worker, PROBLEM, [faulty(name) for name in wanted])
    assert len(found) == len(wanted)
    told = {name: (found[i], found[i + 1]) for i, name in enumerate(wanted) if not i % 2}
    usual, worker.deadline = worker.deadline, DEADLINE
    [hung] = tried(worker, PROBLEM, [faulty("loops")])
    worker.deadline = usual
    return {**told, "loops": (hung, *tried(worker, PROBLEM, [faulty("good")]))}


def assert_told(answer: Result, status: str, text: str) -> None:
    """A failure, named for what it is in one line, and without a time."""
    assert (answer.status, answer.median_us, answer.samples_us) == (status, None, []), answer.error
    assert answer.error and text in answer.error
    assert "\n" not in answer.error and "Traceback" not in answer.error
