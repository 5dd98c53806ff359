"""A small search space with a cost of one optimum, or with two conflicting objectives, and searches on it."""

import itertools
import math
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


def conflicting(config):
    """Two objectives; each grows with the squared distance from a best config of its own."""
    places = [AXES[name].index(config[name]) / (len(AXES[name]) - 1) for name in AXES]
    weights = (1.0, 0.7, 0.8, 1.2)

    def cost(best):
        return 10.0 * math.exp(sum(w * (place - best) ** 2 for w, place in zip(weights, places, strict=True)))

    return cost(0.2), cost(0.8)


def hypervolume(points, reference):
    """Area that some points of two objectives dominate, up to a reference point."""
    area, height = 0.0, reference[1]
    for x, y in sorted(points):
        area += max(0.0, reference[0] - x) * max(0.0, height - y)
        height = min(height, y)
    return area


def space_of(configs, prior, problem=PROBLEM):
    return Space.ranked(problem, "f", configs, [prior(config) for config in configs])


def study_of(name, configs, prior=no_prior, seed=0, gain=0.0, num_objectives=1):
    [study] = create_studies(name, [space_of(configs, prior)], seed, gain, num_objectives=num_objectives)
    return study


def drive(study, cost, trials, batch=4):
    """Ask and tell until `trials` were told; returns what was asked, in order."""
    asked = []
    while len(asked) < trials and (configs := study.ask(min(batch, trials - len(asked)))):
        for config in configs:
            study.tell(config, cost(config))
        asked += configs
    return asked
