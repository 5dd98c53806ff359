"""Draws the chart of `train.py`: loss curves of torch's trainings and of one on tuned kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from training_curves import TORCH, Run

from autotune_cli.chart import FAINT, INK
from autotune_cli.chart import OURS as OUR_COLOR

OTHER_SEEDS, BAND, SAME_SEED = "#aeb6c2", "#eceff4", "#e0a458"


def draw(runs: Sequence[Run], device: str, path: Path) -> None:
    """Draw the curves.

    Args:
        runs: The trainings; the first seed is that of the training on tuned kernels.
        device: Name of the device, for the title.
        path: The image file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), dpi=160, facecolor="white", layout="constrained")
    axis = figure.subplots()
    figure.suptitle(f"Training loss, SE-ResNet9-Fixup, {device}", x=0.012, ha="left", color=INK, fontsize=14,
                    fontweight="bold")  # fmt: skip
    axis.set_title("the band spans torch's runs with all seeds", loc="left", color=FAINT, fontsize=10)
    theirs = [run for run in runs if run.way == TORCH]

    def steps(run: Run) -> list[float]:
        curve = run.curve()
        return [(i + 0.5) * len(run.losses) / len(curve) for i in range(len(curve))]

    if theirs:
        points = list(zip(*(run.curve() for run in theirs), strict=True))
        axis.fill_between(steps(theirs[0]), [min(p) for p in points], [max(p) for p in points], color=BAND, zorder=1)
    for run in (*theirs[1:], *theirs[:1], *(run for run in runs if run.way != TORCH)):
        ours, first = run.way != TORCH, run.seed == 0
        color, width = (OUR_COLOR, 1.6) if ours else (SAME_SEED, 2.6) if first else (OTHER_SEEDS, 1.0)
        name = "tuned kernels" if ours else "torch"
        axis.plot(steps(run), run.curve(), color=color, linewidth=width, zorder=4 if ours else 3 if first else 2,
                  label=f"{name}, seed {run.seed}, top-1 {run.top1:.1%}")  # fmt: skip
    axis.set_xlabel("step", color=FAINT)
    axis.set_ylabel("loss", color=FAINT)
    axis.grid(axis="y", color="#e8ebf0", zorder=0)
    axis.legend(frameon=False, labelcolor=INK)
    axis.tick_params(length=0, labelcolor=FAINT)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)
