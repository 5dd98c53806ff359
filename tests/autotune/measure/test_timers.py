"""Samples and their statistics: intervals, rounds, throttling, warm-up, energy, rotating buffers."""

import gc
import json
import math
import random
import time

import pytest
import torch
from kernels import tried

from autotune.ir import parse
from autotune.libraries import aten
from autotune.measure import (
    CandidateBench,
    RotatingBuffers,
    Timing,
    copies_of,
    interleave,
    median_interval,
    resources,
    sampler,
    timed,
    warm_up,
)
from autotune.measure.cold_cache import cache_bytes
from autotune.measure.resources import energy_uj, memory_bytes, workspace_bytes
from autotune.runtime import Candidate

CPU = torch.device("cpu")
PROBLEM = parse("conv2d n=2 h=8 w=8 c=8 k=8 r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu")
TORCH = Candidate(aten.FAMILY, json.dumps(aten.configs(PROBLEM)[0]), "")


@pytest.mark.parametrize("count", [6, 9, 15, 25, 60])
def test_the_median_lies_in_its_interval_with_95_percent(count):
    low, high = median_interval(random.Random(count).sample(range(count), count))
    assert low + high == count - 1, "as many are cut off at each end"

    def outside(cut):  # either end: at most `cut` of all values lie on that side of the median
        return 2 * sum(math.comb(count, i) for i in range(cut + 1)) / 2**count

    assert outside(low) <= 0.05 < outside(low + 1)


def test_the_interval_holds_the_median_of_a_skewed_distribution():
    rng, held = random.Random(0), 0
    for _ in range(2000):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert 0.95 <= held / 2000 <= 0.985  # 0.965 by the binomial distribution


def test_few_samples_give_their_whole_range():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert timed([5.0]).details["interval_us"] == [5.0, 5.0]


def counters(count):
    """Samplers that return 100 i + how often sampler i was called, and the order of all calls."""
    calls, order = [0] * count, []

    def make(i):
        def sample():
            calls[i] += 1
            order.append(i)
            return 100.0 * i + calls[i]

        return sample

    return [make(i) for i in range(count)], order


def test_every_round_has_all_in_changing_order():
    samplers, order = counters(4)
    taken = interleave(samplers, 10)
    assert taken.samples == [[100.0 * i + n for n in range(1, 11)] for i in range(4)]
    assert (taken.throttled, taken.repeated) == (0, [[]] * 4)
    rounds = [tuple(order[i : i + 4]) for i in range(0, 40, 4)]
    assert all(sorted(found) == [0, 1, 2, 3] for found in rounds) and len(set(rounds)) > 5


def test_rounds_under_throttling_are_taken_again_and_kept_apart():
    samplers, _ = counters(2)
    slowed = iter([False, True, True, False, False])
    taken = interleave(samplers, 3, lambda: next(slowed))
    assert taken.samples == [[1, 4, 5], [101, 104, 105]]
    assert taken.repeated == [[2, 3], [102, 103]] and taken.throttled == 0


def test_throttling_that_does_not_end_is_told():
    samplers, order = counters(1)
    taken = interleave(samplers, 4, lambda: True)
    assert len(taken.samples[0]) == 4 and taken.throttled == 4 and len(taken.repeated[0]) == 5
    assert sorted(taken.samples[0] + taken.repeated[0]) == list(range(1, 10)) and len(order) == 9
    slowed = iter([False, *[True] * 20])
    taken = interleave(counters(1)[0], 4, lambda: next(slowed))
    assert taken.samples[0][0] == 1 and taken.throttled == 3


@pytest.fixture
def sleep(monkeypatch):
    """Time passes when this is called, and not otherwise."""
    now = [100.0]

    def pass_(seconds):
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return pass_


def test_warming_up_lasts_until_times_are_steady(sleep):
    times, taken = [100.0, 80.0, 60.0, 50.0, 49.8, 50.1, 49.9, 50.0, 50.0], []

    def sample():
        taken.append(times[len(taken)])
        return taken[-1]

    assert warm_up(sample, limit=60) == 49.8
    assert len(taken) == 7
    taken.clear()
    assert warm_up(sample, limit=60, slow_us=90.0) == 100.0
    assert len(taken) == 1, "a slow candidate gets no further warm-up"
    started = time.perf_counter()
    warm_up(lambda: sleep(0.01) or -time.perf_counter(), limit=0.1)  # faster every time
    assert time.perf_counter() - started == pytest.approx(0.1, abs=0.011)


def test_energy_is_counted_from_one_step_of_the_counter_to_another(sleep):
    def work():
        sleep(0.004)
        return 10

    def counter():  # 200 W, in steps of 30 ms
        return math.floor(time.perf_counter() / 0.03) * 0.03 * 200e3

    assert energy_uj(work, counter, seconds=0.4) == pytest.approx(200 * 400, rel=0.02)
    assert energy_uj(work, lambda: None) is None
    assert energy_uj(work, lambda: 5.0, limit=0.05) is None


def test_reasons_have_names_and_a_cpu_has_none():
    assert resources.reason_names(0x8 | 0x4 | 0x1) == ["idle", "power cap", "hardware slowdown"]
    assert resources.reason_names(resources.SLOWDOWNS) == [
        "hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake",
    ]  # fmt: skip
    monitor = resources.Monitor(CPU)
    assert (monitor.state(), monitor.slowed(), monitor.energy_mj()) == ({}, [], None)


def test_copies_fill_the_cache_twice_or_are_as_many_as_a_sample_takes():
    assert copies_of(10 * cache_bytes(CPU), CPU) == 2
    assert copies_of(cache_bytes(CPU) // 4, CPU) == 8
    assert copies_of(1, CPU) == 32


def test_rotating_buffers_run_every_copy():
    case = CandidateBench(PROBLEM, CPU, timing=Timing(buffers="rotating"))
    sample = case._sampler(TORCH, case.bind(TORCH))
    assert len(case._copies) == 31 and sample.launches <= 32
    pointers = {tensors["y"].data_ptr() for tensors in [case.tensors, *case._copies]}
    assert len(pointers) == 32
    for tensors in case._copies:
        tensors["y"].fill_(math.nan)
    for _ in range(math.ceil(32 / sample.launches)):
        sample.work()
    for tensors in case._copies:
        torch.testing.assert_close(tensors["y"].double(), case.expected["y"].double(), rtol=1e-4, atol=1e-5)


def test_a_rotation_begins_again_at_its_end():
    ran = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def run(self, stream=0):
            ran.append(self.name)

    rotation = RotatingBuffers([Noted("a"), Noted("b"), Noted("c")])
    for _ in range(7):
        rotation.run()
    assert "".join(ran) == "abcabca"


def test_the_setup_of_a_sample_is_not_timed(sleep):
    class Short:
        def run(self, stream=0):
            sleep(0.001)

    sample = sampler(Short(), CPU, max_launches=2, setup=lambda: sleep(0.05))
    assert sample.launches == 2
    assert [sample() for _ in range(3)] == pytest.approx([1000] * 3)


def test_the_worker_times_as_it_was_told(worker, monkeypatch):
    monkeypatch.setattr(worker, "timing", Timing(buffers="rotating"))
    (answer,) = tried(worker, PROBLEM, [TORCH])
    (final,) = worker.finals(PROBLEM, [TORCH], rounds=7)
    for result in (answer, final):
        assert result.status == "ok", result.error
        assert (result.details["timer"], result.details["buffers"]) == ("graph", "rotating")
        low, high = result.details["interval_us"]
        assert low - 1e-3 <= result.median_us <= high + 1e-3
    assert set(answer.details["seconds"]) == {"load", "verify", "time"}
    assert "throttled" not in final.details and "host_us" not in answer.details


def test_memory_is_that_in_use():
    gc.collect()
    before = memory_bytes(CPU)
    held = [bytearray(2**20) for _ in range(40)]
    assert 39 * 2**20 < memory_bytes(CPU) - before < 44 * 2**20
    del held
    assert memory_bytes(CPU) - before < 4 * 2**20
    assert workspace_bytes(CandidateBench(PROBLEM, CPU).bind(TORCH), CPU) is None
