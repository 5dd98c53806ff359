"""What is searched: the legal configs of one family for one problem, and what every search keeps of them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.families.base import Config, Kernel, Value
from autotune.ir import Problem

Key = tuple[Value, ...]
Seconds = Callable[[Config], float]
"""What a trial of a config would cost: seconds of compiling and timing. Nearly nothing where its kernel exists."""


@dataclass(frozen=True)
class Space:
    """The legal configs of one family for one problem, the prior's best first.

    costs: what the prior thinks of each; lower is better, no unit.
    """

    problem: Problem
    family: str
    configs: tuple[Config, ...]
    costs: tuple[float, ...]

    @classmethod
    def ranked(cls, problem: Problem, family: str, configs: Sequence[Config], costs: Sequence[float]) -> Space:
        """A space from configs in any order, and what the prior thinks of them."""
        order = sorted(range(len(configs)), key=costs.__getitem__)
        return cls(problem, family, tuple(configs[i] for i in order), tuple(costs[i] for i in order))

    def cut(self, most: int, seed: int) -> Space:
        """At most so many of the configs: three quarters are the prior's best, the others are drawn from the rest."""
        if len(self.configs) <= most:
            return self
        best = most - most // 4
        rest = random.Random(seed).sample(range(best, len(self.configs)), most - best)
        kept = [*range(best), *sorted(rest)]
        chosen = [self.configs[i] for i in kept], [self.costs[i] for i in kept]
        return Space(self.problem, self.family, *map(tuple, chosen))

    def kernel(self, config: Config, target: str) -> Kernel:
        """The kernel of a config, for this problem's dtype and epilogue."""
        return Kernel.of(self.family, config, self.problem.dtype, self.problem.epilogue, target)

    def serves(self, kernel: Kernel) -> bool:
        """Whether a kernel belongs to this space."""
        mine = (self.family, self.problem.dtype, self.problem.epilogue)
        return (kernel.family, kernel.dtype, kernel.epilogue) == mine


class Study(ABC):
    """Searches one space: each config is asked for at most once. Subclasses choose among those that are free.

    told: configs that have come to an end, asked for or not. pending: asked for and not told yet.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.told = 0
        self.free = dict.fromkeys(range(len(space.configs)))  # in the prior's order
        self.pending: dict[int, None] = {}
        self._names = list(space.configs[0]) if space.configs else []
        self._index = {self._key(config): i for i, config in enumerate(space.configs)}

    @property
    def total(self) -> int:
        """Configs of the space."""
        return len(self.space.configs)

    def ask(self, count: int, seconds: Seconds = lambda _: 1.0) -> list[Config]:
        """Up to `count` free configs; fewer, or none, where the strategy sees no use in more of them."""
        asked: list[Config] = []
        while len(asked) < count and self.free:
            i = self.choose(seconds)
            if i is None:
                break
            del self.free[i]
            self.pending[i] = None
            asked.append(self.space.configs[i])
        return asked

    def tell(self, config: Config, value: float | None) -> None:
        """What a config came to (lower is better, None: a failure); one that is not of this space teaches nothing."""
        i = self._index.get(self._key(config))
        if i is None:
            return
        self.free.pop(i, None)
        self.pending.pop(i, None)
        self.told += 1
        if value is not None:
            self.learn(i, value)

    def wants(self, config: Config) -> bool:
        """Whether a config was asked for and has not come to an end."""
        return self._index.get(self._key(config)) in self.pending

    @abstractmethod
    def choose(self, seconds: Seconds) -> int | None:
        """The free config to try next; None if it is worth none. There is at least one."""

    def learn(self, i: int, value: float) -> None:  # noqa: B027 (a fixed order learns nothing)
        """What a config came to."""

    def suggest(self, configs: Sequence[Config]) -> None:  # noqa: B027 (a fixed order takes no advice)
        """Configs that may well be good, the best first: worth trying before others that nothing is known of."""

    def _key(self, config: Config) -> Key:
        return tuple(config.get(name, "") for name in self._names)


def spread(space: Space, count: int) -> list[int]:
    """The prior's best, skipping at first what differs from a better one in a single value only."""
    keys = [tuple(config.values()) for config in space.configs]
    chosen: list[int] = []
    for i, key in enumerate(keys):
        if len(chosen) == count:
            break
        if all(sum(a != b for a, b in zip(key, keys[other], strict=True)) > 1 for other in chosen):
            chosen.append(i)
    taken = set(chosen)
    rest = (i for i in range(len(keys)) if i not in taken)
    return chosen + [i for i, _ in zip(rest, range(count - len(chosen)), strict=False)]


def axes(configs: Sequence[Config]) -> dict[str, list[Value]]:
    """The parameters that vary, each with its values in order."""
    names = list(configs[0]) if configs else []
    found = {name: sorted({config[name] for config in configs}, key=_order) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _order(value: Value) -> tuple[bool, Value]:
    return (isinstance(value, str), value)
