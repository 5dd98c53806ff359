"""A study of Optuna that searches one space by ask and tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.families import Config
from autotune.search.space import LegalSampler, Space, spread

ERROR = "error"
"""User attribute of a failed trial: the reason of the failure."""


class SpaceStudy:
    """Searches one space; no config is asked for twice.

    Args:
        space: The space that is searched.
        sampler: Chooses the configs.
        warm_start: Number of configs, those of `spread`, that are enqueued before the sampler is asked.
        num_objectives: Number of objectives, which are all minimized.

    Attributes:
        space: The space that is searched.
        sampler: Chooses the configs.
        study: The study of Optuna, in memory. Its trials are the configs that were asked for or told.
        num_observed: Number of configs whose result was told, whether they were asked for or not.
        pending: The running trials, by the index of their config.
    """

    def __init__(self, space: Space, sampler: LegalSampler, warm_start: int = 0, num_objectives: int = 1) -> None:
        self.space, self.sampler = space, sampler
        self.study = optuna.create_study(
            sampler=sampler,
            study_name=f"{space.family} | {space.problem}",
            directions=["minimize"] * num_objectives,
        )
        self.num_observed = 0
        self.pending: dict[int, Trial] = {}
        self._tried: set[int] = set()
        self._queue = spread(space, warm_start)

    @property
    def total(self) -> int:
        """Return the number of configs in the space."""
        return len(self.space.configs)

    @property
    def num_started(self) -> int:
        """Return the number of configs that are pending or observed."""
        return self.num_observed + len(self.pending)

    def ask(self, count: int) -> list[Config]:
        """Return up to `count` configs to try next, whose trials run from now on.

        Returns:
            Configs; fewer than `count`, or none, if the sampler expects nothing of more trials.
        """
        asked: list[Config] = []
        while len(asked) < count and (self._enqueue_next() or self.sampler.wants_trial(self.study)):
            trial = self.study.ask(self.space.distributions)
            i = self.space.index_of(trial.params)
            assert i is not None, "the sampler proposes legal configs only"
            self.pending[i] = trial
            self._tried.add(i)
            asked.append(self.space.configs[i])
        return asked

    def tell(
        self,
        config: Config,
        value: float | Sequence[float] | None,
        error: str | None = None,
        *,
        is_pruned: bool = False,
        others: Sequence[Sequence[float]] = (),
    ) -> None:
        """Record the result of a config, asked for or not.

        With several objectives a pruned trial is complete. Optuna prunes by intermediate values, which only a study of
        one objective has (`Trial.report`). A slow config has a value of each objective, and may be best by another one
        than time; a failed trial would teach the sampler nothing.

        Args:
            config: The config; one that is not in the space is ignored.
            value: The objective, or one value for each, > 0, lower is better; None if the config failed.
            error: The reason of a failure.
            is_pruned: Whether the trial was ended early because the config is slow; its value is then less exact.
            others: Objectives of other launches of the config, which `value` does not dominate; each is a trial, too.
        """
        i = self.space.index_of(config)
        if i is None:
            return
        values = [value] if isinstance(value, (int, float)) else value
        is_pruned = is_pruned and len(self.study.directions) == 1
        self.num_observed += 1
        self._tried.add(i)
        if trial := self.pending.pop(i, None):
            if error:
                trial.set_user_attr(ERROR, error)
            if values is not None and is_pruned:
                trial.report(values[0], 0)  # which becomes the trial's value
            self.study.tell(trial, None if is_pruned else values, ended_state(values, is_pruned=is_pruned))
        else:
            self._add(self.space.configs[i], values, error, is_pruned)
        for other in others:
            self._add(self.space.configs[i], other)

    def wants(self, config: Config) -> bool:
        """Return whether a config is pending."""
        return self.space.index_of(config) in self.pending

    def enqueue(self, configs: Sequence[Config]) -> None:
        """Try these configs, the most promising first, in place of as many of the warm start."""
        known = dict.fromkeys(i for i in map(self.space.index_of, configs) if i is not None)
        rest = [i for i in self._queue if i not in known]
        self._queue = [*known, *rest[: max(0, len(self._queue) - len(known))]]

    def _enqueue_next(self) -> bool:
        """Enqueue the next config that has no trial; return whether there was one.

        One at a time: a config may be told while it waits, which a trial of Optuna's queue cannot be.
        """
        while self._queue:
            if (first := self._queue.pop(0)) not in self._tried:
                self.study.enqueue_trial(dict(self.space.configs[first]))
                return True
        return False

    def _add(
        self, config: Config, values: Sequence[float] | None, error: str | None = None, is_pruned: bool = False
    ) -> None:
        """Add the trial of a config that was not asked for."""
        attributes = {ERROR: error} if error else {}
        self.study.add_trial(ended_trial(config, self.space.distributions, values, attributes, is_pruned=is_pruned))
        trial: FrozenTrial = self.study.get_trials(deepcopy=False)[-1]
        self.sampler.after_trial(
            self.study, trial, trial.state, trial.values
        )  # which Optuna only calls for told trials


def ended_trial(
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    values: Sequence[float] | None,
    attributes: Mapping[str, object],
    *,
    is_pruned: bool = False,
) -> FrozenTrial:
    """Return a trial that has ended.

    Args:
        params: Its parameters.
        distributions: The distribution of each.
        values: Its value of each objective; None for a failed trial.
        attributes: Its user attributes.
        is_pruned: Whether a trial with a value of the only objective was pruned.
    """
    return create_trial(
        state=ended_state(values, is_pruned=is_pruned),
        values=values,
        intermediate_values={0: values[0]} if values is not None and is_pruned else None,
        params=dict(params),
        distributions=dict(distributions),
        user_attrs=dict(attributes),
    )


def ended_state(values: Sequence[float] | None, *, is_pruned: bool) -> TrialState:
    """Return the state of a trial that has ended: it failed if it has no values."""
    if values is None:
        return TrialState.FAIL
    return TrialState.PRUNED if is_pruned else TrialState.COMPLETE
