"""What a family of kernels is: one way to write a kernel, its parameters, and which values are legal."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.problem import Problem

Value = int | str
Config = Mapping[str, Value]
"""One value for each parameter of a family."""
Launch = Mapping[str, int]
"""Values that a compiled kernel takes when it is prepared; they cost no compile."""

SHARED_LIBRARY = "shared_library"
DEVICE_IMAGE = "device_image"


@dataclass(frozen=True)
class Parameter:
    """One axis of a family's space: its name, its values, and what it means (for the docs and --help)."""

    name: str
    values: tuple[Value, ...]
    meaning: str


@dataclass(frozen=True)
class Family:
    """A template and what is known about it. All fields that are functions are pure.

    operator: the problems it solves: one class, or several.
    legal: (config, arch, dtype, epilogue) -> None, or why this cannot be compiled. What it lets through compiles.
    supports: (problem) -> None, or why no kernel of the family can solve it.
    launches: (problem, config, arch) -> the launch values worth timing, the plainest first.
    cost: (problem, config, arch) -> a rank for the prior, lower is better; no unit.
    context: (config, arch, dtype) -> the template's variables.
    compile_seconds: of a unit's headers and of each kernel in it, roughly; they decide how many share a unit.
    label: (config) -> a config in few characters, for tables.
    weight_layouts: (config) -> operand name -> layout, for fused_resnet/layout.py; absent means torch's own.
    """

    name: str
    operator: type[Problem] | tuple[type[Problem], ...]
    kind: str
    template: str
    architectures: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    cost: Callable[[Problem, Config, Architecture], float]
    context: Callable[[Config, Architecture, str], Mapping[str, object]] = lambda config, arch, dtype: config
    legal: Callable[[Config, Architecture, str, Epilogue], str | None] = lambda *_: None
    supports: Callable[[Problem], str | None] = lambda _: None
    launch_parameters: tuple[Parameter, ...] = ()
    launches: Callable[[Problem, Config, Architecture], list[Launch]] = lambda *_: [{}]
    weight_layouts: Callable[[Config], Mapping[str, str]] = lambda _: {}
    compile_seconds: tuple[float, float] = (0.4, 0.2)
    label: Callable[[Config], str] = lambda config: " ".join(f"{name} {value}" for name, value in config.items())

    @property
    def operators(self) -> tuple[type[Problem], ...]:
        """The problems it solves."""
        return self.operator if isinstance(self.operator, tuple) else (self.operator,)

    def configs(self, arch: Architecture, dtype: str, epilogue: Epilogue) -> Iterator[dict[str, Value]]:
        """Every legal config for one architecture, dtype and epilogue."""
        return (config for config in self._all() if self.legal(config, arch, dtype, epilogue) is None)

    def illegal(self, arch: Architecture, dtype: str, epilogue: Epilogue) -> Iterator[tuple[dict[str, Value], str]]:
        """Every config that is not legal, and why."""
        return ((config, why) for config in self._all() if (why := self.legal(config, arch, dtype, epilogue)))

    def _all(self) -> Iterator[dict[str, Value]]:
        names = [parameter.name for parameter in self.parameters]
        values = itertools.product(*(parameter.values for parameter in self.parameters))
        return (dict(zip(names, of_one, strict=True)) for of_one in values)

    def serves(self, problem: Problem, arch: Architecture) -> str | None:
        """None if the family can solve `problem` on `arch`, else the reason it cannot."""
        if not isinstance(problem, self.operators):
            return f"it solves {' and '.join(solved.operator for solved in self.operators)}"
        if arch.name not in self.architectures:
            return f"it has no kernels for {arch.name}"
        if problem.dtype not in arch.dtypes:
            return f"{arch.name} has no {problem.dtype}"
        return self.supports(problem)


@dataclass(frozen=True)
class Kernel:
    """What is rendered and compiled: independent of problem sizes, so one kernel serves many layers.

    target: what the compiler is asked for: "sm_90", "x86-64-v4".
    """

    family: str
    config: str
    dtype: str
    epilogue: Epilogue
    target: str
    values: Config = field(compare=False)

    @classmethod
    def of(cls, family: str, config: Config, dtype: str, epilogue: Epilogue, target: str) -> Kernel:
        """Make a kernel; its identity is the config's JSON, keys in the family's order."""
        return cls(family, json.dumps(dict(config)), dtype, epilogue, target, dict(config))

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.family} {values} {self.dtype} [{self.epilogue}] {self.target}"
