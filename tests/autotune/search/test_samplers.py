"""The search: every config at most once, legal ones only, and each sampler better than those that know less."""

import itertools
import math
import random

import pytest
from optuna.samplers import RandomSampler
from search_spaces import AXES, SPACE, conflicting, drive, holed, hypervolume, key, no_prior, separable, study_of

from autotune.core import AutotuneError, UnknownNameError, architecture, pareto_front
from autotune.families import family
from autotune.ir import Epilogue, parse
from autotune.search import SAMPLERS, Space, create_studies, sampler_choice
from autotune.search.study import OPTUNA_WARM_START
from autotune.search.transfer_sampler import WARM_START

NAMES = [name for name in SAMPLERS if name not in ("gp", "cmaes")]  # gp takes seconds a trial, cmaes needs a package
LEARNERS = {"tpe": OPTUNA_WARM_START, "transfer": WARM_START}


# -- all samplers ------------------------------------------------------------------------------------------------------


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
    assert first[OPTUNA_WARM_START:] != second[OPTUNA_WARM_START:]


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
    assert len({key(config) for config in ahead}) == (WARM_START if name == "transfer" else 50)  # it waits to learn
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


def test_a_sampler_that_does_not_exist():
    with pytest.raises(UnknownNameError, match=r"'tpf'.*tpe"):
        sampler_choice("tpf")


SMALL = [config for config in SPACE if config["d"] > 1 and config["b"] != "x"][::3]


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_every_sampler_finds_the_best_config_of_a_small_space(name):
    """Those that learn find it in half of the trials."""
    if name == "cmaes":
        pytest.importorskip("cmaes")
    shuffled = random.Random(0).sample(SMALL, len(SMALL))
    trials = len(SMALL) if name in ("random", "cost-model", "brute-force") else len(SMALL) // 2
    assert min(SMALL, key=separable) in drive(study_of(name, shuffled, seed=1), separable, trials)


@pytest.mark.parametrize("name", ["gp", "cmaes"])
def test_a_learner_of_optuna_proposes_distinct_legal_configs_by_its_seed(name):
    if name == "cmaes":
        pytest.importorskip("cmaes")
    first, second, other = (drive(study_of(name, SMALL, seed=seed), separable, 16) for seed in (1, 1, 2))
    assert first == second != other
    assert all(config in SMALL for config in first) and len({key(config) for config in first}) == 16


def test_a_sampler_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("autotune.search.study.find_spec", lambda _: None)
    with pytest.raises(AutotuneError, match="pip install cmaes"):
        create_studies("cmaes", [])


# -- several objectives ------------------------------------------------------------------------------------------------

NSGA = "optuna.samplers:NSGAIISampler"
ALL = [conflicting(config) for config in SPACE]
FRONT = {ALL[i] for i in pareto_front(ALL)}
WORST = tuple(map(max, zip(*ALL, strict=True)))


def missing(name, trials, seed):
    """The share of the hypervolume that a search leaves, and the number of points of the front that it finds."""
    shuffled = random.Random(seed).sample(SPACE, len(SPACE))  # the prior knows nothing
    study = study_of(name, shuffled, no_prior, seed, num_objectives=2)
    found = set(map(conflicting, drive(study, conflicting, trials)))
    return 1 - hypervolume(found, WORST) / hypervolume(FRONT, WORST), len(found & FRONT)


@pytest.mark.parametrize(("name", "trials"), [("transfer", 60), ("tpe", 90), (NSGA, 220)])
def test_a_learner_finds_most_of_the_pareto_front_and_more_than_chance(name, trials):
    """By chance as many trials leave twice as much of the hypervolume. NSGA-II draws its first 50 at random."""
    left, found = zip(*(missing(name, trials, seed) for seed in range(3)), strict=True)
    by_chance, _ = zip(*(missing("random", trials, seed) for seed in range(3)), strict=True)
    assert sum(left) < sum(by_chance) / 2, (left, by_chance)
    assert max(left) < 0.01 and min(found) > len(FRONT) / 2, (left, found, len(FRONT))


@pytest.mark.parametrize("name", [*NAMES, NSGA])
def test_with_several_objectives_a_space_is_exhausted_and_the_front_is_optunas(name):
    legal = holed()
    study = study_of(name, legal, num_objectives=2)
    asked = drive(study, conflicting, len(SPACE))
    assert sorted(map(str, map(key, asked))) == sorted(map(str, map(key, legal)))
    points = list(map(conflicting, legal))
    assert {tuple(trial.values) for trial in study.study.best_trials} == {points[i] for i in pareto_front(points)}


@pytest.mark.parametrize("name", [*NAMES, NSGA])
def test_with_several_objectives_the_same_seed_asks_the_same(name):
    first, second = (drive(study_of(name, holed(), seed=5, num_objectives=2), conflicting, 80) for _ in range(2))
    assert first == second


def test_gp_supports_several_objectives():
    study = study_of("gp", SMALL, num_objectives=2)
    try:
        asked = drive(study, conflicting, OPTUNA_WARM_START + 1)
    except AutotuneError as error:
        pytest.skip(str(error))  # Optuna before 4.4
    assert all(config in SMALL for config in asked) and len({key(config) for config in asked}) == len(asked)


def test_a_search_of_several_objectives_goes_on_until_nothing_is_to_be_gained_anywhere_on_the_front():
    """A search of the product rests when it has found the product's minimum, in the middle of the front."""
    shuffled = random.Random(0).sample(SPACE, len(SPACE))
    asked = drive(study_of("transfer", shuffled, gain=0.01, num_objectives=2), conflicting, len(SPACE))
    of_product = drive(study_of("transfer", shuffled, gain=0.01), lambda c: math.prod(conflicting(c)), len(SPACE))
    assert set(map(conflicting, asked)) >= FRONT and len(asked) < len(SPACE) / 2
    assert len(FRONT & set(map(conflicting, of_product))) < len(FRONT) / 2


class OneObjective(RandomSampler):
    """Refuses several objectives, as samplers of Optuna do."""

    def sample_relative(self, study, trial, search_space):
        self._raise_error_if_multi_objective(study)
        return {}


@pytest.mark.parametrize("name", ["cmaes", "optuna.samplers:CmaEsSampler", f"{__name__}:OneObjective"])
def test_a_sampler_of_one_objective_is_refused_in_a_sentence(name):
    if "cma" in name.lower():
        pytest.importorskip("cmaes")
    sampler_choice(name)
    with pytest.raises(AutotuneError, match=f"the sampler {name} supports one objective only: .*transfer or tpe"):
        sampler_choice(name, 2)


# -- any sampler of Optuna ---------------------------------------------------------------------------------------------


class Last(RandomSampler):
    """Takes no seed, and proposes the largest values."""

    def __init__(self):
        super().__init__(seed=0)

    def sample_independent(self, study, trial, param_name, param_distribution):
        return max(AXES[param_name])


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", ["QMCSampler", "BruteForceSampler", "NSGAIISampler"])
def test_a_module_and_a_class_name_a_sampler(name):
    legal = holed()
    first, second, other = (study_of(f"optuna.samplers:{name}", legal, seed=seed) for seed in (3, 3, 4))
    asked = drive(first, separable, len(SPACE))
    assert sorted(map(str, map(key, asked))) == sorted(map(str, map(key, legal)))
    assert drive(second, separable, 40) == asked[:40]
    assert name == "QMCSampler" or drive(other, separable, 40) != asked[:40]  # its first points need no seed


def test_a_class_of_ones_own_that_takes_no_seed():
    study = study_of(f"{__name__}:Last", holed())
    drive(study, separable, OPTUNA_WARM_START)
    left = [config for config in holed() if config not in [trial.params for trial in study.study.trials]]
    assert study.ask(1) == [max(left, key=lambda config: sum(AXES[name].index(config[name]) for name in AXES))]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:RandomSampler", "cannot import the sampler no_such_module:RandomSampler: No module named"),
        ("optuna.samplers:NoSampler", "cannot import the sampler .* has no attribute 'NoSampler'"),
        (":RandomSampler", "cannot import the sampler :RandomSampler"),
        ("optuna.samplers:", "cannot import the sampler optuna.samplers:"),
        ("optuna:create_study", "optuna:create_study is no sampler"),
        ("optuna.trial:Trial", "optuna.trial:Trial is no sampler"),
        ("optuna.samplers:GridSampler", "cannot make the sampler .*search_space.*no argument but seed"),
        ("optuna.samplers:BaseSampler", "cannot make the sampler .*abstract"),
    ],
)
def test_what_is_no_sampler_is_told_in_a_sentence(name, words):
    with pytest.raises(AutotuneError, match=words):
        create_studies(name, [])


def test_a_familys_configs_stay_legal():
    arch, problem = architecture("sm80"), parse("conv2d n=8 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype=f16")
    found = family("cutlass2_conv2d")
    legal = found.configs_for(problem, arch)
    space = Space.ranked(problem, found.name, legal, [found.cost(problem, config, arch) for config in legal])
    [study] = create_studies("transfer", [space])
    asked = drive(study, lambda config: found.cost(problem, config, arch) + 1.0, 60)
    assert len({key(config) for config in asked}) == 60
    assert all(found.why_illegal(config, arch, "f16", Epilogue()) is None for config in asked)
