"""A small search space with a cost of one optimum, and searches on it."""

import itertools
import random

from autotune.ir import parse
from autotune.search import Space, create_studies

AXES = {"a": (1, 2, 4, 8, 16, 32), "b": ("x", "y", "z"), "c": tuple(range(6)), "d": (0, 1, 2, 3)}
SPACE = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]
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
    [study] = create_studies(name, [space_of(configs, prior)], seed, gain)
    return study


def drive(study, cost, trials, batch=4):
    """Ask and tell until `trials` were told; returns what was asked, in order."""
    asked = []
    while len(asked) < trials and (configs := study.ask(min(batch, trials - len(asked)))):
        for config in configs:
            study.tell(config, cost(config))
        asked += configs
    return asked
