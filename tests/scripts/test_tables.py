"""Texts of the tables that several subcommands print."""

import io

import pytest
from rich.console import Console

from autotune.ir import parse
from autotune.tuner import SLOWED, Failure, LayerWinner
from autotune_cli.tables import failure_counts, total_us, winners

pytestmark = pytest.mark.unit


def test_failures_are_counted_by_kind_the_most_frequent_first():
    found = [
        Failure("a 64x64", "does not compile", "error: expected a ';'", 2),
        Failure("b 32x32", "wrong", "y has a relative error of 0.5", 30),
        Failure("c 32x32", "wrong", "y has a relative error of 0.1", 4),
    ]
    assert failure_counts(found) == "36 candidates failed (34 wrong, 2 does not compile)"


@pytest.mark.parametrize(("dtype", "torch_us"), [("f32", 100.0), ("s8", None), ("e4m3", None)])
def test_torchs_emulation_of_bytes_is_not_compared_with(dtype, torch_us):
    problem = parse(f"conv2d n=4 h=8 w=8 c=64 k=64 r=3 s=3 pad=1 dtype={dtype}")
    assert total_us([LayerWinner("a", problem, "w", time_us=2.0, speed_up=50.0)]) == (2.0, torch_us)


def test_there_is_no_sum_of_lines_some_of_which_have_no_time():
    problem = parse("conv2d n=4 h=8 w=8 c=64 k=64 r=3 s=3 pad=1 dtype=f32")
    timed, untimed = LayerWinner("a", problem, "w", time_us=2.0, speed_up=50.0), LayerWinner("b", problem, "-")
    assert total_us([timed, timed]) == (4.0, 200.0)
    assert total_us([timed, untimed]) == (None, None)


@pytest.mark.parametrize("is_throttled", [False, True])
def test_a_table_of_times_that_other_processes_have_made_longer_says_so(is_throttled):
    problem, printed = parse("gemm m=4 n=4 k=4 dtype=f32"), io.StringIO()
    lines = [LayerWinner("a", problem, "w", 2.0), LayerWinner("b", problem, "w", 2.0, is_throttled=is_throttled)]
    Console(file=printed, width=120).print(winners(lines, "title", "layer"))
    assert (SLOWED in " ".join(printed.getvalue().split())) == is_throttled
