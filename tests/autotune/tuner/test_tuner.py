"""The whole loop on small problems: what it records, how it goes on, and how it comes to terms with failures."""

import base64
import json
import os
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
import torch
from databases import alter, renew_digests, rows

from autotune.core import Deadline
from autotune.families import family, serving
from autotune.ir import Epilogue, parse
from autotune.measure import Worker
from autotune.search.schedule import MANY_PROBLEMS
from autotune.search.transfer_sampler import WARM_START
from autotune.tuner import ForeignKernels, Progress, Tuner, TunerOptions
from autotune.tuner.trials.kernel_trials import PROMISING
from fused_resnet.capture import capture
from tuning_db import DatabaseError, Store

PROBLEMS = [
    "avg_pool2d n=1 h=8 w=8 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype=f32 epilogue=none",
    "conv2d n=1 h=6 w=6 c=8 k=16 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu",
    "conv2d n=2 h=6 w=6 c=8 k=16 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu",
]
TRIALS = 3


class Log(Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.compiled_kernels, self.finished, self.stages = 0, [], []

    def stage(self, text):
        self.stages.append(text)

    def compiled(self, kernels, failed):
        self.compiled_kernels += kernels

    def done(self, problem):
        self.finished.append(problem)


class Stopping(Log):
    """Stops the measuring process (SIGSTOP) after the first result, and lets the worker's deadline pass."""

    def __init__(self, worker):
        super().__init__()
        self.worker = worker

    def measured(self, problem, candidates, best_us):
        if self.worker.until.left > 1:
            os.kill(self.worker.pid, signal.SIGSTOP)
            self.worker.until = Deadline.after(0.2)


def tune(path, worker, cpu, target, trials=TRIALS, budget=1200.0, problems=PROBLEMS, foreign=None, **options):
    """One run, which does not rest before it is at an end; returns what it said, and its breakdown."""
    log = Log()
    options = TunerOptions(cpu, target, trials, jobs=2, gain=0.0, **options)
    with Store.create(path) as store:
        deadline = Deadline.after(budget)
        workers = [worker] if worker else []
        tuner = Tuner(store, map(parse, problems), options, workers, log, deadline=deadline, foreign=foreign)
        tuner.run()
        log.breakdown, log.copied = tuner.breakdown, tuner.builder.copied
    return log


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, worker, cpu, cpu_target):
    """A database, and what was said of making it, with all that it took to compile."""
    folder = tmp_path_factory.mktemp("tune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_GENERATED", str(folder / "generated"))
        return folder / "small.db", tune(folder / "small.db", worker, cpu, cpu_target)


def test_every_problem_gets_trials_finals_and_torchs_time(tuned):
    path, log = tuned
    assert {text for (text,) in rows(path, "SELECT text FROM problem")} == set(PROBLEMS) == set(log.finished)
    for text in PROBLEMS:
        query = f"""
            SELECT kernel.family, kernel.config, median_us, final, status FROM measurement
            JOIN kernel ON kernel.id = kernel_id JOIN problem ON problem.id = problem_id WHERE text = '{text}'"""
        found = rows(path, query)
        assert {status for *_, status in found} == {"ok"}
        ours = {config for family, config, *_ in found if family.startswith("cpu_")}
        assert len(ours) == TRIALS
        assert any(family == "aten" for family, *_ in found)
        assert any(final for *_, final, _ in found) and all(median > 0 for *_, median, _, _ in found)


def test_the_winner_is_a_finalist_and_the_fastest_of_them(tuned):
    path, _ = tuned
    with Store.open(path) as store:
        [device] = store.devices()
        for text in PROBLEMS:
            ranking = store.ranking(device, text)
            finalists = [row for row in ranking if row.final]
            assert ranking[0].final and ranking[0].median_us == min(row.median_us for row in finalists)
            assert all(len(row.samples_us) > 5 for row in finalists)


def test_a_kernel_is_compiled_once_for_all_problems_with_its_epilogue(tuned, tmp_path, worker, cpu, cpu_target):
    path, log = tuned
    identities = "SELECT family, config, epilogue FROM kernel WHERE library_id IS NOT NULL"
    found = rows(path, identities)
    assert len(found) == len(set(found)) == log.compiled_kernels
    for n in (4, 6, 8, 3):  # for one of them at least the lowest cost is that of one config; for which, the CPU decides
        path, both = tmp_path / f"{n}.db", [PROBLEMS[2], PROBLEMS[2].replace("n=2", f"n={n}")]
        log = tune(path, worker, cpu, cpu_target, trials=1, sampler="cost-model", only=("cpu_conv2d",), problems=both)
        assert len(rows(path, identities)) == len(set(rows(path, identities))) == log.compiled_kernels
        assert len(rows(path, "SELECT DISTINCT problem_id FROM measurement WHERE status = 'ok'")) == 2
        if log.compiled_kernels == 1:
            break
    assert log.compiled_kernels == 1


def test_binaries_and_their_makers_are_kept(tuned, cpu_target):
    path, _ = tuned
    libraries = rows(path, "SELECT kind, target, compiler, flags, length(blob) FROM library")
    assert libraries
    for kind, target, compiler, flags, size in libraries:
        assert (kind, target) == ("shared_library", cpu_target) and size > 1000
        assert "++" in compiler and "-O3" in flags and "/" not in flags


def test_configs_are_legal_and_layouts_recorded(tuned, cpu):
    for config, layouts, epilogue in rows(
        tuned[0], "SELECT config, weight_layouts, epilogue FROM kernel WHERE family = 'cpu_conv2d'"
    ):
        values = json.loads(config)
        assert family("cpu_conv2d").why_illegal(values, cpu, "f32", Epilogue.parse(epilogue)) is None
        assert json.loads(layouts) == {"weight": f"k{values['block_k']}"}


def test_a_second_run_compiles_and_times_nothing_again(tuned, worker, cpu, cpu_target):
    path, _ = tuned
    before = rows(path, "SELECT id, median_us FROM measurement ORDER BY id")
    log = tune(path, worker, cpu, cpu_target)
    after = rows(path, "SELECT id, median_us FROM measurement ORDER BY id")
    assert log.compiled_kernels == 0
    assert after[: len(before)] == before
    new = rows(path, f"SELECT final FROM measurement WHERE id > {before[-1][0]}")
    assert all(final for (final,) in new), "a trial was repeated"


def test_more_trials_go_on_from_there(tuned, worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "more.db"
    path.write_bytes(tuned[0].read_bytes())
    before = rows(path, "SELECT family, config, epilogue FROM kernel")
    log = tune(path, worker, cpu, cpu_target, trials=TRIALS + 2)
    after = rows(path, "SELECT family, config, epilogue FROM kernel")
    assert 0 < log.compiled_kernels == len(after) - len(before)
    assert len(after) == len(set(after)) and set(before) < set(after)


def test_changed_sources_are_compiled_anew(tuned, cpu, cpu_target, tmp_path):
    path = tmp_path / "stale.db"
    path.write_bytes(tuned[0].read_bytes())
    alter(path, "UPDATE kernel SET source = 'older' WHERE library_id IS NOT NULL")
    log = tune(path, None, cpu, cpu_target, trials=1)
    assert log.compiled_kernels > 0
    assert {source for (source,) in rows(path, "SELECT source FROM kernel")} > {"older"}


def test_configs_that_were_fast_before_their_text_changed_are_tried_first(tuned, worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "stale.db"
    path.write_bytes(tuned[0].read_bytes())
    kernels = "measurement m JOIN kernel k ON k.id = m.kernel_id WHERE library_id IS NOT NULL"
    times = rows(path, f"SELECT problem_id, config, median_us, k.id FROM {kernels} AND status = 'ok'")
    slowest = {problem: max((r for r in times if r[0] == problem), key=lambda r: r[2]) for problem, *_ in times}
    with closing(sqlite3.connect(path)) as connection:  # neither the prior nor a search that knew the times chose these
        for problem, (_, _, us, kernel) in slowest.items():
            # The slowest of several launches need not be a finalist, and finalists rank first.
            now = "UPDATE measurement SET median_us = ?, final = 1 WHERE problem_id = ? AND kernel_id = ?"
            connection.execute(now, (us / 1e6, problem, kernel))
        connection.execute("UPDATE kernel SET source = 'older' WHERE library_id IS NOT NULL")
        connection.commit()
    tune(path, worker, cpu, cpu_target, trials=1)
    tried = rows(path, f"SELECT DISTINCT problem_id, config FROM {kernels} AND source <> 'older'")
    assert dict(tried) == {problem: config for problem, config, *_ in slowest.values()}


def test_without_a_device_it_compiles_and_times_nothing(worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "compiled.db"
    log = tune(path, None, cpu, cpu_target, trials=1)
    assert log.compiled_kernels == rows(path, "SELECT count(*) FROM kernel WHERE library_id IS NOT NULL")[0][0] > 0
    assert rows(path, "SELECT count(*) FROM measurement") == [(0,)]
    timed = tune(path, worker, cpu, cpu_target, trials=1)
    assert timed.compiled_kernels == 0
    assert rows(path, "SELECT count(*) FROM measurement WHERE status = 'ok'")[0][0] > len(PROBLEMS)


@pytest.mark.compile
def test_without_a_device_as_many_are_compiled_as_may_be_tried(cpu, cpu_target, tmp_path):
    path, trials = tmp_path / "many.db", WARM_START + 2
    tune(path, None, cpu, cpu_target, trials=trials, only=("cpu_conv2d",))
    query = "SELECT count(*) FROM kernel WHERE library_id IS NOT NULL GROUP BY epilogue"
    assert all(count >= trials for (count,) in rows(path, query))


def test_a_budget_that_has_ended_starts_nothing_and_the_next_run_begins_anew(worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "hasty.db"
    log = tune(path, worker, cpu, cpu_target, trials=1, budget=0.0)
    assert log.compiled_kernels == 0
    assert rows(path, "SELECT count(*) FROM measurement") == [(0,)]
    tune(path, worker, cpu, cpu_target, trials=1)
    assert rows(path, "SELECT count(DISTINCT problem_id) FROM measurement WHERE final") == [(len(PROBLEMS),)]


@pytest.mark.process
def test_at_the_deadline_a_worker_that_hangs_is_given_up_and_its_candidate_not_blamed(cpu, cpu_target, tmp_path):
    path = tmp_path / "hang.db"
    deadline = Deadline.after(1200.0)
    with Worker("cpu", until=deadline) as worker, Store.create(path) as store:
        options = TunerOptions(cpu, cpu_target, 1, jobs=2, gain=0.0)
        tuner = Tuner(store, map(parse, PROBLEMS), options, [worker], Stopping(worker), deadline=deadline)
        tuner.run()
    assert tuner.out_of_time
    statuses = rows(path, "SELECT status, count(*) FROM measurement GROUP BY status")
    assert [status for status, _ in statuses] == ["ok"]


def test_the_ledger_adds_up_and_stands_with_the_trials(tuned):
    path, log = tuned
    breakdown = log.breakdown
    details = [json.loads(text) for (text,) in rows(path, "SELECT details FROM measurement WHERE NOT final")]
    assert breakdown.trials == len(details)
    for step in ("verify", "time", "compile", "search"):
        stored = sum(found["seconds"].get(step, 0.0) for found in details)
        assert stored > 0 and stored <= breakdown.seconds[step] + 1e-3, step
    verified = sum(found["seconds"]["verify"] for found in details)
    assert verified == pytest.approx(breakdown.seconds["verify"], abs=1e-3)
    compiled = [found for found in details if "compile" in found["seconds"]]
    assert len(compiled) == log.compiled_kernels, "a kernel's compiling is told once"
    assert 0 < breakdown.overhead < breakdown.total
    before = breakdown.total
    parts = (
        breakdown.overhead
        + breakdown.seconds["wait for compilers"]
        + breakdown.seconds["verify"]
        + breakdown.seconds["time"]
    )
    assert before - 1e-6 <= parts <= breakdown.total + 1e-6


def test_exhaustive_tries_all_of_what_it_is_limited_to(worker, cpu, cpu_target, tmp_path):
    path, limit = tmp_path / "all.db", 4
    tune(path, worker, cpu, cpu_target, trials=1, sampler="brute-force", limit=limit, only=("cpu_conv2d",))
    query = """
        SELECT text, count(DISTINCT kernel_id) FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE family = 'cpu_conv2d' GROUP BY text"""
    found = dict(rows(path, query))
    assert set(found) == set(PROBLEMS[1:])
    assert set(found.values()) == {limit}


def test_the_first_trials_leave_no_problem_without_a_kernel(worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "short.db"
    tune(path, worker, cpu, cpu_target, trials=1)
    query = """
        SELECT DISTINCT text FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE family LIKE 'cpu_%' AND status = 'ok'"""
    found = {text for (text,) in rows(path, query)}
    assert found == {text for text in PROBLEMS if any(serving(parse(text), cpu))}


@pytest.mark.process
@pytest.mark.compile
def test_a_large_run_tries_one_launch_of_each_kernel_first(worker, cpu, cpu_target, tmp_path):
    many = [PROBLEMS[1].replace("h=6", f"h={h}") for h in range(6, 6 + 2 * MANY_PROBLEMS + 1)]
    path = tmp_path / "large.db"
    tune(path, worker, cpu, cpu_target, trials=4, problems=many, only=("cpu_conv2d",))
    query = """
        SELECT text, kernel_id, launch, median_us FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE family = 'cpu_conv2d' AND final = 0 ORDER BY measurement.id"""
    by_problem = {}
    for text, kernel, launch, us in rows(path, query):
        by_problem.setdefault(text, {}).setdefault(kernel, []).append((json.loads(launch), us))
    assert set(by_problem) == set(many)
    for kernels in by_problem.values():
        firsts = {kernel: tried[0][1] for kernel, tried in kernels.items()}
        assert all(tried[0][0] == {"threads": 0, "order": 0} for tried in kernels.values())
        assert len(kernels) == 4 and len(kernels[min(firsts, key=firsts.get)]) > 1
        slow = [kernel for kernel, us in firsts.items() if len(kernels[kernel]) == 1]
        assert all(firsts[kernel] > PROMISING * min(firsts.values()) for kernel in slow)


@pytest.mark.process
@pytest.mark.compile
def test_on_a_cpu_too_a_network_is_compared_with_torchs_operators(worker, cpu, cpu_target, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    network = capture(model.eval(), (1, 3, 6, 6), "f32")
    options = TunerOptions(cpu, cpu_target, 1, jobs=2, inductor=("default",))
    with Store.create(tmp_path / "network.db") as store:
        problems = [layer.problem for layer in network.all_layers]
        tuner = Tuner(store, problems, options, [worker], Log(), networks=[network])
        tuner.run()
        plan = store.plan(tuner.device, network.key)
    assert "inductor mode=default" in plan.details["torch_us"] and len(plan.details["torch_us"]) > 1
    assert plan.median_us <= min(plan.details["torch_us"].values())


@pytest.mark.process
@pytest.mark.compile
def test_one_search_tunes_the_plans_of_several_batch_sizes(worker, cpu, cpu_target, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    networks = [capture(model.eval(), (batch, 3, 6, 6), "f32") for batch in (1, 2)]
    options = TunerOptions(cpu, cpu_target, 1, jobs=2)
    log = Log()
    with Store.create(tmp_path / "network.db") as store:
        problems = [layer.problem for network in networks for layer in network.all_layers]
        tuner = Tuner(store, problems, options, [worker], log, networks=networks)
        tuner.run()
        plans = [store.plan(tuner.device, network.key) for network in networks]
        assert all(plan and plan.median_us > 0 for plan in plans)
        assert all(isinstance(plan.details["memory"], list) for plan in plans)
        for problem in problems:
            assert any(row.final for row in store.measurements(tuner.device, str(problem), "ok"))


def test_a_run_without_problems_finds_the_device(worker, cpu, cpu_target, tmp_path):
    """The layers of a network may all be tuned while its plan is missing."""
    with Store.create(tmp_path / "x.db") as store:
        tuner = Tuner(store, [], TunerOptions(cpu, cpu_target, TRIALS, jobs=2), [worker], Log())
        tuner.run()
        assert tuner.device == store.devices()[0]


# -- kernels that exist ------------------------------------------------------------------------------------------------

LARGER = [text.replace("h=6 w=6 c=8", "h=9 w=7 c=24") for text in PROBLEMS[1:2]]
"""A problem of the same kind as one of PROBLEMS, with other sizes."""
KERNELS = "measurement m JOIN kernel k ON k.id = m.kernel_id JOIN problem p ON p.id = m.problem_id"


def fastest_configs(path, text, count):
    query = (
        f"SELECT config FROM {KERNELS} WHERE text = ? AND family LIKE 'cpu_%' GROUP BY config ORDER BY min(median_us)"
    )
    with closing(sqlite3.connect(path)) as connection:
        return [config for (config,) in connection.execute(query, [text]).fetchall()][:count]


def test_a_new_problem_is_first_tried_with_the_kernels_that_were_fast_on_a_similar_one(
    tuned, worker, cpu, cpu_target, tmp_path
):
    path = shutil.copy(tuned[0], tmp_path / "more.db")
    log = tune(path, worker, cpu, cpu_target, trials=TRIALS, problems=LARGER)
    assert log.compiled_kernels == 0
    assert set(fastest_configs(path, LARGER[0], TRIALS)) <= {
        config for text in PROBLEMS[1:] for config in fastest_configs(path, text, 100)
    }
    assert set(fastest_configs(path, LARGER[0], TRIALS)) & set(fastest_configs(path, PROBLEMS[1], TRIALS))


def test_kernels_of_another_database_are_copied_instead_of_compiled(tuned, worker, cpu, cpu_target, tmp_path):
    path = tmp_path / "own.db"
    with ForeignKernels([tuned[0]], cpu_target, map(parse, LARGER)) as foreign:
        log = tune(path, worker, cpu, cpu_target, trials=TRIALS, problems=LARGER, foreign=foreign)
    assert (log.compiled_kernels, log.copied > 0) == (0, True)
    assert rows(path, f"SELECT count(DISTINCT config) FROM {KERNELS} WHERE family LIKE 'cpu_%' AND status = 'ok'") == [
        (TRIALS,)
    ]
    with Store.open(path) as own, Store.open(tuned[0]) as other:  # the file stands alone
        theirs = {row.symbol: other.binary(row.library) for row in other.kernels(cpu_target) if row.library}
        for row in own.kernels(cpu_target):
            if row.library:
                assert own.binary(row.library) == theirs[row.symbol]


def two_convolutions(batch):
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3))
    return capture(model.eval(), (batch, 8, 9, 9), "f32")


@pytest.fixture(scope="module")
def tuned_network(worker, cpu, cpu_target):
    """Return a function that tunes a network.

    It returns the plan as layer -> (family, config, launch), and what was tried on each problem, in order.
    """

    def tuned(network, path, trials, foreign=None):
        options = TunerOptions(cpu, cpu_target, trials, jobs=2, gain=0.0, inductor=())
        problems = [layer.problem for layer in network.all_layers]
        with Store.create(path) as store:
            tuner = Tuner(store, problems, options, [worker], Log(), networks=[network], foreign=foreign)
            tuner.run()
            kernels = {row.id: row for row in store.kernels(cpu_target)}
            choices = store.plan(tuner.device, network.key).choices
        tried = rows(path, f"SELECT k.family, k.config, m.launch, p.text FROM {KERNELS} ORDER BY m.id")
        named = [(one, kernels[one["kernel"]]) for one in choices]
        plan = {one["layer"]: (row.family, row.config, json.dumps(one["launch"])) for one, row in named}
        return plan, [(text, (family, config, launch)) for family, config, launch, text in tried]

    return tuned


@pytest.fixture(scope="module")
def first_plan(tuned_network, tmp_path_factory):
    """Return a database with the plan of one image, and the plan."""
    path = tmp_path_factory.mktemp("plan") / "first.db"
    return path, tuned_network(two_convolutions(1), path, 8)[0]


@pytest.mark.process
@pytest.mark.compile
@pytest.mark.parametrize(
    "device, batch, in_place",
    [
        ("the same", 1, False),
        ("another", 1, False),
        ("the same", 3, False),
        ("another", 3, False),
        ("the same", 3, True),
    ],
)
def test_a_plan_of_another_database_or_batch_size_is_taken_over_and_its_kernels_are_tried_first(
    device, batch, in_place, first_plan, tuned_network, cpu_target, tmp_path
):
    shutil.copy(first_plan[0], tmp_path)
    if device == "another":
        alter(tmp_path / "first.db", "UPDATE device SET name = 'a CPU of the same target'")
        renew_digests(tmp_path / "first.db")
    path = tmp_path / ("first.db" if in_place else "second.db")
    network = two_convolutions(batch)
    problems = [layer.problem for layer in network.all_layers]
    with ForeignKernels([] if in_place else [tmp_path / "first.db"], cpu_target, problems) as foreign:
        _, tried = tuned_network(network, path, 1, foreign)
    layers = {layer.name: str(layer.problem) for layer in network.all_layers}
    ours = {(layers[name], one) for name, one in first_plan[1].items() if one[0].startswith("cpu_")}
    assert ours
    of_second = [one for one in tried if one[0] in layers.values()]
    assert set(of_second[: len(ours)]) == ours


def test_kernels_of_another_text_are_not_taken(tuned, cpu_target, tmp_path):
    path = shutil.copy(tuned[0], tmp_path / "stale.db")
    alter(path, "UPDATE kernel SET source = 'older'")
    with ForeignKernels([path], cpu_target, map(parse, PROBLEMS)) as foreign:
        assert not foreign.kernels and not foreign.rankings


def test_kernels_of_other_epilogues_and_problems_of_other_kinds_are_not_read(tuned, cpu_target):
    alike = parse(PROBLEMS[1].replace("h=6 w=6", "h=40 w=40"))
    with ForeignKernels([tuned[0]], cpu_target, [alike]) as foreign:
        assert foreign.kernels and {str(kernel.epilogue) for kernel in foreign.kernels} == {"relu"}
        assert set(map(str, foreign.rankings)) == set(PROBLEMS[1:])


def test_a_database_that_others_can_write_is_refused(tuned, cpu_target, tmp_path):
    path = shutil.copy(tuned[0], tmp_path / "open.db")
    os.chmod(path, 0o666)
    with pytest.raises(DatabaseError, match="native code that would run with your rights"):
        ForeignKernels([path], cpu_target, map(parse, PROBLEMS))


def test_with_trusted_keys_an_unsigned_database_is_refused(tuned, cpu_target, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_TRUSTED_KEYS", base64.b64encode(bytes(32)).decode())
    with pytest.raises(DatabaseError, match="no valid signature by a key that you trust"):
        ForeignKernels([tuned[0]], cpu_target, map(parse, PROBLEMS))
