"""The order in which the plans of several networks are tuned on one device while Inductor compiles them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from two_layer_network import NETWORK, VALLEYS, TableDevice, put_kernels

from autotune.core import Deadline, architecture
from autotune.ir import NetworkKey
from autotune.tuner.plan.settling import Settling
from autotune.tuner.progress import Progress
from autotune.tuner.time_shares import SETTLING, Phases, TimeBreakdown
from tuning_db import Store

NETWORKS = [replace(NETWORK, identity=NetworkKey("net", n, (("dtype", "f32"),))) for n in (1, 32, 128)]


class Trials:
    """Stands for the trials of a network beside the search: they end when they were looked at some times."""

    num_tried = 0

    def __init__(self, looks):
        self.looks, self.closed = looks, False

    @property
    def is_done(self):
        return self.looks <= 0

    def advance(self):
        self.looks -= 1

    def close(self):
        self.closed = True


class Pool(dict):
    """Stands for the trials of all networks."""

    def trials(self, network):
        return self.get(network.key)


class Stages(Progress):
    def __init__(self):
        self.stages = []

    def stage(self, name):
        self.stages.append(name)


def order(tmp_path, looks, seconds):
    """Return the stages of settling, and the trials of each network."""
    pool = Pool({network.key: Trials(count) for network, count in zip(NETWORKS, looks, strict=True)})
    with Store.create(tmp_path / "net.db") as store:
        device, _ = put_kernels(store)
        stages, workers = Stages(), [TableDevice(VALLEYS)]
        run = SimpleNamespace(
            store=store, device=device, queues=SimpleNamespace(workers=workers), beside=pool, progress=stages,
            breakdown=TimeBreakdown(), planned=NETWORKS, phases=Phases(Deadline.after(seconds), [SETTLING]),
            options=SimpleNamespace(arch=architecture("sm90")),
        )  # fmt: skip
        Settling(run, {}).run()
        assert all(store.plan(device, network.key) for network in NETWORKS)
    return [stage.rpartition(" ")[2] for stage in stages.stages], list(pool.values())


@pytest.mark.parametrize("looks, expected", [([0, 0, 0], ["1", "32", "128"]), ([40, 8, 4], ["128", "32", "1"])])
def test_a_network_that_inductor_has_compiled_comes_first(looks, expected, tmp_path):
    stages, trials = order(tmp_path, looks, 300.0)
    assert ("Inductor" in stages) == any(looks)
    assert [stage for stage in stages if stage != "Inductor"] == expected
    assert all(one.closed for one in trials)


def test_no_network_is_waited_for_beyond_its_share(tmp_path):
    stages, trials = order(tmp_path, [10**9] * 3, 3.0)
    assert [stage for stage in stages if stage != "Inductor"] == ["1", "32", "128"] and stages[0] == "Inductor"
    assert all(one.closed for one in trials)
