"""Inductor times kernels in turns, and afterwards as before."""

from contextlib import contextmanager

import torch
from torch._inductor.runtime.benchmarking import benchmarker

from autotune.libraries import inductor_timing
from autotune.libraries.inductor_timing import kernels_timed_in_turns


def test_inductor_times_kernels_in_turns_and_as_before_afterwards(monkeypatch):
    held = []

    @contextmanager
    def noted(device, most_seconds):
        held.append((device, most_seconds))
        yield
        held.append(None)

    monkeypatch.setattr(inductor_timing, "turn", noted)
    monkeypatch.setattr(benchmarker, "benchmark_gpu", lambda call, rep: (call(), rep, list(held)))
    before, device = benchmarker.benchmark_gpu, torch.device("cuda", 1)
    with kernels_timed_in_turns(device, 9.0):
        assert benchmarker.benchmark_gpu(lambda: 7, rep=3) == (7, 3, [(device, 9.0)])
    assert held == [(device, 9.0), None] and benchmarker.benchmark_gpu is before
