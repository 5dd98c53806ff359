"""The loop of a search: the order in which studies are asked, and what goes on while a device works."""

from collections import Counter

from autotune.core import Deadline
from autotune.ir import parse
from autotune.search import Schedule, Space, SpaceStudy, create_studies
from autotune.search.schedule import (
    ASK_BATCH,
    COMPILING_PER_DEVICE,
    MANY_PROBLEMS,
    MEASURE_BATCH,
    PREFETCH,
    WARM_START_BATCH,
)
from autotune.search.space import CostModelSampler
from autotune.tuner.search import SearchLoop

CONFIGS = tuple({"a": i} for i in range(200))
HEAVY, LIGHT, TINY = (parse(f"gemm m={m} n=64 k=64 dtype=f16") for m in (64, 128, 192))


class Machine:
    """One idle compiler and a device: kernels are ready and measured at once; the budget ends after some trials."""

    num_compilers, places, num_devices = 1, {}, 1

    def __init__(self, studies, trials=10**6):
        self.studies, self.left, self.compiled, self.tried = studies, trials, [], []

    def search(self, max_trials=10**9, weights=None):
        schedule = Schedule(
            self.studies,
            "sm_90",
            dict.fromkeys((study.space.problem for study in self.studies), max_trials),
            num_compilers=self.num_compilers,
            places=self.places,
            num_devices=self.num_devices,
            exists=self.exists,
            trial_seconds=lambda kernel: 1.0,
        )
        SearchLoop(schedule, self, self, Deadline(0.0, clock=lambda: -self.left), lambda: weights or {}).run()

    def rooms(self):
        return [MEASURE_BATCH]

    def idle_cores(self):
        return self.num_compilers

    def exists(self, kernel):
        return False

    def build(self, kernels, search_seconds):
        self.compiled += kernels

    def ready(self, wait, until):
        ready, self.compiled = self.compiled, []
        return ready

    def measure(self, kernels):
        for kernel in kernels:
            for study in self.studies:
                if study.space.contains(kernel) and study.wants(kernel.values):
                    study.tell(kernel.values, 1.0)
                    self.tried.append(study.space.problem)
                    self.left -= 1

    def finish(self):
        return False


def tried(weights, trials, sizes=(200, 200, 200)):
    spaces = [
        Space(problem, f"family{i}", CONFIGS[:size], (0.0,) * size)
        for i, (problem, size) in enumerate(zip((HEAVY, LIGHT, TINY), sizes, strict=True))
    ]
    studies = create_studies("cost-model", spaces)
    machine = Machine(studies, trials)
    machine.search(weights=weights)
    return machine.tried


def test_without_weights_and_with_equal_ones_studies_take_turns():
    for weights in (None, dict.fromkeys((HEAVY, LIGHT, TINY), 2.0)):
        counts = Counter(tried(weights, 120))
        assert max(counts.values()) - min(counts.values()) <= 4


def test_trials_are_in_proportion_to_the_weights_after_each_had_a_turn():
    order = tried({HEAVY: 8.0, LIGHT: 2.0, TINY: 1e-9}, 200)
    assert set(order[:6]) == {HEAVY, LIGHT, TINY}
    counts = Counter(order)
    assert 3 <= counts[HEAVY] / counts[LIGHT] <= 5
    assert 0 < counts[TINY] < counts[LIGHT]


def test_a_study_that_wants_no_more_leaves_its_turns_to_the_others():
    counts = Counter(tried({HEAVY: 100.0, LIGHT: 1.0, TINY: 1.0}, 10**6, sizes=(8, 200, 200)))
    assert counts == {HEAVY: 8, LIGHT: 200, TINY: 200}


class RecordingMachine(Machine):
    """A machine that knows which kernels it has compiled."""

    def __init__(self, studies):
        super().__init__(studies)
        self.known = set()

    def exists(self, kernel):
        return kernel in self.known

    def build(self, kernels, search_seconds):
        self.known.update(kernels)
        super().build(kernels, search_seconds)


def kernels_until_all_are_tried(num_problems):
    problems = [parse(f"gemm m={m} n=64 k=64 dtype=f16") for m in range(8, 8 + num_problems)]
    # Each problem's order begins 8 configs before that of the last one, whose first configs it so ranks high.
    starts = [8 * (7 - i % 8) for i in range(num_problems)]
    spaces = [
        Space(problem, "family", (*CONFIGS[start:], *CONFIGS[:start]), (0.0,) * len(CONFIGS))
        for problem, start in zip(problems, starts, strict=True)
    ]
    studies = create_studies("transfer", spaces)
    machine = RecordingMachine(studies)
    machine.search(max_trials=2)
    assert Counter(machine.tried) == dict.fromkeys(problems, 2)
    return len(machine.known)


def test_in_a_large_run_problems_begin_with_kernels_that_exist():
    assert kernels_until_all_are_tried(MANY_PROBLEMS) == 2 * MANY_PROBLEMS
    assert kernels_until_all_are_tried(10 * MANY_PROBLEMS) <= 8


class StockedMachine(Machine):
    """Half of all kernels exist. compiled_at: number of trials before each kernel that does not was asked for."""

    num_compilers = 4

    def __init__(self, studies, trials):
        super().__init__(studies, trials)
        self.compiled_at = []

    def exists(self, kernel):
        return kernel.values["a"] % 2 == 0

    def build(self, kernels, search_seconds):
        self.compiled_at += [len(self.tried) for kernel in kernels if not self.exists(kernel)]
        super().build(kernels, search_seconds)


def test_kernels_that_exist_do_not_keep_compilers_idle():
    problems = [parse(f"gemm m={m} n=64 k=64 dtype=f16") for m in range(8, 8 + 100)]
    spaces = [Space(problem, f"family{i}", CONFIGS, (0.0,) * len(CONFIGS)) for i, problem in enumerate(problems)]
    machine = StockedMachine(create_studies("transfer", spaces), trials=200)
    machine.search()
    early = [trials for trials in machine.compiled_at if trials < PREFETCH]
    assert len(early) >= machine.num_compilers, machine.compiled_at


class HalfStuckMachine(Machine):
    """Two devices with a problem each, HEAVY and LIGHT; the first one takes no kernels, and the loop waits for it."""

    num_compilers, places, num_devices = 64, {HEAVY: 0, LIGHT: 1}, 2

    def __init__(self, studies):
        super().__init__(studies, trials=3)
        self.asked = Counter()

    def rooms(self):
        return [0, 3]

    def build(self, kernels, search_seconds):
        self.asked.update(kernel.family for kernel in kernels)
        super().build(kernels, search_seconds)

    def measure(self, kernels):
        left = self.left
        super().measure(kernels)
        self.left = left

    def wait(self):
        self.left -= 1


def test_a_device_that_is_full_gets_no_more_kernels_and_does_not_hold_up_the_other():
    configs = tuple({"a": i} for i in range(2000))
    spaces = [Space(problem, str(problem), configs, (0.0,) * len(configs)) for problem in (HEAVY, LIGHT)]
    machine = HalfStuckMachine(create_studies("cost-model", spaces))
    machine.search()
    assert Counter(machine.tried) == {LIGHT: len(configs)} and machine.left == 0
    assert PREFETCH <= machine.asked[str(HEAVY)] <= PREFETCH + 8 * COMPILING_PER_DEVICE < len(configs)


# -- while the device works --------------------------------------------------------------------------------------------


class BusyMachine(Machine):
    """Compiles at once; what is measured is told when it is asked for. said: what it was asked, in order."""

    def __init__(self, study):
        super().__init__([study])
        self.said, self.under_way = [], []

    def build(self, kernels, search_seconds):
        self.said.append(
            " ".join(["asked", *(["beside"] if self.under_way else []), *([] if kernels else ["for nothing"])])
        )
        super().build(kernels, search_seconds)

    def ready(self, wait, until):
        assert not (wait and self.under_way), "it waits for compilers while results can be told"
        return super().ready(wait, until)

    def measure(self, kernels):
        self.said.append("measured")
        self.under_way += kernels

    def finish(self):
        done, self.under_way = self.under_way, []
        for kernel in done:
            self.studies[0].tell(kernel.values, 1.0)
        return bool(done)


def test_what_to_try_next_is_asked_while_the_device_works():
    configs = [{"a": i} for i in range(4 * MEASURE_BATCH)]
    [study] = create_studies("cost-model", [Space.ranked(HEAVY, "f", configs, list(range(len(configs))))])
    machine = BusyMachine(study)
    machine.search(max_trials=len(configs))
    more = ASK_BATCH // WARM_START_BATCH - 1 + 3  # of the first four it is asked for two at a time
    assert machine.said == [
        "asked",
        "measured",
        *["asked beside", "measured"] * more,
        "asked beside for nothing",
        "asked for nothing",
    ]
    assert study.num_observed == len(configs) and not study.pending


def test_what_the_last_results_teach_is_asked_for_too():
    class Once(BusyMachine):
        def idle_cores(self):
            return 0 if self.under_way else 1  # only what was told leads to more

    configs = [{"a": i} for i in range(3 * MEASURE_BATCH)]
    [study] = create_studies("cost-model", [Space.ranked(HEAVY, "f", configs, list(range(len(configs))))])
    machine = Once(study)
    machine.search(max_trials=len(configs))
    assert machine.said == [
        *["asked", "measured"] * (ASK_BATCH // WARM_START_BATCH + 2),
        "asked for nothing",
    ] and study.num_observed == len(configs)


def test_studies_that_rest_are_told_all_before_they_are_asked_again():
    class Careful(CostModelSampler):
        def wants_trial(self, study):
            return super().wants_trial(study) and len(self.pending()) < 2 * MEASURE_BATCH

    class Roomy(BusyMachine):
        num_compilers = 2 * MEASURE_BATCH

    configs = [{"a": i} for i in range(4 * MEASURE_BATCH)]
    space = Space.ranked(HEAVY, "f", configs, list(range(len(configs))))
    study = SpaceStudy(space, Careful(space))
    machine = Roomy(study)
    machine.search(max_trials=len(configs))
    assert machine.said == ["asked", "measured", "asked beside for nothing", "measured"] * 2 + ["asked for nothing"]
