"""The options of torch.compile(model, backend="autotune", options={...})."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from autotune.core import require_one_of
from fused_resnet.model_source import check_precision
from fused_resnet.options import RunOptions, TuneLimits
from fused_resnet.torch_op import InputError
from fused_resnet.tuning import create, database
from tuning_db import DatabaseError

TUNE = {
    "off": "use what the database has",
    "missing": "first tune what the database lacks, at the first call of each input shape",
}
"""Values of the option tune and what they mean."""


@dataclass(frozen=True)
class CompileOptions(RunOptions):
    """The options of torch.compile(..., backend="autotune", options={...}): those of RunOptions, and more.

    Attributes:
        tuning_db: Path or URL of the database. Without one, that of the environment variable AUTOTUNE_DB, or else
            autotune/tuning.db in the user's cache.
        tune: A key of TUNE.
        budget: For tune="missing", as are the next three: the limits of a run for each input shape, as in TuneLimits.
        trials: See `budget`.
        jobs: See `budget`.
        only: See `budget`.
        calibration: For "int8" and "fp8": the scales that fused_resnet.calibrate returned.
        memory_format: Memory format of results with four dimensions; that of the plain network's by default.
        direct_gradients: On a GPU, let the backward pass of a small training step store the gradients of parameters
            itself, which saves the host autograd's work for each parameter. torch.autograd.grad and
            backward(inputs=...) then do not find these parameters, and hooks on their AccumulateGrad nodes do not run.
            A step whose parameters have hooks, or of DistributedDataParallel, runs without it.
    """

    calibration: Mapping[str, float] | None = None
    memory_format: torch.memory_format = torch.preserve_format
    tuning_db: str | os.PathLike[str] | None = None
    tune: str = "off"
    budget: str | float | None = None
    trials: int | None = None
    jobs: int | None = None
    only: Sequence[str] = ()
    direct_gradients: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> CompileOptions:
        """Return the options that a user gave.

        Raises:
            DatabaseError: There is no database.
            InputError: An option does not exist or has no valid value.
            UnknownNameError: `tune` or `precision` has an unknown value.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given or {}) - set(known)):
            raise InputError(
                f"unknown option {', '.join(map(repr, unknown))}: backend='autotune' has {', '.join(known)}"
            )
        options = cls(**(given or {}))
        require_one_of("option tune", options.tune, list(TUNE))
        if options.calibration is not None and not isinstance(options.calibration, Mapping):
            raise InputError("the option calibration takes the scales that fused_resnet.calibrate returned")
        check_precision(options.precision, options.calibration)
        if options.tunes:
            _ = options.limits
            if options.trusted_keys:
                raise InputError("a database that is being tuned has no signature: leave out trusted_keys or tune")
            create(options.database)
        elif options.limits != TuneLimits():
            raise InputError("the options budget, trials, jobs and only are for tune='missing': give that, too")
        elif options.tuning_db is None and "://" not in options.database and not Path(options.database).exists():
            raise DatabaseError(
                f"no tuning database at {options.database}: give options={{'tuning_db': PATH}}, set AUTOTUNE_DB, or "
                "tune now with options={'tune': 'missing'}"
            )
        return options

    @property
    def database(self) -> str:
        """The location of the database."""
        return database(self.tuning_db)

    @property
    def tunes(self) -> bool:
        """True if what the database lacks is tuned."""
        return self.tune == "missing"

    @property
    def limits(self) -> TuneLimits:
        """The limits of tuning runs."""
        return TuneLimits(self.budget, self.trials, self.jobs, self.only)
