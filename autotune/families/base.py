"""The base class of families: one way to write a kernel, its parameters, and which of their values are legal.

A rule is a requirement: it states what must hold, in words that are shown to users.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any, Generic, Self, TypeVar

from autotune.core import Architecture
from autotune.ir import BYTE_FORMATS, MAX_PRODUCTS, Epilogue, Problem

Rules = Iterator[str | None]
"""The results of `require`, in an order in which each may rely on those before it."""


def require(holds: object, requirement: str) -> str | None:
    """Return None if a requirement holds, else its words.

    Args:
        holds: Whether it does, by its truth value.
        requirement: What must hold, in plain words, such as "c must be a multiple of 8".
    """
    return None if holds else requirement


def require_no_overflow(dtype: str, products: int) -> str | None:
    """Require that no sum of a convolution overflows. products: those of a sum, r*s*c of a group."""
    form = BYTE_FORMATS.get(dtype)
    return require(
        form is None or not form.overflows(products),
        f"r*s*c must be less than {MAX_PRODUCTS} in {dtype}, so that no sum overflows int32",
    )


def first_unmet(rules: Iterable[str | None]) -> str | None:
    """Return the words of the first requirement that does not hold, or None if all hold."""
    return next(filter(None, rules), None)


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


class Family(ABC, Generic[P]):
    """One way to write a kernel, for problems of type P: a template and what is known about its kernels.

    A family is a subclass; a module registers an instance in its tuple `FAMILIES`. All methods are pure. Those that
    return rules yield the results of `require`, in an order in which each may rely on those before it.

    Attributes:
        name: Its unique name.
        operator: The problems that it solves: one class, or several.
        kind: SHARED_LIBRARY or DEVICE_IMAGE.
        template: The Jinja template, relative to the family's own folder or to templates/.
        architectures: Names of the architectures that it has kernels for.
        parameters: The axes of its configs, in order.
        dtypes: The dtypes that it has kernels for, as far as an architecture has them.
        launch_parameters: The axes of its launch values, in order.
        compile_seconds: Estimates of compile time: of a unit's headers, and of each kernel. They decide how many
            kernels share a unit.
    """

    name: str
    operator: type[P] | tuple[type[P], ...]
    kind: str
    template: str
    architectures: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    dtypes: tuple[str, ...] = ("f16", "bf16", "tf32", "f32")
    launch_parameters: tuple[Parameter, ...] = ()
    compile_seconds: tuple[float, float] = (0.4, 0.2)

    # -- what a family says of its kernels ------------------------------------------------------------------------

    @abstractmethod
    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Return the rank of a config for the first trials; lower is better, without a unit."""

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        """Yield what a config must be to be compiled. A legal config must compile."""
        yield from ()

    def unsupported(self, problem: P) -> Rules:
        """Yield what a problem must be so that some kernel of the family solves it."""
        yield from ()

    def decided(self, problem: P) -> Mapping[str, Value]:
        """Return the parameters that have one value in all kernels for a supported problem, with that value."""
        return {}

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        """Yield what a config must be to solve a supported problem, and not in a way that another is known to beat."""
        for name, value in self.decided(problem).items():
            yield require(config[name] == value, f"the problem needs {name}={value}; the kernel has {config[name]}")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        """Return the values of a parameter that can be legal after those before it. This only shortens enumerations.

        Args:
            parameter: The parameter.
            chosen: The values of the parameters before it.
            arch: The architecture.
            dtype: Dtype of the problem.
            problem: If it is given, values that cannot fit it are left out.
        """
        decided = self.decided(problem) if problem else {}
        if parameter.name in decided:
            return [value for value in parameter.values if value == decided[parameter.name]]
        return parameter.values

    def required_permissions(self, config: Config) -> Sequence[str]:
        """Return the names of PERMISSIONS that a user must allow for a config, or for the first of its values."""
        return ()

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        """Return the launch values worth timing of a config that fits, the most promising first.

        Only these are tried at first in a large run. Without any, the kernel cannot be launched for the problem.
        """
        return [{}]

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        """Return the template's variables."""
        return config

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        """Return the layouts of operands that differ from torch's: name -> a key of autotune/ir/weight_layout.py.

        Names of operands that a problem does not have are ignored.
        """
        return {}

    def label(self, config: Config) -> str:
        """Return the config in few characters, for tables."""
        return " ".join(f"{name} {value}" for name, value in config.items())

    # -- what follows from that -----------------------------------------------------------------------------------

    def why_illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        """Return the first requirement that a config does not meet to be compiled; None if it meets all."""
        return first_unmet(self.illegal(config, arch, dtype, epilogue))

    def why_unsupported(self, problem: P) -> str | None:
        """Return the reason why no kernel of the family can solve a problem; None if one can."""
        return first_unmet(self.unsupported(problem))

    def why_unfit(self, problem: P, config: Config, arch: Architecture) -> str | None:
        """Return the first requirement of a supported problem that a config does not meet; None if it meets all."""
        return first_unmet(self.unfit(problem, config, arch))

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
    """Return the memory of which configs, by their values, are legal; `illegal` is a pure function."""
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
