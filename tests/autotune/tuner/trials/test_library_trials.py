"""Plans of libraries that workers list for the tuner."""

import pytest
import torch
from cudnn_records import CONFIG, TEXT

from autotune.core import NEVER, device_target
from autotune.ir import parse
from autotune.libraries import cudnn
from autotune.measure import Worker
from autotune.tuner import LibraryCandidates
from tuning_db import Store

CPU = torch.device("cpu")


@pytest.mark.process
def test_a_worker_without_cudnn_says_so_and_stores_nothing(tmp_path):
    with (
        Store.create(tmp_path / "plans.db") as store,
        LibraryCandidates(store, [Worker("cpu")], [parse(TEXT)], device_target(CPU)) as listing,
    ):
        [(_, rows, reason)] = listing.ready(NEVER)
        assert rows == [] and "GPU" in reason and "\n" not in reason and listing.is_done
        assert store.counts()["kernel"] == 0


@pytest.mark.process
def test_listing_that_is_given_up_ends_its_process(tmp_path):
    worker = Worker("cpu")
    with Store.create(tmp_path / "plans.db") as store:
        with LibraryCandidates(store, [worker], [parse(TEXT)], device_target(CPU)) as listing:
            assert list(listing.ready()) == [] and not listing.is_done  # the process is still starting
        assert worker.pid is None


class Offering:
    """Stands in for the process with a GPU's cuDNN in it: offers two plans for each problem, the second broken."""

    def __init__(self):
        self.asked = []

    def library_plans(self, problem, deadline):
        self.asked.append(problem)
        configs = [{**CONFIG, "plan": f"eng{rank}", "rank": rank, "of": 2} for rank in range(2)]
        plans = (
            cudnn.SerializedPlan(configs[0], b"plan", None),
            cudnn.SerializedPlan(configs[1], b"", "cannot be built"),
        )
        return cudnn.SerializedPlans(CONFIG["made_by"], plans if problem else ())

    def stop(self):
        self.asked.append("stop")


def test_plans_are_listed_once(tmp_path):
    first, second = parse(TEXT), parse(TEXT.replace("n=2", "n=3"))
    with Store.create(tmp_path / "plans.db") as store:
        for problems, asked in (([first], [None, first]), ([first, second], [None, second]), ([second], [None])):
            worker = Offering()
            with LibraryCandidates(store, [worker], problems, "sm_90") as listing:
                listed = list(listing.ready(NEVER))
            assert worker.asked == [*asked, "stop"]
            assert [problem for problem, *_ in listed] == problems
            for problem, rows, reason in listed:
                assert reason is None and [row.error for row in rows] == [None, "cannot be built"]
                assert [bool(row.library) for row in rows] == [True, False]
                assert {row.symbol for row in rows} == {str(problem)}
