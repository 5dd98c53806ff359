"""The search: every config at most once, legal ones only, and each strategy better than those that know less."""

import itertools
import math
import random

import pytest

from autotune.core import UnknownNameError, architecture
from autotune.families import family
from autotune.ir import Epilogue, parse
from autotune.search import STRATEGIES, Space, strategy, tpe, transfer

AXES = {"a": (1, 2, 4, 8, 16, 32), "b": ("x", "y", "z"), "c": tuple(range(6)), "d": (0, 1, 2, 3)}
SPACE = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]
NAMES = list(STRATEGIES)
LEARNERS = {"tpe": tpe.WARM_START, "transfer": transfer.WARM_START}
PROBLEM = parse("gemm m=64 n=64 k=64 dtype=f16")


def key(config):
    return tuple(config.values())


def holed(seed=0):
    """A third of the space, at random: what is legal is no product of axes."""
    return random.Random(seed).sample(SPACE, len(SPACE) // 3)


def no_prior(config):
    return 0.0


def separable(config):
    """Microseconds with a single best config."""
    a, b, c, d = (AXES[name].index(config[name]) for name in AXES)
    return 10.0 + 3 * abs(a - 4) + 5 * abs(b - 2) + 2 * abs(c - 1) + 4 * abs(d - 3)


def space_of(configs, prior, problem=PROBLEM):
    return Space.ranked(problem, "f", configs, [prior(config) for config in configs])


def study_of(name, configs, prior=no_prior, seed=0, gain=0.0):
    [study] = strategy(name).make_studies([space_of(configs, prior)], seed, gain)
    return study


def drive(study, cost, trials, batch=4):
    """Ask and tell until `trials` were told; returns what was asked, in order."""
    asked = []
    while len(asked) < trials and (configs := study.ask(min(batch, trials - len(asked)))):
        for config in configs:
            study.tell(config, cost(config))
        asked += configs
    return asked


# -- all strategies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_never_repeats_never_strays_and_exhausts_the_space(name):
    legal = holed()
    study = study_of(name, legal)
    asked = drive(study, separable, len(SPACE))
    assert sorted(map(str, map(key, asked))) == sorted(map(str, map(key, legal)))
    assert study.ask(1) == [] and study.num_observed == len(legal) == study.total


@pytest.mark.parametrize("name", NAMES)
def test_a_space_of_one_and_of_none(name):
    assert study_of(name, [{}]).ask(4) == [{}]
    single = study_of(name, [{"a": 1}])
    assert single.ask(4) == [{"a": 1}]
    single.tell({"a": 1}, 2.0)
    assert single.ask(4) == []
    assert study_of(name, []).ask(4) == []


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"random"}))
def test_the_priors_best_comes_first(name):
    assert study_of(name, SPACE, separable).ask(1) == [min(SPACE, key=separable)]


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_the_first_are_good_by_the_prior_and_unlike_each_other(name):
    first = study_of(name, SPACE, separable).ask(LEARNERS[name])
    for one, other in itertools.combinations(first, 2):
        assert sum(one[axis] != other[axis] for axis in AXES) > 1
    best_half = sorted(map(separable, SPACE))[len(SPACE) // 2]
    assert all(separable(config) <= best_half for config in first)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_asks_the_same(name):
    first, second = (drive(study_of(name, holed(), seed=5), separable, 40) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_another_seed_asks_otherwise(name):
    first, second = (drive(study_of(name, holed(), seed=seed), separable, 60) for seed in (0, 1))
    assert first[tpe.WARM_START :] != second[tpe.WARM_START :]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_told_without_being_asked_is_not_asked(name):
    legal = holed()
    told = legal[: len(legal) // 2]
    study = study_of(name, legal)
    for config in told:
        study.tell(config, separable(config))
    study.tell({"a": 3, "b": "x", "c": 0, "d": 0}, 1.0)  # of no space
    asked = drive(study, separable, len(legal))
    assert not {key(config) for config in asked} & {key(config) for config in told}
    assert len(asked) == len(legal) - len(told) and study.num_observed == len(legal)


@pytest.mark.parametrize("name", NAMES)
def test_failures_are_not_asked_again_and_do_not_end_the_search(name):
    asked = drive(study_of(name, holed()), lambda c: None if c["a"] > 4 else separable(c), len(SPACE))
    assert len({key(config) for config in asked}) == len(asked) == len(holed())
    assert len(drive(study_of(name, holed()), lambda _: None, len(SPACE))) == len(holed())


@pytest.mark.parametrize("name", NAMES)
def test_asking_ahead_proposes_distinct_configs(name):
    study = study_of(name, holed())
    ahead = study.ask(50)
    assert len({key(config) for config in ahead}) == (
        transfer.WARM_START if name == "transfer" else 50
    )  # it waits to learn
    assert all(map(study.wants, ahead))
    for config in ahead:
        study.tell(config, separable(config))
    again = study.ask(20)
    assert len({key(config) for config in again}) == 20
    assert not {key(config) for config in again} & {key(config) for config in ahead}
    assert all(map(study.wants, again)) and not any(map(study.wants, ahead))


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_finds_the_optimum_of_a_separable_cost_sooner_than_chance(name):
    """By chance the best of 432 configs takes 216 trials on average."""
    best = min(SPACE, key=separable)
    needed = []
    for seed in range(3):
        shuffled = random.Random(seed).sample(SPACE, len(SPACE))  # the prior knows nothing
        asked = drive(study_of(name, shuffled, seed=seed), separable, 160)
        needed.append(asked.index(best) + 1 if best in asked else len(SPACE))
    assert sum(needed) / len(needed) < 110, needed


def test_a_strategy_that_does_not_exist():
    with pytest.raises(UnknownNameError, match=r"'tpf'.*tpe"):
        strategy("tpf")


def test_a_familys_configs_stay_legal():
    arch, problem = architecture("sm80"), parse("conv2d n=8 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype=f16")
    found = family("cutlass2_conv2d")
    legal = found.configs_for(problem, arch)
    space = Space.ranked(problem, found.name, legal, [found.cost(problem, config, arch) for config in legal])
    [study] = strategy("transfer").make_studies([space], 0, 0.0)
    asked = drive(study, lambda config: found.cost(problem, config, arch) + 1.0, 60)
    assert len({key(config) for config in asked}) == 60
    assert all(found.why_illegal(config, arch, "f16", Epilogue()) is None for config in asked)


# -- spaces ------------------------------------------------------------------------------------------------------------


def test_a_cut_space_keeps_the_priors_best_and_some_of_the_rest():
    space = space_of(SPACE, separable)
    cut = space.truncate(40, seed=1)
    assert len(cut.configs) == 40 and cut == space.truncate(40, seed=1) != space.truncate(40, seed=2)
    assert cut.configs[:30] == space.configs[:30]
    assert all(config in space.configs[30:] for config in cut.configs[30:])
    assert list(cut.costs) == [separable(config) for config in cut.configs] == sorted(cut.costs)
    assert space.truncate(len(SPACE), seed=1) is space


# -- learning across layers --------------------------------------------------------------------------------------------


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
