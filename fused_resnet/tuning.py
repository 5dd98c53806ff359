"""tune: tunes what a database lacks for a model, from Python, and returns the tuned model."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import fx, nn

from autotune.core import in_one_line, paths
from autotune.ir import Layer, Network, Problem
from fused_resnet.model_source import Captured
from fused_resnet.module import FusedResNet, plain_of
from fused_resnet.options import RunOptions, TuneKeywords, TuneLimits, apart
from fused_resnet.torch_op import InputError
from tuning_db import public_keys
from tuning_db.location import is_address, is_remote

if TYPE_CHECKING:
    from autotune.tuner import LineProgress, Searched, Tuner, TuneRequest, TuningTarget
    from tuning_db import Store

Location = str | os.PathLike[str]


def tune(
    model: nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    tuning_db: Location | None = None,
    *,
    replace: Mapping[str, nn.Module] | None = None,
    name: str = "",
    **options: Unpack[TuneKeywords],
) -> FusedResNet:
    """Tune what a database lacks for a model and one input shape, and return the model on the tuned kernels.

    Progress goes to standard error. An interrupted run keeps every finished trial; the same call continues it.

    Args:
        model: The module, in eval mode, on the device to tune for; it is copied, not changed.
        example_inputs: The input, or a tuple of the inputs; their shapes, dtype and device count, not their values.
        tuning_db: Path or URL of the database, which is made if it is missing. Without one, that of the environment
            variable AUTOTUNE_DB, or else autotune/tuning.db in the user's cache.
        replace: As for `FusedResNet.from_model`.
        name: Name of the model in messages.
        options: Those of `fused_resnet.RunOptions` and `fused_resnet.TuneLimits`. The budget counts from this call; it
            is 6 minutes on a GPU and 90 seconds on a CPU by default.

    Raises:
        CaptureError: The module cannot be captured.
        DatabaseError: The database cannot be read or written.
        InputError: An input or argument does not fit.
        ToolchainError: There is no compiler.
        UnknownNameError: There is no family of a name in `only`.
    """
    started = time.monotonic()
    run, limits = apart(options)
    chosen = RunOptions(**run)
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if not inputs or not all(isinstance(one, torch.Tensor) for one in inputs):
        raise InputError("example_inputs holds no tensor, or something else: give a tensor or a tuple of tensors")
    where = database(tuning_db)
    source = Captured.of(plain_of(model), replace or {}, name, chosen.precision, chosen.calibration)
    create(where)
    fused = FusedResNet(where, source, **run)
    tune_missing(fused._network(*inputs), inputs[0].device, where, limits, started)
    return fused


def database(given: Location | None) -> str:
    """Return the location of the database for what the user gave."""
    return paths.database() if given is None else os.fspath(given)


def create(where: str) -> None:
    """Make a database where there is none.

    Raises:
        DatabaseError: It cannot be made, or is a URL, which is only read.
        InputError: Databases must be signed, which one that is being tuned cannot be.
    """
    from tuning_db import Store

    if public_keys(()):
        raise InputError(
            "trusted keys are set, and a database that is being tuned has no signature: tune without trusted keys "
            "(AUTOTUNE_TRUSTED_KEYS), sign the database, and load it with them"
        )
    if is_remote(where) or not (is_address(where) or Path(where).exists()):
        Store.create(where).close()


def tune_missing(
    network: Network,
    device: torch.device,
    where: str,
    limits: TuneLimits,
    started: float | None = None,
    converting: Sequence[Layer] = (),
) -> bool:
    """Tune the layers and the plan of a network that a database lacks for a device.

    Args:
        network: The network.
        device: The device.
        where: The database.
        limits: The limits of the run.
        started: The time.monotonic() from which the budget counts; None for now.
        converting: Layers behind the network that convert its results.

    Returns:
        Whether something was missing.

    Raises:
        DatabaseError: The database cannot be read or written.
        ToolchainError: There is no compiler.
        WorkerError: The measuring process cannot be started.
    """
    from autotune.tuner import TuningTarget, missing
    from tuning_db import Store

    target = TuningTarget.of_device(device)
    with Store.create(where) as store:
        request = missing(store, target, network, _searched(target, limits), converting)
        if request is not None:
            _run(store, target, request, limits, started)
    return request is not None


def tune_step(
    title: str,
    named: Mapping[str, Problem],
    device: torch.device,
    where: str,
    limits: TuneLimits,
    started: float | None = None,
    kept: float = 0.0,
) -> bool:
    """Tune those problems of a training step that a database lacks for a device, as tune_missing does.

    Args:
        title: What the step is, for messages.
        named: The problems by the names of their layers.
        device: The device.
        where: The database.
        limits: The limits of the run.
        started: As for tune_missing.
        kept: Share of the time that is left for the step as a whole.
    """
    from autotune.tuner import TuningTarget, missing_problems, step_request
    from tuning_db import Store

    target = TuningTarget.of_device(device)
    with Store.create(where) as store:
        lacking = missing_problems(store, target, list(named.items()), _searched(target, limits))
        request = step_request("problems", title, lacking, target.arch)
        if request.named:
            _run(store, target, request, limits, started, kept)
    return bool(request.named)


def compare_step_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    problems: Sequence[Problem],
    where: str,
    limits: TuneLimits,
    started: float,
    again: bool,
) -> None:
    """Compare a training step on a CPU with the step as torch runs it, unless the database has a comparison.

    Args:
        graph_module: The step, a graph of Dynamo.
        example_inputs: Dynamo's example of each argument.
        problems: The problems of its layers.
        where: The database, in which they were tuned.
        limits: The limits of the run.
        started: As for tune_missing.
        again: Compare it also if the database has a comparison.
    """
    from autotune.tuner import TuningTarget
    from fused_resnet.runs import work_deadline
    from fused_resnet.training.step_comparison import compare_graph, compared_text

    target = TuningTarget.of_device(torch.device("cpu"))
    until = work_deadline(_budget(target, limits), started)
    try:
        plan = compare_graph(where, graph_module, example_inputs, problems, until, again)
    except Exception as error:  # compiling may fail in any way, and the problems are tuned
        warnings.warn(f"the training step is not compared with torch: {in_one_line(error)}", stacklevel=3)
        return
    if plan:
        print(f"autotune: a training step: {compared_text(plan)}", file=sys.stderr)


def _budget(target: TuningTarget, limits: TuneLimits) -> float:
    """Return the seconds of a run."""
    return target.budget if limits.seconds is None else limits.seconds


def _searched(target: TuningTarget, limits: TuneLimits) -> Searched:
    from autotune.tuner import Searched, inductor_modes

    return Searched(
        limits.families,
        limits.trials or target.trials,
        _budget(target, limits),
        bool(inductor_modes(target.device)),
    )


def _run(
    store: Store,
    target: TuningTarget,
    request: TuneRequest,
    limits: TuneLimits,
    started: float | None,
    kept: float = 0.0,
) -> None:
    """Tune what is requested; the budget counts from `started`, and a share of what is left of it is kept."""
    from autotune.measure import Timing
    from autotune.tuner import LineProgress, Machines
    from fused_resnet.runs import run_options, start_run, work_deadline

    assert target.device and target.name
    budget, timing = _budget(target, limits), Timing()
    deadline = work_deadline(budget, started)
    deadline = deadline.before(kept * deadline.left)
    here = Machines.of_this(target.arch.name, [target.device], limits.jobs)
    options = run_options(target, here.jobs, [request], trials=limits.trials, only=limits.families)
    title = f"autotune: tuning {len(request.named)} layers of {request.title} for {target.name}"
    if started is not None:
        title += f"; capture and imports took {deadline.elapsed:.0f} s of the {budget:.0f} s"
    (group,) = here.groups
    with ExitStack() as stack:
        workers = [stack.enter_context(worker) for worker in group.workers(timing, deadline)]
        progress = stack.enter_context(LineProgress(title, started=deadline.start))
        outcome = start_run(
            store, target, [request], options, workers, deadline, progress, timing=timing, start_batch=here.start_batch
        )
        if outcome.interrupt:
            progress.end("interrupted: every finished trial is kept, and the same call continues")
            raise outcome.interrupt
        _show_end(progress, outcome.tuner, target, request)


def _show_end(progress: LineProgress, tuner: Tuner, target: TuningTarget, request: TuneRequest) -> None:
    """Write the time of the network, or that of its layers; warn if this process would not find them."""
    from autotune.tuner import SLOWED, layer_winners, outcome_text, sum_us

    if tuner.device is None:
        progress.end("the budget ended before the measuring process had started: give a longer budget")
        return
    network, where = request.network, tuner.store.name
    if network and (plan := tuner.store.plan(tuner.device, network.key)):
        progress.end(f"done: {outcome_text(plan)}; database {where}")
    else:
        layers = [(one.name, one.problem) for one in network.layers] if network else request.named
        lines = list(layer_winners(tuner.store, tuner.device, layers))
        times = [line.time_us for line in lines]
        total = sum_us(times)
        timed = f"{sum(map(bool, times))} of {len(times)} layers were timed"
        slowed = f", {SLOWED}" if any(line.is_throttled for line in lines) else ""
        says = timed if total is None else f"the layers take {total:.1f} us{slowed}"
        progress.end(f"done: {says}; database {where}")
    here = target.name
    if here != tuner.device.name:
        warnings.warn(
            f"the kernels were timed on '{tuner.device.name}', and this process is '{here}': set OMP_NUM_THREADS "
            "before the program starts, instead of torch.set_num_threads, so that both have the same threads",
            stacklevel=5,
        )
