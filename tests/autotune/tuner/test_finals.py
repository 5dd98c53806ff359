"""Finals: a finalist that ends the process of the others."""

import time
from types import SimpleNamespace

import pytest
from faults import PROBLEM, library, on_cpu

from autotune.measure import Worker
from autotune.tuner.finals import Finals, _Final


@pytest.mark.process
@pytest.mark.compile
def test_a_finalist_that_crashes_does_not_void_the_finals_of_the_others(tmp_path):
    faulty = on_cpu(library(tmp_path))
    candidates = [faulty(name) for name in ("good", "segfault", "good")]
    final = _Final(PROBLEM, [None] * 3, candidates, time.monotonic())
    with Worker("cpu") as worker:
        run = SimpleNamespace(store=None, device=None, queues=None, progress=None, options=SimpleNamespace(limits={}))
        finals = Finals(run)
        first, second, third = finals._rounds(worker, final)
    assert (first.status, second.status, third.status) == ("ok", "crashed", "ok")
    assert first.median_us and third.median_us and len(first.samples_us) == len(third.samples_us) > 1
