"""The live display of a tuning run."""

import io

import pytest
from rich.console import Console

from autotune.core import Deadline
from autotune.ir import parse
from autotune_cli.tune_progress import LiveProgress

pytestmark = pytest.mark.unit
CONV = "conv2d n=2 h=8 w=8 c=8 k={} r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=none"
PROBLEMS = [parse(CONV.format(8 * (i + 1))) for i in range(40)]


def shown(progress, console):
    console.file = io.StringIO()
    console.print(progress.view())
    return console.file.getvalue().splitlines()


def progress_of(console, added=()):
    layers = [(f"layer{i}", problem) for i, problem in enumerate(PROBLEMS)]
    return LiveProgress(console, layers, Deadline.after(100), added)


def test_the_sum_of_the_layers_is_compared_with_torch_once_all_are_known():
    console = Console(width=100, height=60)
    progress = progress_of(console, [PROBLEMS[0], PROBLEMS[1], PROBLEMS[0]])
    progress.stage("searching")
    progress.measured(str(PROBLEMS[0]), 1, 10.0)
    assert "all layers" not in shown(progress, console)[0]
    progress.measured(str(PROBLEMS[1]), 1, 5.0)
    assert "; all layers 25.0 us" in shown(progress, console)[0]
    progress.operator_timed(str(PROBLEMS[0]), 40.0)
    assert "faster" not in shown(progress, console)[0]
    for us in (30.0, 20.0, 25.0):
        progress.operator_timed(str(PROBLEMS[1]), us)
    assert "all layers 25.0 us, 4.00x faster than torch's operators" in shown(progress, console)[0]


def test_a_deep_network_fits_the_terminal():
    console = Console(width=80, height=24)
    progress = progress_of(console)
    for i, problem in enumerate(PROBLEMS):
        progress.measured(str(problem), 1, 1.0 + i)
    lines = shown(progress, console)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert all(line.rstrip().endswith(".0") for line in lines[4:])
    names = [line.split()[0] for line in lines if line.startswith("layer") and not line.startswith("layer ")]
    assert names == [f"layer{i}" for i in range(40 - len(names), 40)]  # the slowest, in the order of the network
