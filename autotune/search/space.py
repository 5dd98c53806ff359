"""The set of configs that a search chooses from."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.families import Config, Kernel, Value
from autotune.ir import Epilogue, Problem

KernelGroup = tuple[str, str, Epilogue]
"""Family, dtype and epilogue: what spaces share that have kernels in common."""


@dataclass(frozen=True)
class Space:
    """The legal configs of one family for one problem, in the order of the family's cost model (the *prior*).

    Attributes:
        problem: The problem that is tuned.
        family: Name of the family.
        configs: The configs, the one with the lowest predicted cost first.
        costs: The predicted cost of each config; lower is better, the unit is the family's own.
    """

    problem: Problem
    family: str
    configs: tuple[Config, ...]
    costs: tuple[float, ...]

    @classmethod
    def ranked(cls, problem: Problem, family: str, configs: Sequence[Config], costs: Sequence[float]) -> Space:
        """Return a space of configs that are given in any order with their predicted costs."""
        order = sorted(range(len(configs)), key=costs.__getitem__)
        return cls(problem, family, tuple(configs[i] for i in order), tuple(costs[i] for i in order))

    @cached_property
    def name(self) -> str:
        """Return the problem and the family in a few words."""
        return f"{self.problem.short_name} {self.family}"

    def truncate(self, count: int, seed: int) -> Space:
        """Return a space of at most `count` configs.

        Three quarters of them have the lowest predicted costs; the others are drawn at random from the rest.
        """
        if len(self.configs) <= count:
            return self
        num_best = count - count // 4
        drawn = random.Random(seed).sample(range(num_best, len(self.configs)), count - num_best)
        kept = [*range(num_best), *sorted(drawn)]
        return Space(
            problem=self.problem,
            family=self.family,
            configs=tuple(self.configs[i] for i in kept),
            costs=tuple(self.costs[i] for i in kept),
        )

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of each parameter, in the order of the family's parameters.

        Words are categories. Numbers are a range, on a logarithmic scale unless 0 is among them: most are sizes that
        double from value to value. A sampler may therefore propose a number between two values.
        """
        names = self.configs[0] if self.configs else ()
        return {name: _distribution(dict.fromkeys(config[name] for config in self.configs)) for name in names}

    def index_of(self, config: Mapping[str, object]) -> int | None:
        """Return the index of a config; None for one that is not in the space or lacks a parameter."""
        return self._index.find(config)

    @cached_property
    def _index(self) -> _ConfigIndex:
        return _ConfigIndex(self.configs)

    def kernel(self, config: Config, target: str) -> Kernel:
        """Return the kernel of a config for this problem's dtype and epilogue."""
        return Kernel.of(self.family, config, self.problem.dtype, self.problem.epilogue, target)

    @property
    def kernel_group(self) -> KernelGroup:
        """The family, dtype and epilogue of its kernels."""
        return self.family, self.problem.dtype, self.problem.epilogue

    def contains(self, kernel: Kernel) -> bool:
        """Return whether a kernel has this space's family, dtype and epilogue."""
        return kernel_group(kernel) == self.kernel_group


_KEY_BYTES = 2  # for a value's number


class _ConfigIndex:
    """Finds configs by their values, in a few bytes for each config: a large run has millions of them."""

    def __init__(self, configs: Sequence[Config]) -> None:
        names = configs[0] if configs else ()
        self._numbers = {
            name: {value: number for number, value in enumerate(dict.fromkeys(config[name] for config in configs), 1)}
            for name in names
        }
        keys = np.array([self._key(config) for config in configs], dtype=f"S{max(1, _KEY_BYTES * len(self._numbers))}")
        self._order = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._order]

    def find(self, config: Mapping[str, object]) -> int | None:
        """Return the index of a config; None if there is none with these values."""
        key = self._key(config)
        place = int(np.searchsorted(self._keys, np.bytes_(key))) if key is not None else len(self._keys)
        found = place < len(self._keys) and self._keys[place] == key
        return int(self._order[place]) if found else None

    def _key(self, config: Mapping[str, object]) -> bytes | None:
        """Return the numbers of a config's values, as numpy keeps bytes; None if a value occurs in no config."""
        numbers = [known.get(config.get(name, "")) for name, known in self._numbers.items()]  # type: ignore[call-overload]
        if None in numbers:
            return None
        return b"".join(number.to_bytes(_KEY_BYTES, "big") for number in numbers).rstrip(b"\0")


def kernel_group(kernel: Kernel) -> KernelGroup:
    """Return the group of a kernel."""
    return kernel.family, kernel.dtype, kernel.epilogue


def spread(space: Space, count: int) -> list[int]:
    """Return the indices of `count` configs that the prior ranks high and that are unlike each other.

    A config that differs from a better one in a single parameter is skipped, unless too few others remain.
    """
    chosen: dict[int, tuple[Value, ...]] = {}
    for i, config in enumerate(space.configs):
        if len(chosen) == count:
            break
        values = tuple(config.values())
        if all(sum(a != b for a, b in zip(values, other, strict=True)) > 1 for other in chosen.values()):
            chosen[i] = values
    rest = (i for i in range(len(space.configs)) if i not in chosen)
    return [*chosen, *islice(rest, count - len(chosen))]


def _distribution(values: Collection[Value]) -> BaseDistribution:
    if any(isinstance(value, str) for value in values):
        return CategoricalDistribution(tuple(values))
    low, high = min(map(int, values)), max(map(int, values))
    return IntDistribution(low, high, log=low > 0)


def axes(configs: Sequence[Config]) -> dict[str, list[Value]]:
    """Return the parameters that vary among some configs, each with its values in ascending order."""
    names = list(configs[0]) if configs else []
    found = {name: sorted({config[name] for config in configs}, key=_order) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _order(value: Value) -> tuple[bool, Value]:
    return (isinstance(value, str), value)
