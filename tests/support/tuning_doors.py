"""The doors: each way in which a user tunes a model for inference, opened on a database of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autotune.core import paths
from autotune.ir import dtype_name
from autotune_cli.baselines import BaselineInput, Forward
from autotune_cli.timed_tune import timed_tune
from fused_resnet import tune


@dataclass(frozen=True)
class Opened:
    """A model that a door has tuned.

    Attributes:
        seconds: From the call of the door to its return.
        forward: Runs the tuned model on the input.
    """

    seconds: float
    forward: Forward


@dataclass(frozen=True)
class Subject:
    """A model and inputs to tune.

    Attributes:
        text: The value of --model.
        case: The same model, loaded, with the input to tune for.
        budget: Seconds of the run.
    """

    text: str
    case: BaselineInput
    budget: float

    @property
    def options(self) -> list[str]:
        """The options of `autotune tune`, without --db."""
        batch, *sample = self.case.x.shape
        size = ["--input", ",".join(map(str, sample))]
        arch = "auto" if self.case.device.type == "cuda" else "cpu"
        about = ["--model", self.text, *size, "--batch", str(batch), "--dtype", dtype_name(self.case.x.dtype)]
        return [*about, "--arch", arch, "--budget", str(self.budget)]


def through_cli(subject: Subject, database: Path) -> Opened:
    """Tune by `autotune tune` in a process of its own, then load the database.

    Raises:
        AutotuneError: The command failed.
    """
    seconds = timed_tune(subject.options, database, paths.generated())
    network = subject.case.model.fused_for(subject.case.x, str(database), None)
    return Opened(seconds, lambda: network(subject.case.x))


def through_tune(subject: Subject, database: Path) -> Opened:
    """Tune by `fused_resnet.tune`, which tunes what the database lacks."""
    plain = subject.case.eager()
    started = time.perf_counter()
    network = tune(plain, subject.case.x, database, budget=subject.budget)
    return Opened(time.perf_counter() - started, lambda: network(subject.case.x))


def through_backend(subject: Subject, database: Path) -> Opened:
    """Tune by the first call behind torch.compile(backend="autotune"), which tunes what the database lacks."""
    plain = subject.case.eager()
    options: dict[str, Any] = {"tuning_db": str(database), "tune": "missing", "budget": subject.budget}
    started = time.perf_counter()
    network = torch.compile(plain, backend="autotune", dynamic=False, options=options)
    with subject.case.context():
        network(subject.case.x)
    return Opened(time.perf_counter() - started, lambda: network(subject.case.x))


DOORS: Mapping[str, Callable[[Subject, Path], Opened]] = {
    "cli": through_cli,
    "tune": through_tune,
    "backend": through_backend,
}
"""Name of a door -> function that opens it: (what is tuned, the database) -> the tuned model."""
