"""The start of a tuning run: `autotune tune`, `fused_resnet.tune`, the backend and training steps all begin here.

A door says what is tuned, where, with which limits, and how progress is shown. Nothing else differs between doors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.codegen import BuildBatch, StartBatch
from autotune.core import Deadline
from autotune.measure import Timing, Worker
from autotune.tuner import (
    ForeignKernels,
    Progress,
    Tuner,
    TuneRequest,
    TunerOptions,
    TuningTarget,
    inductor_modes,
    refuse_other_timing,
    start_in_background,
)
from tuning_db import Store, shipped_databases

END_SHARE, END_SECONDS = 0.05, 10.0
"""Share of the budget, and most seconds, that are kept for the end: the summary, closing the database, ending
processes."""
STEP_SHARE = 0.25
"""Share of a run's time that is left for training steps as a whole."""


@dataclass(frozen=True)
class RunOutcome:
    """A run that has ended.

    Attributes:
        tuner: The run.
        interrupt: What has interrupted it, such as Ctrl-C; None if it came to its end. Finished trials are kept.
    """

    tuner: Tuner
    interrupt: KeyboardInterrupt | None


def work_deadline(budget: float, started: float | None = None) -> Deadline:
    """Return the deadline of the work of a run, such that the run ends within its budget.

    Args:
        budget: Seconds of the run.
        started: The time.monotonic() at which the user started it; None for now.
    """
    return Deadline.after(budget, started).before(min(END_SECONDS, END_SHARE * budget))


def run_options(
    target: TuningTarget,
    jobs: int,
    requests: Sequence[TuneRequest],
    *,
    trials: int | None = None,
    inductor: str | None = None,
    is_here: bool = True,
    **choices: Any,
) -> TunerOptions:
    """Return the options of a run.

    Args:
        target: The architecture and the device.
        jobs: Number of compilers that run at the same time.
        requests: What is tuned.
        trials: Number of configs that may be tried for a problem; None for the default.
        inductor: A key of INDUCTOR_MODES; None for the default.
        is_here: Whether this machine measures.
        choices: Other fields of TunerOptions that differ from the defaults.

    Raises:
        LibraryError: A mode of Inductor was chosen, and it cannot compile here.
    """
    return TunerOptions(
        target.arch,
        target.target,
        trials or target.trials,
        jobs,
        inductor=inductor_modes(target.device, inductor, is_here=is_here),
        baseline_first=any(request.is_step for request in requests),
        is_limited=trials is not None,
        **choices,
    )


def start_run(
    store: Store,
    target: TuningTarget,
    requests: Sequence[TuneRequest],
    options: TunerOptions,
    workers: Sequence[Worker],
    deadline: Deadline,
    progress: Progress,
    *,
    timing: Timing,
    others: Sequence[Path] | None = None,
    start_batch: StartBatch = BuildBatch,
) -> RunOutcome:
    """Tune what is requested, until it is done, the deadline passes or the user interrupts.

    Args:
        store: The database.
        target: The architecture and the device.
        requests: The networks, training steps or problems.
        options: Limits and choices.
        workers: The measuring processes; without any the run compiles and times nothing.
        deadline: The deadline of the work.
        progress: Receives events.
        timing: How candidates are timed.
        others: Databases whose kernels are tried before any is compiled; None for the shipped ones.
        start_batch: Starts compilers.

    Raises:
        DatabaseError: The database cannot be read or written, or holds times that were measured otherwise.
        ToolchainError: There is no compiler.
        WorkerError: The measuring process cannot be started.
    """
    problems = [problem for request in requests for problem in request.problems]
    if target.name:
        refuse_other_timing(store, target.name, problems, timing)
    databases = [one for one in (shipped_databases() if others is None else others) if not _is_store(one, store)]
    # The processes start while the databases are read; each takes some seconds.
    with start_in_background(workers), ForeignKernels(databases, target.target, problems) as foreign:
        tuner = Tuner(
            store,
            problems,
            options,
            workers,
            progress,
            networks=[request.network for request in requests if request.network],
            deadline=deadline,
            foreign=foreign,
            start_batch=start_batch,
        )
        try:
            tuner.run()
        except KeyboardInterrupt as interrupt:
            return RunOutcome(tuner, interrupt)
    return RunOutcome(tuner, None)


def _is_store(path: Path, store: Store) -> bool:
    return path.resolve() == Path(str(store.where)).resolve()
