"""Strategies of Kernel Tuner on a recording."""

import importlib.util

import pytest
from kernel_tuner_search import cache, search
from processes import script
from repository import ROOT

from autotune.core import UnknownNameError
from autotune.search import TuneTrace

RECORDING = ROOT / "tests" / "data" / "search_h200.json.gz"
is_installed = importlib.util.find_spec("kernel_tuner") is not None


def test_a_cache_holds_every_config_with_its_best_time():
    for traced in TuneTrace.load(RECORDING).spaces:
        content = cache(traced, "a device")
        assert len(content["cache"]) == len(traced.results)
        for config, result in zip(traced.space.configs, traced.results, strict=True):
            entry = content["cache"][",".join(map(str, config.values()))]
            assert [entry[name] for name in content["tune_params_keys"]] == list(config.values())
            assert entry["time"] == (result.best_us or "RuntimeFailedConfig")
        for name, values in content["tune_params"].items():
            assert {config[name] for config in traced.space.configs} == set(values)


@pytest.mark.skipif(is_installed, reason="Kernel Tuner is installed")
def test_without_kernel_tuner_a_line_says_what_to_install():
    done = script("benchmarks/programs/replay.py", "compare", RECORDING, "--sampler", "kernel-tuner:pso", "--seeds", 1)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "pip install kernel-tuner" in done.stderr


@pytest.mark.skipif(not is_installed, reason="needs Kernel Tuner")
def test_a_strategy_finds_times_of_the_recording():
    trace = TuneTrace.load(RECORDING)
    found = search(trace, "random_sample", 0, 0.1)
    assert found == search(trace, "random_sample", 0, 0.1)
    with pytest.raises(UnknownNameError, match="random_sampel"):
        search(trace, "random_sampel", 0, 0.1)
    assert 0.08 < found.tried < 0.14
    for problem, curve in found.curves.items():
        assert curve[-1].best_us >= found.best_us[problem]
        assert [point.tried for point in curve] == list(range(1, len(curve) + 1))
