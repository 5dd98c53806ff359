"""Prints the end of `autotune tune`: winners, problems without kernels, trade-offs, and where the time went."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from autotune.core.errors import fault_counts
from autotune.families import serving
from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS, WHOLE, Problem
from autotune.ir.operators import TorchCall
from autotune.measure import THROTTLED
from autotune.tuner import (
    SLOWED,
    Tuner,
    TuneRequest,
    layer_winners,
    outcome_text,
    rejected_configs,
    runner,
    unsupported_reason,
)
from autotune.tuner import failures as failed
from autotune_cli.tables import failure_counts, failures, phases, spent, survived, total_us, tradeoffs, winners
from autotune_cli.tune_progress import LiveProgress
from fused_resnet.model_source import PRODUCTS
from fused_resnet.networks.se_resnet9_fixup import MODELS
from tuning_db.schema import PlanRow


def show_compiled(console: Console, tuner: Tuner) -> None:
    """Print how many kernels were compiled, for a run without a device."""
    options = tuner.options
    rows = tuner.builder.rows.values()
    compiled = sum(row.error is None for row in rows)
    console.print(f"\n{compiled} kernels compiled for {options.target}, {len(rows) - compiled} would not compile.")
    show_skipped(console, tuner)
    console.print(
        f"[bold]Nothing was timed:[/] this machine has no GPU that runs {options.arch.name}. Run the same command"
    )
    console.print("with the same database on a machine that has one: the compiled kernels are reused.")


def show_winners(console: Console, tuner: Tuner, request: TuneRequest, verbose: bool) -> None:
    """Print the table of winners and, with `verbose`, alternatives and sentences about the plan of a network.

    The winners of single problems are what was asked for, so they are printed in any case.
    """
    assert tuner.device
    title = f"{request.title}, {tuner.options.arch.name} kernels on {tuner.device.name}"
    found = list(layer_winners(tuner.store, tuner.device, request.named))
    if request.network is None:
        name = "layer" if request.is_step else "number"
        console.print(winners(found, title, name, is_short=request.is_step and not verbose))
        return
    count = len(request.network.layers)  # the layers of the alternatives follow
    others = [line for line in found[count:] if serving(line.problem, tuner.options.arch)]  # show_gaps lists the rest
    shown = others if verbose else []
    console.print(winners(found[:count], title, "layer", is_network=True, alternatives=shown, is_short=not verbose))
    plan = tuner.store.plan(tuner.device, request.network.key)
    if plan and verbose:
        fallback = tuner.store.plan(tuner.device, str(request.network.identity.precompiled))
        console.print(plan_text(plan, fallback, tuner.options.arch.is_cuda), highlight=False)


def plan_text(plan: PlanRow, fallback: PlanRow | None, is_cuda: bool) -> str:
    """Return sentences about the plan of a network, and about torch's operators for the whole of it.

    Args:
        plan: The plan.
        fallback: The plan for machines without a compiler, if there is one.
        is_cuda: Whether the network runs on a GPU.
    """
    gain, taken = plan.details["alone_us"] / plan.median_us, plan.details["alternatives"]
    faster = f"{gain:.2f}x faster than with the winners above" if gain else "and the winners above were not timed"
    text = f"The network {'as one CUDA graph' if is_cuda else 'as a whole'}: {plan.median_us:.1f} us, "
    text += f"{SLOWED}, " if plan.details.get(THROTTLED) else ""
    whole = plan.details.get("torch_us", {})
    if WHOLE in taken:
        fastest = min(whole, key=whole.__getitem__, default="")
        named = f"{runner(fastest)} ({fastest})" if whole else "an operator of torch for the whole network"
        text += f"{faster}: {named} is fastest and runs it"
        return f"{text}; without a compiler {fallback.median_us:.1f} us" if fallback else text
    text += faster
    text += ", because inside the graph other candidates of some layers are faster" if is_cuda else ""
    text += f". Alternatives taken: {', '.join(taken) or 'none'}"
    slower = [f"{us / plan.median_us:.2f}x faster than {name} ({us:.1f} us)" for name, us in whole.items()]
    return f"{text}. It is {', '.join(slower)}" if slower else text


def show_gaps(console: Console, tuner: Tuner, requests: Sequence[TuneRequest], verbose: bool) -> None:
    """Print the problems without kernels, the failures and, for single problems, the rejected configs.

    Of a network and of a training step, the alternatives without kernels and the messages of failures are printed with
    `verbose` only.
    """
    arch = tuner.options.arch
    gaps: dict[str, dict[str, None]] = {}
    unmade: dict[str, None] = {}
    for request in requests:
        needed = len(request.network.layers) if request.network else len(request.named)
        for name, problem in request.named[:needed]:
            if reason := _why_not_searched(tuner, problem):
                gaps.setdefault(reason, {})[name] = None
        for layer in request.network.all_layers[needed:] if request.network else ():  # those of the alternatives
            if not isinstance(layer.problem, TorchCall) and not serving(layer.problem, arch):
                unmade[layer.name] = None
    for reason, names in gaps.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        console.print(f"{', '.join(list(names)[:3])}{more}: {reason}.", markup=False)
    if unmade and verbose:
        console.print(f"no kernels for the alternatives {', '.join(unmade)} on {arch.name}", highlight=False)
    are_single = not (tuner.networks or requests[0].is_step)
    if are_single:
        for sentence in dict.fromkeys(text for problem in tuner.problems for text in rejected_configs(problem, arch)):
            console.print(sentence, markup=False, highlight=False)
    found = failed(tuner.store, tuner.device, tuner.problems, tuner.builder.rows.values())
    if verbose or are_single:
        for line in failures(found):
            console.print(line, highlight=False)
    elif found:
        console.print(f"{failure_counts(found)}: --verbose says why", highlight=False)
    show_skipped(console, tuner)


def _why_not_searched(tuner: Tuner, problem: Problem) -> str:
    """Return the reason why no configs were searched for a problem; empty if some were."""
    arch = tuner.options.arch
    if any(study.space.problem == problem and study.total for study in tuner.study_manager.studies):
        return ""
    if tuner.options.only and serving(problem, arch):
        return "not searched: --only names no family that supports it"
    if serving(problem, arch) and problem not in tuner.study_manager.without_configs:
        return "not searched: the budget was too short"
    return f"{unsupported_reason(problem, arch)}: only torch's operators run it"


def show_skipped(console: Console, tuner: Tuner) -> None:
    """Print how many kernels were skipped because their compilers were killed."""
    if skipped := tuner.builder.skipped:
        console.print(
            f"[bold]skipped[/] {len(skipped)} kernels: their compilers were killed, also when one ran alone, which "
            "happens when memory runs out. Nothing is recorded, so the next run tries them again. The first one said:",
            highlight=False,
        )
        console.print(next(iter(skipped.values())), markup=False, highlight=False)


def show_faults(console: Console) -> None:
    """Print the faults that the run has survived, if there were any."""
    if found := fault_counts():
        console.print(survived(found))


def show_tradeoffs(console: Console, tuner: Tuner, request: TuneRequest) -> None:
    """Print the Pareto front of each problem, for several objectives."""
    objectives = tuner.options.objectives
    if tuner.device and objectives != ("time",):
        console.print(tradeoffs(tuner.store, tuner.device, request.named, objectives))


def show_cost(console: Console, tuner: Tuner, progress: LiveProgress, verbose: bool) -> None:
    """Print the cost of compiling and, with `verbose`, where the time went."""
    builder = tuner.builder
    if builder.copied:
        console.print(f"kernels copied from other databases: {builder.copied}", highlight=False)
    if builder.compiled:
        rate = 60 * builder.compiled / builder.compile_seconds
        took = f"{builder.compile_seconds:.0f} core-seconds"
        console.print(f"kernels compiled: {builder.compiled} in {took}, {rate:.0f} a core-minute", highlight=False)
    if not verbose:
        if tuner.breakdown.trials:
            total = f"{tuner.breakdown.trials} trials in {tuner.breakdown.total:.0f} s"
            console.print(f"{total}; --verbose shows kernels, alternatives, where time went", highlight=False)
        return
    if tuner.breakdown.trials:
        console.print(spent(tuner.breakdown))
    if times := tuner.phases.times():
        console.print(phases(times))
    console.print(progress.parts())


def show_outcome(console: Console, tuner: Tuner, requests: Sequence[TuneRequest], database: str) -> None:
    """Print the time of each network, how much faster that is than torch, the database, and the line that loads it."""
    for request in requests if tuner.device else ():
        if text := _outcome(tuner, request):
            console.print(f"[bold]{request.title}:[/] {text}", highlight=False)
    console.print(f"database {database}", highlight=False, markup=False, soft_wrap=True)
    if tuner.device and (requests[0].network or requests[0].is_step):
        console.print(_use(requests[0], database), highlight=False, markup=False, soft_wrap=True)


def _outcome(tuner: Tuner, request: TuneRequest) -> str:
    """Return the time of a network beside torch's; without a plan the sums over its layers; empty if there is none."""
    assert tuner.device
    if request.network is None:
        return ""
    if plan := tuner.store.plan(tuner.device, request.network.key):
        return outcome_text(plan)
    layers = request.named[: len(request.network.layers)]
    lines = list(layer_winners(tuner.store, tuner.device, layers))
    own, torch = total_us(lines)
    slowed = f", {SLOWED}" if any(line.is_throttled for line in lines) else ""
    if own is None:
        timed = sum(bool(line.time_us) for line in lines)
        return f"{timed} of its {len(lines)} layers were timed" if timed else ""
    if any(problem.dtype in BYTE_FORMATS for _, problem in layers):
        precision = _precision(request)
        return (
            f"its layers take {own:.1f} us{slowed}; torch only emulates {precision}: autotune bench --precision "
            f"{precision} --only fused,fused_full,compile compares it with the network in full precision"
        )
    if torch is None:
        return f"its layers take {own:.1f} us{slowed}"
    return f"its layers take {own:.1f} us, {torch / own:.2f}x faster than torch's operators ({torch:.1f} us){slowed}"


def _use(request: TuneRequest, database: str) -> str:
    """Return the line of Python that runs what was tuned."""
    options = {"tuning_db": database}
    if precision := _precision(request):
        options["precision"] = precision
    if request.is_step:
        return f'torch.compile(model, backend="autotune", dynamic=False, options={json.dumps(options)})'
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    if request.name in MODELS:
        return f"FusedResNet({arguments})"
    return f"FusedResNet.from_model(model, {arguments}{', calibration=batches' * (precision in BYTE_PRECISIONS)})"


def _precision(request: TuneRequest) -> str | None:
    """Return the precision that a network or a step was tuned in; None for that of its tensors."""
    dtypes = {problem.dtype for problem in request.problems}
    if request.network:  # without a layer that gains by it, too
        dtypes.update(dict(request.network.identity.properties).get("dtype", "").split("+"))
    return next((name for name, dtype in PRODUCTS.items() if dtype in dtypes), None)
