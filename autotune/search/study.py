"""The state of one search: which configs of a space are free, pending or observed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from autotune.families import Config, Value
from autotune.search.space import Space

_Key = tuple[Value, ...]

TrialSeconds = Callable[[Config], float]
"""Maps a config to the seconds that compiling and timing it would take; nearly 0 where its kernel exists."""


class Study(ABC):
    """Searches one space by ask and tell, as in Optuna; no config is asked for twice.

    Subclasses implement `propose`, and `observe` if they learn from results.

    Attributes:
        space: The space that is searched.
        num_observed: Number of configs whose result was told, whether they were asked for or not.
        free: Indices of the configs that were neither asked for nor told, in the order of the prior.
        pending: Indices of the configs that were asked for and whose result was not told.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.num_observed = 0
        self.free: dict[int, None] = dict.fromkeys(range(len(space.configs)))
        self.pending: dict[int, None] = {}
        self._names = list(space.configs[0]) if space.configs else []
        self._index = {self._key(config): i for i, config in enumerate(space.configs)}

    @property
    def total(self) -> int:
        """Return the number of configs in the space."""
        return len(self.space.configs)

    @property
    def num_started(self) -> int:
        """Return the number of configs that are pending or observed."""
        return self.num_observed + len(self.pending)

    def ask(self, count: int, trial_seconds: TrialSeconds = lambda _: 1.0) -> list[Config]:
        """Return up to `count` free configs to try next, and mark them as pending.

        Args:
            count: Number of configs wanted.
            trial_seconds: Cost of a trial of a config.

        Returns:
            Configs; fewer than `count`, or none, if the strategy expects nothing of more trials.
        """
        asked: list[Config] = []
        while len(asked) < count and self.free:
            i = self.propose(trial_seconds)
            if i is None:
                break
            asked.append(self.start(i))
        return asked

    def start(self, i: int) -> Config:
        """Mark a free config as pending and return it."""
        del self.free[i]
        self.pending[i] = None
        return self.space.configs[i]

    def tell(self, config: Config, value: float | None) -> None:
        """Record the result of a config, asked for or not.

        Args:
            config: The config; one that is not in the space is ignored.
            value: The objective, lower is better; None if the config failed.
        """
        i = self._index_of(config)
        if i is None:
            return
        self.free.pop(i, None)
        self.pending.pop(i, None)
        self.num_observed += 1
        if value is not None:
            self.observe(i, value)

    def wants(self, config: Config) -> bool:
        """Return whether a config is pending."""
        return self._index_of(config) in self.pending

    def enqueue(self, configs: Sequence[Config]) -> None:  # noqa: B027 (a fixed order takes no advice)
        """Try these configs, the most promising first, before those that the strategy would try next.

        They take the place of as many configs that the strategy would try without any result.
        """

    @abstractmethod
    def propose(self, trial_seconds: TrialSeconds) -> int | None:
        """Return the index of the free config to try next, or None if none is worth a trial.

        It is called only while there are free configs.
        """

    def observe(self, i: int, value: float) -> None:  # noqa: B027 (a fixed order learns nothing)
        """Learn that config i reached an objective of `value`."""

    def _index_of(self, config: Config) -> int | None:
        return self._index.get(self._key(config))

    def _key(self, config: Config) -> _Key:
        return tuple(config.get(name, "") for name in self._names)
