"""The rating of cost models by a recording."""

import math

import pytest
from cost_model_rating import rate
from processes import script
from repository import ROOT

from autotune.ir import parse
from autotune.search import ConfigTrace, Space, SpaceTrace, TuneTrace

PROBLEM = parse("gemm m=64 n=64 k=64 dtype=f16")


def space(family, times):
    configs = tuple({"a": i} for i in range(len(times)))
    results = tuple(ConfigTrace(1.0, 0.1, (((), us),)) for us in times)
    return SpaceTrace(Space(PROBLEM, family, configs, tuple(map(float, range(len(times))))), results)


def rated(*spaces, count=16):
    return rate(TuneTrace("device", "sm_90", spaces), count)[PROBLEM]


def test_regret_is_that_of_the_first_candidates_of_all_families():
    up, down = [10.0 + i for i in range(20)], [40.0 - i for i in range(40)]
    rating = rated(space("up", up), space("down", down), count=16)
    assert rating.correlations == {"up": pytest.approx(1.0), "down": pytest.approx(-1.0)}
    assert (rating.best_us, rating.found_us) == (1.0, 10.0) and rating.regret == 9.0
    assert rated(space("down", down), count=16).found_us == 25.0


def test_failures_have_no_rank_and_are_no_candidates_that_help():
    rating = rated(space("f", ["wrong result"] * 4 + [3.0, 2.0, 1.0]), count=4)
    assert rating.correlations == {} and math.isinf(rating.found_us)
    rating = rated(space("f", ["wrong result", *(float(i) for i in range(1, 9))]), count=2)
    assert rating.correlations == {"f": pytest.approx(1.0)} and rating.regret == 0.0


@pytest.mark.parametrize("name", ["search_h200", "search_resnet_h200"])
def test_sixteen_candidates_are_within_five_percent_on_the_recordings(name):
    done = script("benchmarks/programs/replay.py", "rate", ROOT / "tests" / "data" / f"{name}.json.gz")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    (total,) = [line.split() for line in done.stdout.splitlines() if line.startswith(" sum")]
    assert float(total[3].removesuffix("%")) < 5
    assert "sm90_conv2d" in done.stdout
