"""What a family of kernels is: one way to write a kernel, its parameters, and which values are legal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from autotune.core import Architecture
from autotune.ir import Epilogue, Problem

Value = int | str
Config = Mapping[str, Value]
"""One value for each parameter of a family."""
Launch = Mapping[str, int]
"""Values that a compiled kernel takes when it is prepared; they cost no compile."""

SHARED_LIBRARY = "shared_library"
DEVICE_IMAGE = "device_image"

PERMISSIONS = {"f16_accumulation": "sums of half-precision products in half precision: faster, and less exact"}
"""What only a user may allow, because it changes results by more than the order of a sum, and what it means."""


@dataclass(frozen=True)
class Parameter:
    """One axis of a family's space: its name, its values, and what it means (for the docs and --help)."""

    name: str
    values: tuple[Value, ...]
    meaning: str


CHANNELS_LAST = Parameter("channels_last", (0, 1), "1: the image is channels last in memory, as its caller has it")
"""A launch value of kernels that read an NCHW image: timed with 0; a plan sets it where the network's input is."""


@dataclass(frozen=True)
class Family:
    """A template and what is known about it. All fields that are functions are pure.

    operator: the problems it solves: one class, or several.
    dtypes: those of the architectures' that it has kernels in.
    legal: (config, arch, dtype, epilogue) -> None, or why this cannot be compiled. What it lets through compiles.
    needs: (config, or the first of its values) -> the names of PERMISSIONS without which it must not be used.
    values: (parameter, values of those before it, arch, dtype, problem or None) -> the values that can be legal, and
        fit the problem if there is one; only to save enumerating the others.
    supports: (problem) -> None, or why no kernel of the family can solve it.
    fits: (problem, config, arch) -> None, or why this kernel cannot solve a problem that the family supports, or
        solves it in a way that another is known to beat.
    launches: (problem, config, arch) -> the launch values worth timing of a config that fits, the plainest first; none
        where they cannot be such that it runs.
    cost: (problem, config, arch) -> a rank for the prior, lower is better; no unit.
    context: (config, arch, dtype) -> the template's variables.
    compile_seconds: of a unit's headers and of each kernel in it, roughly; they decide how many share a unit.
    by_name: its kernels take so long to compile that it is tried only where it is named (tune.py --only).
    label: (config) -> a config in few characters, for tables.
    weight_layouts: (config) -> operand name -> layout, for autotune/ir/weight_layout.py; absent means torch's own;
        what a problem does not have does not count.
    """

    name: str
    operator: type[Problem] | tuple[type[Problem], ...]
    kind: str
    template: str
    architectures: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    cost: Callable[[Problem, Config, Architecture], float]
    context: Callable[[Config, Architecture, str], Mapping[str, object]] = lambda config, arch, dtype: config
    dtypes: tuple[str, ...] = ("f16", "bf16", "tf32", "f32")
    legal: Callable[[Config, Architecture, str, Epilogue], str | None] = lambda *_: None
    needs: Callable[[Config], Sequence[str]] = lambda _: ()
    values: Callable[[Parameter, Config, Architecture, str, Problem | None], Sequence[Value]] = lambda parameter, *_: (
        parameter.values
    )
    supports: Callable[[Problem], str | None] = lambda _: None
    fits: Callable[[Problem, Config, Architecture], str | None] = lambda *_: None
    launch_parameters: tuple[Parameter, ...] = ()
    launches: Callable[[Problem, Config, Architecture], list[Launch]] = lambda *_: [{}]
    weight_layouts: Callable[[Config], Mapping[str, str]] = lambda _: {}
    compile_seconds: tuple[float, float] = (0.4, 0.2)
    by_name: bool = False
    label: Callable[[Config], str] = lambda config: " ".join(f"{name} {value}" for name, value in config.items())

    @property
    def operators(self) -> tuple[type[Problem], ...]:
        """The problems it solves."""
        return self.operator if isinstance(self.operator, tuple) else (self.operator,)

    def configs(
        self, arch: Architecture, dtype: str, epilogue: Epilogue, allow: Sequence[str] = ()
    ) -> Iterator[dict[str, Value]]:
        """Every legal config for one architecture, dtype and epilogue that needs no more than what is allowed."""
        for config in self._enumerated(arch, dtype, None, allow):
            if self.legal(config, arch, dtype, epilogue) is None:
                yield config

    def illegal(self, arch: Architecture, dtype: str, epilogue: Epilogue) -> Iterator[tuple[dict[str, Value], str]]:
        """Every config that is enumerated and not legal, and why."""
        for config in self._enumerated(arch, dtype, None, tuple(PERMISSIONS)):
            if why := self.legal(config, arch, dtype, epilogue):
                yield config, why

    def configs_for(self, problem: Problem, arch: Architecture, allow: Sequence[str] = ()) -> list[dict[str, Value]]:
        """Every config of `configs` that fits a problem."""
        return [
            config
            for config in self._enumerated(arch, problem.dtype, problem, allow)
            if self.fits(problem, config, arch) is None
            and self.legal(config, arch, problem.dtype, problem.epilogue) is None
            and self.launches(problem, config, arch)
        ]

    def _enumerated(
        self, arch: Architecture, dtype: str, problem: Problem | None, allow: Sequence[str]
    ) -> Iterator[dict[str, Value]]:
        def extended(configs: Iterable[dict[str, Value]], parameter: Parameter) -> Iterator[dict[str, Value]]:
            for chosen in configs:
                for value in self.values(parameter, chosen, arch, dtype, problem):
                    config = {**chosen, parameter.name: value}
                    if set(self.needs(config)) <= allowed:
                        yield config

        allowed = set(allow)

        return reduce(extended, self.parameters, iter([{}]))

    def serves(self, problem: Problem, arch: Architecture) -> str | None:
        """None if the family can solve `problem` on `arch`, else the reason it cannot."""
        if not isinstance(problem, self.operators):
            return f"it solves {' and '.join(solved.operator for solved in self.operators)}"
        if arch.name not in self.architectures:
            return f"it has no kernels for {arch.name}"
        if problem.dtype not in arch.dtypes:
            return f"{arch.name} has no {problem.dtype}"
        if problem.dtype not in self.dtypes:
            return f"it has no kernels in {problem.dtype}"
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
