"""Search spaces that are cut to a size, and samplers that propose legal configs only."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, RandomSampler, TPESampler
from optuna.trial import create_trial
from search_spaces import SPACE, holed, key, no_prior, separable, space_of

from autotune.search.space import CostModelSampler, NearestSampler


def test_a_cut_space_keeps_the_priors_best_and_some_of_the_rest():
    space = space_of(SPACE, separable)
    cut = space.truncate(40, seed=1)
    assert len(cut.configs) == 40 and cut == space.truncate(40, seed=1) != space.truncate(40, seed=2)
    assert cut.configs[:30] == space.configs[:30]
    assert all(config in space.configs[30:] for config in cut.configs[30:])
    assert list(cut.costs) == [separable(config) for config in cut.configs] == sorted(cut.costs)
    assert space.truncate(len(SPACE), seed=1) is space


pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class Fixed(BaseSampler):
    """Proposes one point: some parameters together, and the others one by one."""

    def __init__(self, relative, independent):
        self.relative, self.independent, self.calls = relative, independent, []

    def infer_relative_search_space(self, study, trial):
        return dict.fromkeys(self.relative)

    def sample_relative(self, study, trial, search_space):
        return dict(self.relative)

    def sample_independent(self, study, trial, param_name, param_distribution):
        self.calls.append((param_name, dict(trial.params)))
        return self.independent[param_name]

    def before_trial(self, study, trial):
        self.calls.append("before")

    def after_trial(self, study, trial, state, values):
        self.calls.append(("after", values))


def asked(sampler, count):
    study = optuna.create_study(sampler=sampler)
    return [study.ask(sampler.space.distributions).params for _ in range(count)]


def test_a_proposal_is_moved_to_the_nearest_free_config():
    legal = [
        {"a": 1, "b": "x", "c": 0, "d": 7},
        {"a": 8, "b": "x", "c": 0, "d": 7},
        {"a": 8, "b": "z", "c": 1, "d": 7},
        {"a": 64, "b": "z", "c": 5, "d": 7},
    ]
    inner = Fixed({"a": 60, "b": "z"}, {"c": 5})
    sampler = NearestSampler(space_of(legal, no_prior), inner)
    assert asked(sampler, 4) == [legal[3], legal[2], legal[1], legal[0]]
    assert inner.calls[:2] == ["before", ("c", {"a": 60, "b": "z"})]


def test_a_sampler_is_told_the_results_of_its_trials():
    inner = Fixed({"a": 1, "b": "x", "c": 0, "d": 0}, {})
    sampler = NearestSampler(space_of(SPACE, no_prior), inner)
    study = optuna.create_study(sampler=sampler)
    study.tell(study.ask(sampler.space.distributions), 2.0)
    assert inner.calls == ["before", ("after", [2.0])]


@pytest.mark.parametrize("sampler", [RandomSampler, TPESampler, BruteForceSampler])
def test_optimize_tries_each_config_once_and_then_says_that_there_are_no_more(sampler):
    legal = holed()[:30]
    space = space_of(legal, no_prior)
    study = optuna.create_study(sampler=NearestSampler(space, sampler(seed=0)))

    def objective(trial):
        config = {
            "a": trial.suggest_int("a", *bounds(space, "a"), log=True),
            "b": trial.suggest_categorical("b", space.distributions["b"].choices),
            "c": trial.suggest_int("c", *bounds(space, "c")),
            "d": trial.suggest_int("d", *bounds(space, "d")),
        }
        return separable(config)

    study.optimize(objective, n_trials=30)
    assert sorted(str(key(trial.params)) for trial in study.trials) == sorted(str(key(config)) for config in legal)
    with pytest.raises(RuntimeError, match="all 30 legal configs have trials"):
        study.ask(space.distributions)


def bounds(space, name):
    return space.distributions[name].low, space.distributions[name].high


def test_a_sampler_that_has_seen_its_whole_grid_does_not_end_the_search():
    legal = [{"a": a, "b": b} for a in (0, 1) for b in ("x", "y")]
    sampler = NearestSampler(space_of(legal, no_prior), BruteForceSampler(0))
    study = optuna.create_study(sampler=sampler)
    for _ in legal:
        study.tell(study.ask(sampler.space.distributions), 1.0)
    assert len(study.trials) == 4


def test_configs_of_added_trials_are_not_proposed():
    space = space_of(SPACE[:4], separable)
    study = optuna.create_study(sampler=CostModelSampler(space))
    for state, config in ((optuna.trial.TrialState.FAIL, 0), (optuna.trial.TrialState.RUNNING, 1)):
        params = dict(space.configs[config])
        study.add_trial(create_trial(state=state, params=params, distributions=space.distributions))
    assert [study.ask(space.distributions).params for _ in range(2)] == [*space.configs[2:4]]


def test_a_parameter_outside_the_space_is_an_error():
    study = optuna.create_study(sampler=CostModelSampler(space_of(SPACE, no_prior)))
    with pytest.raises(ValueError, match="'e' is not in the space: it has a, b, c, d"):
        study.ask().suggest_int("e", 0, 3)


def test_numbers_are_ranges_and_words_are_categories():
    space = space_of([{"a": a, "b": b, "c": c, "d": 5} for a in (8, 64, 16) for b in "yx" for c in (2, 0)], no_prior)
    assert space.distributions == {
        "a": IntDistribution(8, 64, log=True),
        "b": CategoricalDistribution(("y", "x")),
        "c": IntDistribution(0, 2),
        "d": IntDistribution(5, 5, log=True),
    }
