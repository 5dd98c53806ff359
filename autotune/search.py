"""Which config to try next: the prior's best first, then Optuna's TPE, every proposal snapped to a free legal config.

One study searches the configs of one family for one problem. Validity is never the sampler's business: the legal
configs are enumerated beforehand, and a proposal that is not one of the free ones is moved to the nearest that is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from autotune.families.base import Config, Value

FIRST = 10
"""How many of the prior's best are tried before the sampler is asked."""

Key = tuple[Value, ...]


class Study:
    """Searches a list of legal configs. Values told are microseconds; None stands for a failure."""

    def __init__(self, configs: Sequence[Config], cost: Callable[[Config], float], seed: int = 0) -> None:
        ranked = sorted(configs, key=cost)
        self._names = list(ranked[0]) if ranked else []
        self._free = {self._key(config): config for config in ranked}
        self._own = set(self._free)
        self.total = len(ranked)
        self.told = 0
        self._queue = _spread(list(self._free), FIRST)
        axes = {name: sorted({config[name] for config in ranked}, key=_order) for name in self._names}
        self._axes = {name: values for name, values in axes.items() if len(values) > 1}
        self._distributions = {name: CategoricalDistribution(values) for name, values in self._axes.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST, constant_liar=True, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)

    def ask(self, count: int) -> list[Config]:
        """Up to `count` configs that were neither asked for nor told before; fewer when the space is exhausted."""
        asked: list[Config] = []
        while len(asked) < count and self._free:
            while self._queue and self._queue[0] not in self._free:
                self._queue.pop(0)
            key = self._queue.pop(0) if self._queue else self._propose()
            asked.append(self._free.pop(key))
        return asked

    def tell(self, config: Config, value: float | None) -> None:
        """What a config measured, asked for or not; one that is not of this space is nothing to learn from."""
        if self._key(config) not in self._own:
            return
        self._free.pop(self._key(config), None)
        self.told += 1
        if value is not None and self._axes:
            params = {name: config[name] for name in self._axes}
            trial = create_trial(params=params, distributions=dict(self._distributions), value=math.log(value))
            self._study.add_trial(trial)

    def _key(self, config: Config) -> Key:
        return tuple(config[name] for name in self._names)

    def _propose(self) -> Key:
        """The free config nearest to what the sampler proposes."""
        if not self._axes:
            return next(iter(self._free))
        trial = self._study.ask(dict(self._distributions))
        wanted = {name: self._axes[name].index(value) for name, value in trial.params.items()}
        self._study.tell(trial, state=TrialState.FAIL)  # what is measured is told by tell()

        def distance(key: Key) -> int:
            values = dict(zip(self._names, key, strict=True))
            return sum(abs(self._axes[name].index(values[name]) - at) for name, at in wanted.items())

        return min(self._free, key=distance)


def _spread(ranked: list[Key], count: int) -> list[Key]:
    """The best of a ranking, skipping at first what differs from a better one in a single value only."""
    chosen: list[Key] = []
    for key in ranked:
        if len(chosen) == count:
            break
        if all(sum(a != b for a, b in zip(key, other, strict=True)) > 1 for other in chosen):
            chosen.append(key)
    rest = (key for key in ranked if key not in chosen)
    return chosen + [key for key, _ in zip(rest, range(count - len(chosen)), strict=False)]


def _order(value: Value) -> tuple[bool, Value]:
    return (isinstance(value, str), value)
