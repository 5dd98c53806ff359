"""The studies of a run know what the database holds, failures with their causes."""

import random
from dataclasses import replace
from threading import Event

import pytest
from databases import LIBRARY, put_device, put_time
from optuna.trial import TrialState

from autotune.codegen import rendering
from autotune.core import AutotuneError, Deadline, architecture
from autotune.families import Kernel, family
from autotune.ir import parse
from autotune.measure import timed
from autotune.search import Space
from autotune.tuner import Progress, Tuner, TunerOptions, pareto_candidates
from autotune.tuner.kernel_builder import identity
from autotune.tuner.machines import in_thread
from autotune.tuner.study_manager import AGAIN
from tuning_db import Store

SM90 = architecture("sm90")
PROBLEM = parse("avg_pool2d n=4 h=8 w=8 c=64 r=3 s=3 stride=1 dtype=f16")
FAMILY = family("cuda_avg_pool2d")
OPTIONS = TunerOptions(SM90, "sm_90", trials=8, jobs=1)


def add_kernel(store, kernel, **columns):
    launch_names = [parameter.name for parameter in family(kernel.family).launch_parameters]
    key = identity(kernel, rendering.source_digest(kernel))
    return store.put_kernel(key, symbol="s", launch_names=launch_names, **columns)


def measure(store, device, row, launch, status, us=None, error=None, details=None, problem=PROBLEM):
    found = {"status": status, "error": error, "samples_us": [us] if us else [], "details": details or {}}
    put_time(store, device, problem, row.id, us, launch=launch, final=False, **found)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "a.db") as store:
        yield store


@pytest.fixture
def device(store):
    return put_device(store, "gpu", details={"processors": 132})


@pytest.fixture
def library(store):
    return store.put_library(b"x", compiler="c", **LIBRARY)


def started(store, problem, name, **options):
    """Return the study manager of a run that has read the database and made its studies."""
    tuner = Tuner(store, [problem], replace(OPTIONS, only=(name,), **options), [], Progress())
    tuner.builder.load()
    tuner.study_manager.enumerate()
    tuner.study_manager.create_studies()
    return tuner.study_manager


@pytest.fixture
def manager_and_device(store, device, library):
    """A database with a fast kernel, one whose results are wrong, and one that does not compile."""
    configs = FAMILY.configs_for(PROBLEM, SM90)
    fast, wrong, broken = (Kernel.of(FAMILY.name, c, "f16", PROBLEM.epilogue, "sm_90") for c in configs[:3])
    for kernel, outcome in ((fast, ("ok", 2.5)), (wrong, ("wrong", None, "the relative error is 0.5"))):
        row = add_kernel(store, kernel, library_id=library.id)
        for launch in FAMILY.launches(PROBLEM, kernel.values, SM90):
            measure(store, device, row, dict(launch), *outcome)
    add_kernel(store, broken, library_id=None, error="error: expected a ';'")
    return started(store, PROBLEM, FAMILY.name), device, (fast, wrong, broken)


def test_results_and_failures_of_the_database_are_trials(manager_and_device):
    manager, device, (fast, wrong, broken) = manager_and_device
    manager.tell_known(device)
    [study] = manager.studies
    found = {str(trial.params): trial for trial in study.study.trials}
    assert len(found) == study.num_observed == 3
    assert found[str(fast.values)].value == 2.5
    for kernel, error in ((wrong, "the relative error is 0.5"), (broken, "error: expected a ';'")):
        trial = found[str(kernel.values)]
        assert (trial.state, trial.user_attrs) == (TrialState.FAIL, {"error": error})


def test_of_kernels_with_some_launches_only_the_fast_ones_are_tried_again(store, device, library):
    problem = parse("conv2d n=4 h=64 w=64 c=64 k=64 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu")
    chosen = family("cuda_conv2d")
    configs = [c for c in chosen.configs_for(problem, SM90) if len(chosen.launches(problem, c, SM90)) > 1]
    whole, fast, slow = (Kernel.of(chosen.name, c, "f16", problem.epilogue, "sm_90") for c in configs[:3])
    for kernel, us in ((whole, 10.0), (fast, 10.0 * AGAIN - 0.1), (slow, 10.0 * AGAIN + 0.1)):
        row = add_kernel(store, kernel, library_id=library.id)
        launches = chosen.launches(problem, kernel.values, SM90)
        for launch in launches if kernel == whole else launches[:1]:
            measure(store, device, row, dict(launch), "ok", us, problem=problem)
    manager = started(store, problem, chosen.name)
    manager.tell_known(device)
    [study] = manager.studies
    assert [trial.params for trial in study.study.trials] == [whole.values, slow.values]


@pytest.mark.parametrize(("num_problems", "num_spaces"), [(4, 6), (9, 10), (20, 12)])
def test_time_for_further_families_ends_before_that_for_the_first_of_each_problem(store, num_problems, num_spaces):
    """Each space takes a second; of 60 s, 6 are for all families, and 12 as long as a problem has no space."""
    problems = [parse(f"gemm m={8 * i} n=64 k=64 dtype=f16") for i in range(1, num_problems + 1)]
    passed = [0.0]

    class Slow(list):
        def __iter__(self):
            for space in super().__iter__():
                passed[0] += 1.0
                yield space

    spaces = Slow(Space(problem, f"family {turn}", ({"a": 1},), (0.0,)) for turn in range(2) for problem in problems)
    manager = Tuner(store, problems, OPTIONS, [], Progress(), spaces).study_manager
    manager.enumerate(Deadline(60.0, 0.0, lambda: passed[0]))
    manager.create_studies()
    assert len(manager.studies) == num_spaces


def test_an_interrupted_enumeration_ends_behind_the_space_at_hand(store):
    begun, problem = Event(), parse("gemm m=8 n=64 k=64 dtype=f16")

    class Endless(list):
        def __iter__(self):
            while True:
                begun.set()
                yield Space(problem, "family", ({"a": 1},), (0.0,))

    manager = Tuner(store, [problem], OPTIONS, [], Progress(), Endless()).study_manager
    with pytest.raises(KeyboardInterrupt), in_thread(lambda stop: manager.enumerate(stop=stop)):
        begun.wait(60)
        raise KeyboardInterrupt


def test_a_kernel_that_does_not_compile_is_a_failed_trial_with_the_compilers_message(manager_and_device):
    manager, _, (*_, broken) = manager_and_device
    manager.tell_failure(broken)
    [trial] = manager.studies[0].study.trials
    assert (trial.state, trial.params) == (TrialState.FAIL, broken.values)
    assert trial.user_attrs == {"error": "error: expected a ';'"}


def test_a_trial_is_pruned_if_the_best_launch_was_too_slow_for_all_samples(manager_and_device):
    manager, _, (fast, slow, *_) = manager_and_device
    slow_launch, faster_launch = timed([9.0, 9.0]), timed([8.0, 8.0])
    manager.tell_measured(manager.studies[0], fast, [slow_launch, timed([3.0] * 5)])
    manager.tell_measured(manager.studies[0], slow, [slow_launch, faster_launch])
    found = [(trial.state, trial.value) for trial in manager.studies[0].study.trials]
    assert found == [(TrialState.COMPLETE, 3.0), (TrialState.PRUNED, 8.0)]


def test_launches_that_trade_off_are_trials_and_the_table_is_optunas_pareto_front(store, device, library):
    """Launch values may be faster with more energy, so a kernel has several points."""
    objectives = ("time", "energy")
    rng = random.Random(0)
    for config in FAMILY.configs_for(PROBLEM, SM90)[:6]:
        kernel = Kernel.of(FAMILY.name, config, "f16", PROBLEM.epilogue, "sm_90")
        row = add_kernel(store, kernel, library_id=library.id)
        for launch in FAMILY.launches(PROBLEM, kernel.values, SM90):
            for us, energy in ((rng.uniform(1, 3), rng.uniform(1, 3)) for _ in range(4)):
                measure(store, device, row, dict(launch), "ok", us, details={"energy_uj": energy})
    manager = started(store, PROBLEM, FAMILY.name, objectives=objectives)
    manager.tell_known(device)
    [study] = manager.studies
    shown = [values for _, values in pareto_candidates(store, device, PROBLEM, objectives)]
    best = {tuple(trial.values) for trial in study.study.best_trials}
    assert set(shown) == best and len(shown) > 2 and len(study.study.trials) > study.num_observed == 6


def test_a_sampler_that_supports_one_objective_is_refused_before_anything_is_done(store):
    pytest.importorskip("cmaes")
    options = replace(OPTIONS, sampler="cmaes", objectives=("time", "energy"))
    with pytest.raises(AutotuneError, match="cmaes supports one objective only"):
        Tuner(store, [PROBLEM], options, [], Progress())


def test_a_kernel_without_launch_values_for_the_problem_is_a_failed_trial(manager_and_device):
    manager, _, (fast, *_) = manager_and_device
    manager.tell_measured(manager.studies[0], fast, [])
    [trial] = manager.studies[0].study.trials
    assert trial.user_attrs == {"error": "no launch values fit the problem"}
