"""What tune.py says when it ends: winners, gaps, trade-offs, and what it all took."""

from __future__ import annotations

from rich.console import Console

from autotune.families import serving
from autotune.tuner import Tuning, illegal, lines, unserved
from autotune.tuner import failures as failed
from autotune_cli.tables import failures, spent, tradeoffs, winners
from autotune_cli.tune_progress import LiveProgress
from autotune_cli.tune_request import Work


def show_compiled(console: Console, tuning: Tuning) -> None:
    """What was done where nothing could be timed."""
    options = tuning.options
    rows = tuning.workshop.rows.values()
    compiled = sum(row.error is None for row in rows)
    console.print(f"\n{compiled} kernels compiled for {options.target}, {len(rows) - compiled} would not compile.")
    console.print(f"[bold]Nothing was timed:[/] no GPU here runs {options.arch.name} code. Run the same command with")
    console.print("the same database on a machine with one; it starts from what is compiled.")


def show_winners(console: Console, tuning: Tuning, wanted: Work) -> None:
    """The table of winners and, of a network on a GPU, what the whole takes."""
    title = f"{wanted.title}, {tuning.options.arch.name} kernels on {tuning.device.name}"
    found = list(lines(tuning.store, tuning.device, wanted.named))
    if wanted.network is None:
        console.print(winners(found, title, "number"))
        return
    count = len(wanted.network.layers)  # the alternatives' come after them
    others = [line for line in found[count:] if serving(line.problem, tuning.options.arch)]  # show_gaps names the rest
    console.print(winners(found[:count], title, "layer", others))
    if plan := tuning.store.plan(tuning.device, wanted.network.key):
        gain = plan.details["alone_us"] / plan.median_us
        taken = ", ".join(plan.details["alternatives"]) or "none"
        console.print(
            f"The network as one CUDA graph: {plan.median_us:.1f} us, {gain:.2f} times as fast as with the layers' "
            "winners above: where other candidates are faster among their neighbours, they were taken. "
            f"Alternatives taken: {taken}",
            highlight=False,
        )


def show_gaps(console: Console, tuning: Tuning, wanted: Work) -> None:
    """Problems that only torch solves, what failed and, for single problems, configs that are not legal."""
    arch = tuning.options.arch
    searched = {study.space.problem for study in tuning.searches.studies if study.total}
    needed = len(wanted.network.layers) if wanted.network else len(wanted.named)  # alternatives' layers come after them
    gaps: dict[str, list[str]] = {}
    for name, problem in wanted.named[:needed]:
        if problem in searched:
            continue
        if tuning.options.only and serving(problem, arch):
            reason = "not searched: --only names no family of theirs"
        else:
            reason = f"{unserved(problem, arch)}: torch's operators are all there is"
        gaps.setdefault(reason, []).append(name)
    for reason, names in gaps.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        console.print(f"{', '.join(names[:3])}{more}: {reason}.", markup=False)
    if unmade := [name for name, problem in wanted.named[needed:] if not serving(problem, arch)]:
        console.print(f"no kernels for the alternatives {', '.join(unmade)} on {arch.name}", highlight=False)
    if not wanted.network:
        for sentence in dict.fromkeys(text for problem in tuning.problems for text in illegal(problem, arch)):
            console.print(sentence, markup=False, highlight=False)
    device = tuning.device if tuning.worker else None
    for line in failures(failed(tuning.store, device, tuning.problems, tuning.workshop.rows.values())):
        console.print(line, highlight=False)


def show_tradeoffs(console: Console, tuning: Tuning, wanted: Work) -> None:
    """Of several objectives, the candidates of each problem that no other beats in all of them."""
    objectives = tuning.options.objectives
    if objectives != ("time",):
        console.print(tradeoffs(tuning.store, tuning.device, wanted.named, objectives))


def show_cost(console: Console, tuning: Tuning, progress: LiveProgress, database: str) -> None:
    """What compiling cost, where the time went, and where the results are."""
    shop = tuning.workshop
    if shop.compiled:
        rate = 60 * shop.compiled / shop.compile_seconds
        took = f"{shop.compile_seconds:.0f} core-seconds"
        console.print(f"kernels compiled: {shop.compiled} in {took}, {rate:.0f} a core-minute", highlight=False)
    if tuning.ledger.trials:
        console.print(spent(tuning.ledger))
    console.print(progress.parts())
    console.print(f"database {database}", highlight=False)
