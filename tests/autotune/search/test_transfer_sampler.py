"""The search that learns from other problems: prior results, and when a study rests."""

import math
import random

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from search_spaces import AXES, PROBLEM, SPACE, drive, holed, key, no_prior, separable, space_of, study_of

from autotune.ir import parse
from autotune.search import Space, TransferSampler, create_studies
from autotune.search.transfer_history import TransferHistory
from autotune.search.transfer_sampler import WARM_START


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
    studies = create_studies("transfer", [space_of(legal, no_prior, problem) for problem in problems])
    for i, study in enumerate(studies[:3]):
        drive(study, effects(seed, i), 40)
    cost = effects(seed, 3)
    informed = drive(studies[3], cost, WARM_START + 6)[WARM_START:]
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
    assert tried[0.0] == len(SPACE[::3]) > tried[0.01] > tried[0.10] >= WARM_START


def test_the_first_rest_is_not_before_the_optimum_of_a_smooth_cost():
    study = study_of("transfer", SPACE, gain=0.01)
    asked = drive(study, separable, len(SPACE))
    assert min(map(separable, asked)) == min(map(separable, SPACE))


def test_a_family_that_another_beats_by_far_rests_early():
    """Both families search the same problem; the second is twice as slow whatever its config."""
    spaces = [Space.ranked(PROBLEM, name, SPACE, [0.0] * len(SPACE)) for name in ("fast", "slow")]
    fast, slow = create_studies("transfer", spaces, gain=0.01)
    alone = len(drive(study_of("transfer", SPACE, gain=0.01), separable, len(SPACE)))
    drive(fast, separable, len(SPACE))
    assert len(drive(slow, lambda config: 10 * separable(config), len(SPACE))) < alone / 2


def test_a_family_yields_to_one_that_promises_more_and_neither_waits_for_ever():
    """Both are asked in turn, as a run does it; the second is three times as slow whatever its config."""
    configs = SPACE[::6]
    spaces = [Space.ranked(PROBLEM, name, configs, [0.0] * len(configs)) for name in ("good", "bad")]
    studies = create_studies("transfer", spaces)
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
    assert max(told for by, told in of_bad.items() if by <= 30) <= WARM_START + 4


def test_with_several_objectives_families_compete_for_each_part_of_the_front():
    """One family is good by the first objective, the other by the second: both are asked for their parts."""
    configs = SPACE[::6]
    spaces = [Space.ranked(PROBLEM, name, configs, [0.0] * len(configs)) for name in ("fast", "small")]
    fast, small = create_studies("transfer", spaces, gain=0.01, num_objectives=2)
    for _ in range(30):
        for study, factors in ((fast, (1, 4)), (small, (4, 1))):
            for config in study.ask(4):
                study.tell(config, [factor * separable(config) for factor in factors])
    best = min(map(separable, configs))
    assert min(trial.values[0] for trial in fast.study.trials) == best
    assert min(trial.values[1] for trial in small.study.trials) == best


def test_known_times_stand_for_each_of_several_objectives():
    legal, [outside, inside] = holed(2), layers(2)
    cost = effects(2, 0)
    known = (space_of(legal, no_prior, outside), [(config, cost(config)) for config in legal])
    [study] = create_studies("transfer", [space_of(legal, no_prior, inside)], known=[known], num_objectives=2)
    tried = drive(study, lambda config: (effects(2, 1)(config), 3 * effects(2, 1)(config)), WARM_START + 4)
    assert min(map(effects(2, 1), tried)) <= 1.05 * min(map(effects(2, 1), legal))


def test_what_is_compiled_already_is_preferred():
    study = study_of("transfer", SPACE)
    drive(study, separable, 20)
    made = {key(config) for config in SPACE[::3]}
    study.sampler.trial_seconds = lambda config: 0.01 if key(config) in made else 10.0
    asked = study.ask(8)
    assert {key(config) for config in asked} <= made


# -- as a sampler of Optuna --------------------------------------------------------------------------------------------


def by_hand(sampler, trials, cost=separable):
    """Ask and tell a study of Optuna; returns it."""
    study = optuna.create_study(sampler=sampler)
    for _ in range(trials):
        trial = study.ask(sampler.space.distributions)
        study.tell(trial, cost(trial.params))
    return study


def test_optuna_drives_it_by_ask_and_tell():
    legal = holed()
    study = by_hand(TransferSampler(space_of(legal, no_prior)), 40)
    params = [trial.params for trial in study.trials]
    assert all(config in legal for config in params) and len(set(map(key, params))) == 40
    assert study.best_value == min(map(separable, legal))


def test_running_trials_are_neither_proposed_again_nor_near_each_other():
    sampler = TransferSampler(space_of(SPACE, no_prior))
    study = by_hand(sampler, 12)
    ahead = [study.ask(sampler.space.distributions).params for _ in range(20)]
    assert len({key(config) for config in ahead} | {key(trial.params) for trial in study.trials[:12]}) == 32
    assert len({config["a"] for config in ahead[:6]}) > 1


def test_as_many_run_at_once_as_there_are_configs(monkeypatch):
    """More than the candidates whose expected improvement is computed at a time."""
    monkeypatch.setattr("autotune.search.transfer_history.MAX_CANDIDATES", 16)
    study = study_of("transfer", holed())
    drive(study, separable, 12)
    ahead = study.ask(len(SPACE))
    assert len(set(map(key, ahead))) == len(ahead) == len(holed()) - 12


def test_trials_that_were_added_are_learned_from():
    space = space_of(holed(), no_prior)
    told = by_hand(TransferSampler(space), 20)
    added = optuna.create_study(sampler=TransferSampler(space))
    added.add_trials(told.trials)
    assert added.ask(space.distributions).params == told.ask(space.distributions).params


def test_each_of_several_is_chosen_as_by_a_model_of_all_trials_before_it(monkeypatch):
    """The posterior is computed once, and only conditioned on the trials that start."""
    space = space_of(holed(), no_prior)
    sampler = TransferSampler(space)
    study = by_hand(sampler, 15)
    computed = []
    posterior = TransferHistory.posterior
    monkeypatch.setattr(TransferHistory, "posterior", lambda *args: computed.append(1) or posterior(*args))
    for number in range(8):
        params = study.ask(space.distributions).params
        assert len(computed) == 1 + number  # one by `study`, and one by each of the studies below
        anew = optuna.create_study(sampler=TransferSampler(space))
        anew.add_trials(study.get_trials(states=[TrialState.COMPLETE]))
        for trial in study.trials[15:-1]:
            running = create_trial(state=TrialState.RUNNING, params=trial.params, distributions=space.distributions)
            anew.add_trial(running)
        assert anew.ask(space.distributions).params == params
    study.tell(15, 100.0)
    study.ask(space.distributions)
    assert len(computed) == 10


def test_what_other_layers_measured_arrives_through_the_history():
    informed, alone = [], []
    for seed in range(4):
        legal, cost = holed(seed), effects(seed, 1)
        spaces = [space_of(legal, no_prior, problem) for problem in layers(2)]
        history = TransferHistory(spaces)
        by_hand(TransferSampler(spaces[0], history), 60, effects(seed, 0))
        best = min(map(cost, legal))
        informed.append(by_hand(TransferSampler(spaces[1], history), 4, cost).best_value / best)
        alone.append(by_hand(TransferSampler(spaces[1]), 4, cost).best_value / best)
    assert max(informed) <= 1.15 and sum(informed) < sum(alone) - 1, (informed, alone)


def test_known_times_of_spaces_outside_the_search_are_learned_from():
    legal, [outside, inside] = holed(2), layers(2)
    cost = effects(2, 0)
    known = (space_of(legal, no_prior, outside), [(config, cost(config)) for config in legal])
    [study] = create_studies("transfer", [space_of(legal, no_prior, inside)], known=[known])
    tried = drive(study, effects(2, 1), WARM_START + 4)
    assert min(map(effects(2, 1), tried)) <= 1.05 * min(map(effects(2, 1), legal))


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "maximize"]])
def test_it_minimizes(directions):
    sampler = TransferSampler(space_of(SPACE, no_prior))
    study = optuna.create_study(sampler=sampler, directions=directions)
    with pytest.raises(ValueError, match=r"minimizes all objectives; the directions of the study are .*MAXIMIZE"):
        study.ask(sampler.space.distributions)
