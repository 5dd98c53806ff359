"""The search that learns from other problems: prior results, and when a study rests."""

import math
import random

import pytest
from search_spaces import AXES, PROBLEM, SPACE, drive, holed, key, no_prior, separable, space_of, study_of

from autotune.ir import parse
from autotune.search import Space, strategy, transfer


def effects(seed, problem=0):
    """A random cost: what values do on all problems, and a little of each problem's own."""
    own, shared = random.Random(1000 * seed + problem + 1), random.Random(seed)
    table = {(name, v): shared.gauss(0, 0.25) for name, values in AXES.items() for v in values}
    table = {at: effect + own.gauss(0, 0.05) for at, effect in table.items()}
    return lambda config: (1 + problem) * 10 * math.exp(sum(table[item] for item in config.items()))


def layers(count):
    return [parse(f"gemm m={64 * (i + 1)} n=64 k=64 dtype=f16") for i in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_what_was_fast_on_similar_problems_is_tried_first(seed):
    """With three layers known, the fourth's first handful is as good as many trials without them."""
    legal, problems = holed(seed), layers(4)
    studies = strategy("transfer").make_studies([space_of(legal, no_prior, problem) for problem in problems], 0, 0.0)
    for i, study in enumerate(studies[:3]):
        drive(study, effects(seed, i), 40)
    cost = effects(seed, 3)
    informed = drive(studies[3], cost, transfer.WARM_START + 6)[transfer.WARM_START :]
    alone = drive(study_of("random", legal, seed=seed), cost, 40)
    best = min(map(cost, legal))
    assert min(map(cost, informed)) <= 1.02 * best
    assert min(map(cost, informed)) <= min(map(cost, alone))


def test_a_search_rests_where_nothing_is_to_be_gained_and_says_so_at_any_level():
    tried = {}
    for gain in (0.0, 0.01, 0.10):
        study = study_of("transfer", SPACE[::3], gain=gain)
        tried[gain] = len(drive(study, separable, len(SPACE)))
        assert study.num_observed == tried[gain]
    assert tried[0.0] == len(SPACE[::3]) > tried[0.01] > tried[0.10] >= transfer.WARM_START


def test_the_first_rest_is_not_before_the_optimum_of_a_smooth_cost():
    study = study_of("transfer", SPACE, gain=0.01)
    asked = drive(study, separable, len(SPACE))
    assert min(map(separable, asked)) == min(map(separable, SPACE))


def test_a_family_that_another_beats_by_far_rests_early():
    """Both families search the same problem; the second is twice as slow whatever its config."""
    spaces = [Space.ranked(PROBLEM, name, SPACE, [0.0] * len(SPACE)) for name in ("fast", "slow")]
    fast, slow = strategy("transfer").make_studies(spaces, 0, 0.01)
    alone = len(drive(study_of("transfer", SPACE, gain=0.01), separable, len(SPACE)))
    drive(fast, separable, len(SPACE))
    assert len(drive(slow, lambda config: 10 * separable(config), len(SPACE))) < alone / 2


def test_a_family_yields_to_one_that_promises_more_and_neither_waits_for_ever():
    """Both are asked in turn, as a run does it; the second is three times as slow whatever its config."""
    configs = SPACE[::6]
    spaces = [Space.ranked(PROBLEM, name, configs, [0.0] * len(configs)) for name in ("good", "bad")]
    studies = strategy("transfer").make_studies(spaces, 0, 0.0)
    good, bad = studies
    of_bad = {}
    idle = 0
    while idle < 2:
        asked = 0
        for study, factor in ((good, 1), (bad, 3)):
            for config in study.ask(4):
                asked += 1
                study.tell(config, factor * separable(config))
        of_bad.setdefault(good.num_observed, bad.num_observed)
        idle = 0 if asked else idle + 1
    assert good.num_observed == bad.num_observed == len(configs)
    assert max(told for by, told in of_bad.items() if by <= 30) <= transfer.WARM_START + 4


def test_what_is_compiled_already_is_preferred():
    study = study_of("transfer", SPACE)
    drive(study, separable, 20)
    made = {key(config) for config in SPACE[::3]}
    asked = study.ask(8, lambda config: 0.01 if key(config) in made else 10.0)
    assert {key(config) for config in asked} <= made
