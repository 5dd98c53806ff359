"""The record of a family: one way to write a kernel, its parameters, and which of their values are legal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any, Generic, Self, TypeVar

from autotune.core import Architecture
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, Problem

Value = int | str
Config = Mapping[str, Value]
"""One value for each parameter of a family."""
Launch = Mapping[str, int]
"""Values that a compiled kernel takes when it is prepared; another value needs no compilation."""

SHARED_LIBRARY = "shared_library"
DEVICE_IMAGE = "device_image"

PERMISSIONS = {"f16_accumulation": "sums of half-precision products in half precision: faster, and less exact"}
"""Name -> meaning of what a kernel does only if the user allows it: it changes results by more than rounding order."""

P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class Parameter:
    """One axis of a family's search space.

    Attributes:
        name: Its key in configs and in the template.
        values: All values that it can have.
        meaning: What it decides, for the docs and --help.
    """

    name: str
    values: tuple[Value, ...]
    meaning: str


class ConfigNumbers:
    """Base of dataclasses whose fields are parameters of a family that have integers as values, by their names."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the numbers of a config."""
        return cls(**{name: int(config[name]) for name in cls.__annotations__})


CHANNELS_LAST = Parameter("channels_last", (0, 1), "1: the image is channels last in memory, as its caller has it")
"""A launch parameter of kernels that read an NCHW image. Tuning uses 0; a plan sets it to the layout of its input."""


def all_values(parameter: Parameter, *_: object) -> Sequence[Value]:
    """Return all values of a parameter, whatever was chosen before it."""
    return parameter.values


@dataclass(frozen=True)
class Family(Generic[P]):
    """A template and what is known about its kernels, for problems of type P. All fields that are functions are pure.

    Functions named `why_...` return None if all is well, else the requirement that is not met, in plain words.

    Attributes:
        name: Its unique name.
        operator: The problems that it solves: one class, or several.
        kind: SHARED_LIBRARY or DEVICE_IMAGE.
        template: The Jinja template, relative to the family's own folder or to templates/.
        architectures: Names of the architectures that it has kernels for.
        parameters: The axes of its configs, in order.
        cost: (problem, config, arch) -> a rank for the search's prior, lower is better; no unit.
        context: (config, arch, dtype) -> the template's variables.
        dtypes: The dtypes that it has kernels for, as far as an architecture has them.
        why_illegal: (config, arch, dtype, epilogue) -> why it cannot be compiled. A legal config must compile.
        required_permissions: (config, or the first of its values) -> the names of PERMISSIONS that a user must allow.
        candidate_values: (parameter, values of those before it, arch, dtype, problem or None) -> the values that can
            be legal and, if there is a problem, fit it. It only shortens the enumeration.
        why_unsupported: (problem) -> why no kernel of the family can solve it.
        why_unfit: (problem, config, arch) -> why this kernel cannot solve a supported problem, or does so in a way
            that another config is known to beat.
        launch_parameters: The axes of its launch values, in order.
        launches: (problem, config, arch) -> the launch values worth timing of a config that fits, the most promising
            first, which alone are tried at first in a large run; empty if the kernel runs with none.
        weight_layouts: (config) -> operand name -> layout, a key of autotune/ir/weight_layout.py. An absent name means
            torch's layout; names of operands that a problem does not have are ignored.
        compile_seconds: Estimates of compile time: of a unit's headers, and of each kernel. They decide how many
            kernels share a unit.
        opt_in: Whether it is tried only if the user names it (--only), because its kernels compile slowly.
        label: (config) -> the config in few characters, for tables.
    """

    name: str
    operator: type[P] | tuple[type[P], ...]
    kind: str
    template: str
    architectures: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    cost: Callable[[P, Config, Architecture], float]
    context: Callable[[Config, Architecture, str], Mapping[str, object]] = lambda config, arch, dtype: config
    dtypes: tuple[str, ...] = ("f16", "bf16", "tf32", "f32")
    why_illegal: Callable[[Config, Architecture, str, Epilogue], str | None] = lambda *_: None
    required_permissions: Callable[[Config], Sequence[str]] = lambda _: ()
    candidate_values: Callable[[Parameter, Config, Architecture, str, P | None], Sequence[Value]] = all_values
    why_unsupported: Callable[[P], str | None] = lambda _: None
    why_unfit: Callable[[P, Config, Architecture], str | None] = lambda *_: None
    launch_parameters: tuple[Parameter, ...] = ()
    launches: Callable[[P, Config, Architecture], list[Launch]] = lambda *_: [{}]
    weight_layouts: Callable[[Config], Mapping[str, str]] = lambda _: {}
    compile_seconds: tuple[float, float] = (0.4, 0.2)
    opt_in: bool = False
    label: Callable[[Config], str] = lambda config: " ".join(f"{name} {value}" for name, value in config.items())

    @property
    def operators(self) -> tuple[type[P], ...]:
        """The classes of problems that it solves."""
        return self.operator if isinstance(self.operator, tuple) else (self.operator,)

    def configs(
        self, arch: Architecture, dtype: str, epilogue: Epilogue, allow: Sequence[str] = ()
    ) -> Iterator[dict[str, Value]]:
        """Yield every legal config for one architecture, dtype and epilogue.

        Args:
            arch: The architecture.
            dtype: Dtype of the problem.
            epilogue: The chain that the kernel ends with.
            allow: Names of PERMISSIONS; configs that require others are left out.
        """
        for config in self._enumerated(arch, dtype, None, allow):
            if self.why_illegal(config, arch, dtype, epilogue) is None:
                yield config

    def illegal_configs(
        self, arch: Architecture, dtype: str, epilogue: Epilogue
    ) -> Iterator[tuple[dict[str, Value], str]]:
        """Yield every config that is enumerated but not legal, with the requirement that it does not meet."""
        for config in self._enumerated(arch, dtype, None, tuple(PERMISSIONS)):
            if why := self.why_illegal(config, arch, dtype, epilogue):
                yield config, why

    def configs_for(self, problem: P, arch: Architecture, allow: Sequence[str] = ()) -> list[dict[str, Value]]:
        """Return every legal config that fits a problem and can be launched for it; `allow` as in `configs`."""
        known = _known_legal(self, arch, problem.dtype, problem.epilogue)

        def is_legal(config: Config) -> bool:
            # Layers share dtypes and epilogues, so a large network asks for the same configs many times.
            values = tuple(config.values())
            if values not in known:
                known[values] = self.why_illegal(config, arch, problem.dtype, problem.epilogue) is None
            return known[values]

        return [
            config
            for config in self._enumerated(arch, problem.dtype, problem, allow)
            if self.why_unfit(problem, config, arch) is None
            and is_legal(config)
            and self.launches(problem, config, arch)
        ]

    def _enumerated(
        self, arch: Architecture, dtype: str, problem: P | None, allow: Sequence[str]
    ) -> Iterator[dict[str, Value]]:
        def extended(configs: Iterable[dict[str, Value]], parameter: Parameter) -> Iterator[dict[str, Value]]:
            for chosen in configs:
                for value in self.candidate_values(parameter, chosen, arch, dtype, problem):
                    config = {**chosen, parameter.name: value}
                    if allowed.issuperset(self.required_permissions(config)):
                        yield config

        allowed = set(allow)
        return reduce(extended, self.parameters, iter([{}]))

    def why_not_served(self, problem: Problem, arch: Architecture) -> str | None:
        """Return None if the family can solve a problem on an architecture, else the reason why it cannot."""
        if not isinstance(problem, self.operators):
            return f"it solves {' and '.join(solved.operator for solved in self.operators)}, not {problem.operator}"
        return first_unmet(self._service_rules(problem, arch)) or self.why_unsupported(problem)

    def _service_rules(self, problem: P, arch: Architecture) -> Rules:
        yield require(arch.name in self.architectures, f"it has no kernels for {arch.name}")
        yield require(problem.dtype in arch.dtypes, f"{arch.name} has no {problem.dtype}")
        yield require(problem.dtype in self.dtypes, f"it has no kernels in {problem.dtype}")


AnyFamily = Family[Any]
"""A family whose problems' type is not known."""


@cache
def _known_legal(
    family: AnyFamily, arch: Architecture, dtype: str, epilogue: Epilogue
) -> dict[tuple[Value, ...], bool]:
    """Return the memory of which configs, by their values, are legal; `why_illegal` is a pure function."""
    return {}


@dataclass(frozen=True)
class Kernel:
    """The unit of rendering and compilation. It does not depend on problem sizes, so one kernel serves many layers.

    Attributes:
        family: The family's name.
        config: The config as JSON, keys in the order of the family's parameters.
        dtype: Dtype of the problem.
        epilogue: The chain that it ends with.
        target: The compiler's target: "sm_90", "x86-64-v4".
        values: The config as a mapping.
    """

    family: str
    config: str
    dtype: str
    epilogue: Epilogue
    target: str
    values: Config = field(compare=False)

    @classmethod
    def of(cls, family: str, config: Config, dtype: str, epilogue: Epilogue, target: str) -> Kernel:
        """Make a kernel of a config, whose keys are in the order of the family's parameters."""
        return cls(family, json.dumps(dict(config)), dtype, epilogue, target, dict(config))

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.family} {values} {self.dtype} [{self.epilogue}] {self.target}"
