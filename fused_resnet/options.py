"""The options that all doors share: how a tuned network runs, and how long a tune may take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import torch

from autotune.core import seconds_of
from fused_resnet.torch_op import InputError


class RunKeywords(TypedDict, total=False):
    """The keyword arguments that make a RunOptions."""

    cuda_graphs: bool
    max_plans: int
    precision: str | None
    calibration: Iterable[Any] | Mapping[str, float] | None
    memory_format: torch.memory_format
    trusted_keys: Sequence[str | os.PathLike[str]]
    compile: bool | None


class TuneKeywords(RunKeywords, total=False):
    """The keyword arguments that make a RunOptions and a TuneLimits."""

    budget: str | float | None
    trials: int | None
    jobs: int | None
    only: Sequence[str]


@dataclass(frozen=True)
class RunOptions:
    """How a tuned network runs.

    Attributes:
        cuda_graphs: On a GPU, replay the network as a CUDA graph.
        max_plans: Number of plans to keep, one for each input shape and, on a GPU, stream; the most recently used stay.
        precision: None for the module's dtype, "tf32" to round the factors of a float32 module's products to TF32,
            "int8" or "fp8". docs/guide/precision.md describes them.
        calibration: For "int8" and "fp8": batches of inputs like those to come, such as a DataLoader, or the scales
            that `fused_resnet.calibrate` returned for them.
        memory_format: Memory format of results with four dimensions; torch.preserve_format for that of the plain
            network's. Formats other than torch.channels_last cost a copy.
        trusted_keys: Public keys, one of which must have signed the database: PEM files, their text, or base64. Without
            any, those of the environment variable AUTOTUNE_TRUSTED_KEYS. docs/guide/databases.md describes signatures.
        compile: Compile by Inductor what the database says is fastest so, and networks without any tuned layer. False
            never compiles; None does unless the environment variable AUTOTUNE_INDUCTOR is 0.
    """

    cuda_graphs: bool = True
    max_plans: int = 16
    precision: str | None = None
    calibration: Iterable[Any] | Mapping[str, float] | None = None
    memory_format: torch.memory_format = torch.channels_last
    trusted_keys: Sequence[str | os.PathLike[str]] = ()
    compile: bool | None = None


@dataclass(frozen=True)
class TuneLimits:
    """The limits of a tuning run; None for the defaults of `autotune tune`.

    Attributes:
        budget: Time of the run for one input shape: seconds, or text such as "90s" or "5m".
        trials: Number of configs that may be tried for a problem.
        jobs: Number of compilers that run at the same time.
        only: Names of the families to try; if empty, all apart from those that must be named.

    Raises:
        InputError: A number is below 1, the budget is no time, or `only` is a text.
        UnknownNameError: There is no family of a name in `only`.
    """

    budget: str | float | None = None
    trials: int | None = None
    jobs: int | None = None
    only: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what no run can have, before anything is made."""
        if isinstance(self.only, str):
            raise InputError(f"only={self.only!r} is a text: give a list of names, such as only=[{self.only!r}]")
        for name, count in (("trials", self.trials), ("jobs", self.jobs)):
            if count is not None and count < 1:
                raise InputError(f"{name} is {count}, and must be at least 1: leave it out for the default")
        _ = self.seconds, self.families

    @property
    def seconds(self) -> float | None:
        """The budget in seconds."""
        try:
            return None if self.budget is None else seconds_of(self.budget)
        except ValueError as error:
            raise InputError(f"budget: {error}") from error

    @property
    def families(self) -> tuple[str, ...]:
        """The families to try."""
        if not self.only:
            return ()
        from autotune.families import family

        return tuple(family(name).name for name in self.only)


def apart(options: TuneKeywords) -> tuple[RunKeywords, TuneLimits]:
    """Return the keyword arguments that make a RunOptions, and the limits that the others make."""
    names = {field.name for field in fields(TuneLimits)}
    limits: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    runs: Any = {name: value for name, value in options.items() if name not in names}
    return runs, TuneLimits(**limits)
