"""The search: every config at most once, legal ones only, the prior first, and better than trying at random."""

import itertools
import random

import pytest

from autotune.arch import architecture
from autotune.epilogue import Epilogue
from autotune.families import family
from autotune.problem import parse
from autotune.search import FIRST, Study

AXES = {"a": (1, 2, 4, 8, 16, 32), "b": ("x", "y", "z"), "c": tuple(range(6)), "d": (0, 1, 2, 3)}
SPACE = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


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


def drive(study, cost, trials, batch=4):
    """Ask and tell until `trials` were told; returns what was asked, in order."""
    asked = []
    while len(asked) < trials and (configs := study.ask(min(batch, trials - len(asked)))):
        for config in configs:
            study.tell(config, cost(config))
        asked += configs
    return asked


@pytest.mark.parametrize("seed", range(3))
def test_never_repeats_never_strays_and_exhausts_the_space(seed):
    legal = holed(seed)
    study = Study(legal, no_prior, seed)
    asked = drive(study, separable, len(SPACE))
    assert sorted(map(str, map(key, asked))) == sorted(map(str, map(key, legal)))
    assert study.ask(1) == [] and study.told == len(legal) == study.total


def test_a_space_of_one_and_of_none():
    assert Study([{}], no_prior).ask(4) == [{}]
    single = Study([{"a": 1}], no_prior)
    assert single.ask(4) == [{"a": 1}]
    single.tell({"a": 1}, 2.0)
    assert single.ask(4) == []
    assert Study([], no_prior).ask(4) == []


def test_the_priors_best_comes_first():
    assert Study(SPACE, separable).ask(1) == [min(SPACE, key=separable)]


def test_the_first_are_good_by_the_prior_and_unlike_each_other():
    first = Study(SPACE, separable).ask(FIRST)
    for one, other in itertools.combinations(first, 2):
        assert sum(one[name] != other[name] for name in AXES) > 1
    best_half = sorted(map(separable, SPACE))[len(SPACE) // 2]
    assert all(separable(config) <= best_half for config in first)


def test_a_good_prior_needs_no_search():
    study = Study(SPACE, separable)
    assert min(map(separable, drive(study, separable, 3))) == min(map(separable, SPACE))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_seed_asks_the_same(seed):
    first, second = (drive(Study(holed(), no_prior, seed), separable, 40) for _ in range(2))
    assert first == second


def test_another_seed_asks_otherwise():
    first, second = (drive(Study(holed(), no_prior, seed), separable, 60) for seed in (0, 1))
    assert first[FIRST:] != second[FIRST:]


def test_what_was_told_without_being_asked_is_not_asked():
    legal = holed()
    told = legal[: len(legal) // 2]
    study = Study(legal, no_prior)
    for config in told:
        study.tell(config, separable(config))
    asked = drive(study, separable, len(legal))
    assert not {key(config) for config in asked} & {key(config) for config in told}
    assert len(asked) == len(legal) - len(told)


def test_failures_are_not_asked_again_and_do_not_end_the_search():
    study = Study(holed(), no_prior)
    asked = drive(study, lambda config: None if config["a"] > 4 else separable(config), len(SPACE))
    assert len({key(config) for config in asked}) == len(asked) == len(holed())


def test_only_failures_still_exhaust_the_space():
    assert len(drive(Study(holed(), no_prior), lambda _: None, len(SPACE))) == len(holed())


def test_asking_ahead_proposes_distinct_configs():
    study = Study(holed(), no_prior)
    ahead = study.ask(50)
    assert len({key(config) for config in ahead}) == 50


def test_finds_the_optimum_of_a_separable_cost_sooner_than_chance():
    """By chance the best of 432 configs takes 216 trials on average."""
    best = min(SPACE, key=separable)
    needed = []
    for seed in range(4):
        shuffled = random.Random(seed).sample(SPACE, len(SPACE))  # the prior knows nothing
        needed.append(drive(Study(shuffled, no_prior, seed), separable, len(SPACE)).index(best) + 1)
    assert sum(needed) / len(needed) < 110, needed


def test_a_familys_configs_stay_legal():
    arch, problem = architecture("sm80"), parse("conv2d n=8 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype=f16")
    found = family("cutlass2_conv2d")
    legal = found.configs_for(problem, arch)
    study = Study(legal, lambda config: found.cost(problem, config, arch))
    asked = drive(study, lambda config: found.cost(problem, config, arch) + 1.0, 60)
    assert len({key(config) for config in asked}) == 60
    assert all(found.legal(config, arch, "f16", Epilogue()) is None for config in asked)
