"""The order in which studies are asked, on a bench that measures at once."""

from collections import Counter

from autotune.ir import parse
from autotune.search import Schedule, Space, create_studies
from autotune.search.schedule import COMPILING_PER_DEVICE, MANY_PROBLEMS, MEASURE_BATCH, PREFETCH

CONFIGS = tuple({"a": i} for i in range(200))
HEAVY, LIGHT, TINY = (parse(f"gemm m={m} n=64 k=64 dtype=f16") for m in (64, 128, 192))


class Bench:
    """One idle compiler, and kernels that are ready at once; the budget ends after some trials."""

    def __init__(self, studies, trials):
        self.studies, self.left, self.compiled, self.tried = studies, trials, [], []

    def time_left(self):
        return self.left > 0

    def devices(self):
        return 1

    def place(self, problem):
        return 0

    def rooms(self):
        return [MEASURE_BATCH]

    def idle_compilers(self):
        return 1

    def compilers(self):
        return 1

    def exists(self, kernel):
        return False

    def trial_seconds(self, kernel):
        return 1.0

    def compile(self, kernels, search_seconds):
        self.compiled += kernels

    def ready(self, wait):
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
    bench = Bench(studies, trials)
    Schedule(studies, bench, "sm_90", lambda _: 10**9, (lambda: weights) if weights else None).run()
    return bench.tried


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


class RecordingBench(Bench):
    """A bench that knows which kernels it has compiled, and records each request for compilers."""

    def __init__(self, studies, trials):
        super().__init__(studies, trials)
        self.known, self.new = set(), []

    def exists(self, kernel):
        return kernel in self.known

    def compile(self, kernels, search_seconds):
        self.new.append(len(set(kernels) - self.known))
        self.known.update(kernels)
        super().compile(kernels, search_seconds)


def kernels_until_all_are_tried(num_problems):
    problems = [parse(f"gemm m={m} n=64 k=64 dtype=f16") for m in range(8, 8 + num_problems)]
    # Each problem's order begins 8 configs before that of the last one, whose first configs it so ranks high.
    starts = [8 * (7 - i % 8) for i in range(num_problems)]
    spaces = [
        Space(problem, "family", (*CONFIGS[start:], *CONFIGS[:start]), (0.0,) * len(CONFIGS))
        for problem, start in zip(problems, starts, strict=True)
    ]
    studies = create_studies("transfer", spaces)
    bench = RecordingBench(studies, 10**6)
    schedule = Schedule(studies, bench, "sm_90", lambda _: 2)
    schedule.run()
    assert Counter(bench.tried) == dict.fromkeys(problems, 2)
    return len(bench.known)


def test_in_a_large_run_problems_begin_with_kernels_that_exist():
    assert kernels_until_all_are_tried(MANY_PROBLEMS) == 2 * MANY_PROBLEMS
    assert kernels_until_all_are_tried(10 * MANY_PROBLEMS) <= 6


class HalfStuckBench(Bench):
    """Two devices with a problem each, HEAVY and LIGHT; the first one takes no kernels."""

    def __init__(self, studies, trials):
        super().__init__(studies, trials)
        self.asked, self.waits = Counter(), 0

    def time_left(self):
        return self.waits < 3

    def idle_compilers(self):
        return 64

    def compilers(self):
        return 64

    def devices(self):
        return 2

    def place(self, problem):
        return (HEAVY, LIGHT).index(problem)

    def rooms(self):
        return [0, 3]

    def compile(self, kernels, search_seconds):
        self.asked.update(kernel.family for kernel in kernels)
        super().compile(kernels, search_seconds)

    def wait(self):
        self.waits += 1


def test_a_device_that_is_full_gets_no_more_kernels_and_does_not_hold_up_the_other():
    configs = tuple({"a": i} for i in range(2000))
    spaces = [Space(problem, str(problem), configs, (0.0,) * len(configs)) for problem in (HEAVY, LIGHT)]
    studies = create_studies("cost-model", spaces)
    bench = HalfStuckBench(studies, 10**6)
    Schedule(studies, bench, "sm_90", lambda _: 10**9).run()
    assert Counter(bench.tried) == {LIGHT: len(configs)} and bench.waits == 3
    assert PREFETCH <= bench.asked[str(HEAVY)] <= PREFETCH + 8 * COMPILING_PER_DEVICE < len(configs)
