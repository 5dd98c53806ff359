"""What a GPU's time is: of operands in memory and in L2, by NVML's counters, and by the mistakes that are shown."""

import re

import pytest
import torch
from processes import process

from autotune.ir import parse
from autotune.libraries import aten
from autotune.measure import Monitor, Timing, Worker, between, synchronize
from autotune.measure.resources import energy_uj
from autotune.runtime import Candidate

pytestmark = pytest.mark.gpu


def test_large_operands_take_longer_from_memory_than_from_the_cache():
    problem = parse("avg_pool2d n=32 h=32 w=32 c=64 r=2 s=2 stride=2 dtype=f32")  # 8 MiB in, 2 MiB out
    candidate = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
    times = {}
    for buffers in ("resident", "rotating"):
        with Worker("cuda:0", timing=Timing(buffers=buffers)) as worker:
            times[buffers] = worker.finals(problem, [candidate], rounds=9)[0].median_us
    assert times["rotating"] > times["resident"]


def test_work_takes_more_energy_than_waiting():
    device = torch.device("cuda:0")
    monitor = Monitor(device)
    assert monitor.energy_mj() > 0
    a = torch.randn(4096, 4096, device=device).half()

    def multiply():
        us = between(lambda: [torch.mm(a, a) for _ in range(100)])
        return max(1, round(us))

    def wait():
        us = between(lambda: torch.cuda._sleep(20_000_000))
        synchronize(device)
        return max(1, round(us))

    watts = [energy_uj(work, monitor.energy_mj) for work in (multiply, wait)]  # microjoules a microsecond
    assert 20 < watts[1] < watts[0] < 2000


def test_mistakes_are_shown_for_what_they_are():
    done = process("tests/campaigns/timing_mistakes.py")
    assert done.returncode == 0, done.stderr
    times = {}
    for name in ("no warm-up", "no synchronize before", "no synchronize after", "neither", "ours, resident"):
        times[name] = float(re.search(rf"^{name}\s+([\d.]+)", done.stdout, re.MULTILINE)[1])
    right = times["ours, resident"]
    assert times["no warm-up"] > 2 * right
    assert times["no synchronize before"] > 2 * right
    assert abs(times["no synchronize after"] / times["neither"] - 1) < 1, "both see the launch alone"
