"""A study of a space is a study of Optuna: what was asked and told is among its trials."""

import pytest
from optuna.trial import TrialState
from search_spaces import SPACE, no_prior, separable, space_of, study_of

from autotune.search import SAMPLERS, SpaceStudy, spread
from autotune.search.space import CostModelSampler

NAMES = [name for name in SAMPLERS if name != "cmaes"]  # which needs a package


def states(study):
    return [trial.state for trial in study.study.trials]


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_runs_from_asking_to_telling_and_has_the_config_and_the_value(name):
    study = study_of(name, SPACE[:20], separable)
    configs = study.ask(3)
    assert [trial.params for trial in study.study.trials] == configs
    assert states(study) == [TrialState.RUNNING] * 3
    for config in configs:
        study.tell(config, separable(config))
    assert states(study) == [TrialState.COMPLETE] * 3
    assert [trial.value for trial in study.study.trials] == list(map(separable, configs))
    assert study.study.best_params == min(configs, key=separable)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_is_a_failed_trial_with_its_cause(name):
    study = study_of(name, SPACE[:20])
    first, second = study.ask(2)
    study.tell(first, None, "error: too much shared memory")
    study.tell(second, None)
    never_asked = next(config for config in SPACE[:20] if config not in (first, second))
    study.tell(never_asked, None, "it does not compile")
    assert states(study) == [TrialState.FAIL] * 3
    assert [trial.user_attrs for trial in study.study.trials] == [
        {"error": "error: too much shared memory"},
        {},
        {"error": "it does not compile"},
    ]
    assert study.num_observed == 3 and not study.pending


@pytest.mark.parametrize("name", NAMES)
def test_a_config_that_is_too_slow_is_a_pruned_trial_with_its_time(name):
    study = study_of(name, SPACE[:20])
    [asked] = study.ask(1)
    study.tell(asked, 9.0, is_pruned=True)
    never_asked = next(config for config in SPACE[:20] if config != asked)
    study.tell(never_asked, 8.0, is_pruned=True)
    assert states(study) == [TrialState.PRUNED] * 2
    assert [(trial.params, trial.value) for trial in study.study.trials] == [(asked, 9.0), (never_asked, 8.0)]
    assert study.num_observed == 2 and asked not in study.ask(5)


@pytest.mark.parametrize("name", NAMES)
def test_several_objectives_are_the_values_of_a_trial(name):
    study = study_of(name, SPACE[:20], num_objectives=2)
    [first] = study.ask(1)
    second, third = [config for config in SPACE[:20] if config != first][:2]
    assert [direction.name for direction in study.study.directions] == ["MINIMIZE"] * 2
    study.tell(first, (3.0, 4.0))
    study.tell(second, None, "it does not compile")
    study.tell(third, (2.0, 5.0))
    assert states(study) == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.values for trial in study.study.trials] == [[3.0, 4.0], None, [2.0, 5.0]]
    assert study.num_observed == 3


@pytest.mark.parametrize("name", NAMES)
def test_with_several_objectives_a_config_that_is_too_slow_is_a_complete_trial(name):
    study = study_of(name, SPACE[:20], num_objectives=2)
    [asked] = study.ask(1)
    study.tell(asked, (9.0, 1.0), is_pruned=True)
    never_asked = next(config for config in SPACE[:20] if config != asked)
    study.tell(never_asked, (1.0, 9.0), is_pruned=True)
    assert states(study) == [TrialState.COMPLETE] * 2
    assert [trial.values for trial in study.study.best_trials] == [[9.0, 1.0], [1.0, 9.0]]


@pytest.mark.parametrize("name", NAMES)
def test_launches_of_a_config_that_do_not_dominate_each_other_are_trials(name):
    study = study_of(name, SPACE[:20], num_objectives=2)
    [asked] = study.ask(1)
    study.tell(asked, (2.0, 8.0), others=[(4.0, 4.0), (8.0, 2.0)])
    assert [(trial.params, trial.values) for trial in study.study.best_trials] == [
        (asked, [2.0, 8.0]),
        (asked, [4.0, 4.0]),
        (asked, [8.0, 2.0]),
    ]
    assert study.num_observed == study.num_started == 1 and asked not in study.ask(4)


def test_the_transfer_sampler_learns_from_pruned_trials():
    told = {}
    for is_pruned in (False, True):
        study = study_of("transfer", SPACE, no_prior)
        for config in SPACE[::7]:
            study.tell(config, separable(config), is_pruned=is_pruned)
        told[is_pruned] = study.ask(6)
    assert told[True] == told[False]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_told_without_being_asked_is_a_trial(name):
    study = study_of(name, SPACE[:20])
    study.tell(SPACE[7], 3.0)
    [trial] = study.study.trials
    assert (trial.state, trial.params, trial.value) == (TrialState.COMPLETE, SPACE[7], 3.0)


def test_the_warm_start_is_enqueued_first():
    space = space_of(SPACE, separable)
    study = SpaceStudy(space, CostModelSampler(space), warm_start=4)
    assert study.ask(5) == [*(space.configs[i] for i in spread(space, 4)), space.configs[1]]
    fixed = [trial.system_attrs.get("fixed_params") for trial in study.study.trials]
    assert fixed == [*(space.configs[i] for i in spread(space, 4)), None]


@pytest.mark.parametrize("name", ["transfer", "tpe", "gp", "random", "cost-model"])
def test_enqueued_configs_come_first_in_their_order_and_in_place_of_the_warm_start(name):
    space = space_of(SPACE, no_prior)
    warm_start = study_of(name, SPACE).ask(SAMPLERS[name].warm_start)
    study = study_of(name, SPACE)
    wanted = [SPACE[300], SPACE[100], SPACE[200]]
    study.enqueue([wanted[0], {"a": 3, "b": "x", "c": 0, "d": 0}, *wanted[1:]])  # one is in no space
    assert study.ask(3) == wanted
    left = warm_start[: max(0, len(warm_start) - 3)]
    assert study.ask(len(left)) == left
    assert all(space.index_of(config) is not None for config in wanted)


def test_an_enqueued_config_that_was_told_meanwhile_is_left_out():
    study = study_of("transfer", SPACE)
    study.enqueue([SPACE[300], SPACE[100], SPACE[200]])
    study.tell(SPACE[100], 1.0)
    assert study.ask(2) == [SPACE[300], SPACE[200]]
    assert [trial.state for trial in study.study.trials] == [TrialState.COMPLETE, *[TrialState.RUNNING] * 2]
