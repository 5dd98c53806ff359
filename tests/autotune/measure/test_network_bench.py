"""A plan is refused if it computes other bits than its kernels one after the other."""

import faults
import pytest
import torch
from pool_networks import NETWORK, plan

from autotune.libraries import aten
from autotune.measure.network_bench import NetworkBench
from autotune.runtime import Candidate

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    return faults.on_cpu(faults.library(tmp_path_factory.mktemp("faulty")))


@pytest.fixture
def bench():
    return NetworkBench(NETWORK, torch.device("cpu"))


def test_a_plan_whose_kernels_compute_the_same_together_is_timed(bench, faulty):
    good = plan(faulty("good"), faulty("good"))
    for result in bench.compare([good, good], 2) + bench.compare([good], 3):
        assert result.status == "ok" and result.median_us > 0


@pytest.mark.parametrize("names", [("made_up", "good"), ("good", "jitters")])
def test_a_plan_that_computes_other_bits_is_wrong(bench, faulty, names):
    for _ in range(2):
        [result] = bench.compare([plan(*map(faulty, names))], 2)
        assert (result.status, result.median_us) == ("wrong", None) and "one after the other" in result.error


def test_a_plan_of_which_layers_run_on_torchs_operators_is_not_compared(bench, faulty):
    on_torch = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
    [result] = bench.compare([plan(faulty("jitters"), on_torch)], 2)
    assert result.status == "ok"
