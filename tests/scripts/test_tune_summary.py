"""The end of a tune's output names the problems that were not searched, and says why."""

import io

import pytest
from rich.console import Console

from autotune.core import architecture
from autotune.ir import parse
from autotune.tuner import Progress, Tuner, TuneRequest, TunerOptions
from autotune_cli.tune_summary import show_gaps
from tuning_db import Store

SM90 = architecture("sm90")
POOL = parse("avg_pool2d n=4 h=8 w=8 c=64 r=3 s=3 stride=1 dtype=f16")


@pytest.mark.parametrize("enumerated", [False, True])
def test_a_run_that_ended_before_its_search_says_so(tmp_path, enumerated):
    """Also if the configs were already enumerated."""
    with Store.create(tmp_path / "a.db") as store:
        tuner = Tuner(store, [POOL], TunerOptions(SM90, "sm_90", trials=8, jobs=1), [], Progress())
        if enumerated:
            tuner.study_manager.enumerate()
        printed = io.StringIO()
        request = TuneRequest("net", "net", [("pool", POOL)])
        show_gaps(Console(file=printed, width=200), tuner, [request], verbose=False)
    assert "pool: not searched: the budget was too short." in printed.getvalue()
