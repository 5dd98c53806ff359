"""Images of a size for which nothing was tuned run on the kernels of a tuned size, without any compilation."""

import shutil
import warnings

import pytest
import torch
from comparison import relative_error
from planned_database import with_plan
from processes import TUNED_BATCH
from seed_network import LIMIT, fused, images, plain
from torch._dynamo.utils import counters

from autotune.core import device_name
from autotune.libraries import aten, inductor
from tuning_db import Store

SIZES = [(1, 96, 64), (TUNED_BATCH, 64, 80), (2, 160, 160), (1, 32, 48), (5, 112, 64)]


@pytest.fixture(scope="module")
def planned_db(tuned_db, tmp_path_factory):
    return with_plan(tuned_db, tmp_path_factory.mktemp("planned") / "planned.db")


@pytest.fixture
def no_compiler(monkeypatch):
    """Let Inductor be wanted, and fail if it compiles anything."""
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "1")
    monkeypatch.setattr(inductor, "why_unavailable", lambda device: None)
    monkeypatch.setattr(inductor, "bind", lambda *_: pytest.fail("something is compiled"))


@pytest.mark.filterwarnings("ignore:.*is not tuned")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_another_size_runs_on_the_tuned_kernels(planned_db, no_compiler, size):
    n, h, w = size
    net, x = fused(planned_db), torch.randn(n, 3, h, w, generator=torch.Generator().manual_seed(h))
    with torch.no_grad():
        assert relative_error(net(x), plain()(x)) < LIMIT
    at_tuned_size, here = net.explain(images(TUNED_BATCH)), net.explain(x)
    assert [row.kernel for row in here] == [row.kernel for row in at_tuned_size]
    batch = f"batch {TUNED_BATCH}, " if n != TUNED_BATCH else ""
    assert {row.source for row in here} == {f"{batch}size 3x64x64"}


def test_times_are_expected_in_proportion_to_the_limits(planned_db):
    net = fused(planned_db)
    with pytest.warns(UserWarning, match="is not tuned"):
        here = net.explain(torch.randn(TUNED_BATCH, 3, 128, 64))
    tuned = {row.layer: row.expected_us for row in net.explain(images(TUNED_BATCH))}
    for row in here:
        assert 1.0 < row.expected_us / tuned[row.layer] < 2.1 and row.loss is None


def test_further_sizes_are_silent(planned_db):
    net = fused(planned_db)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for h in (64, 80, 96, 112):
            net(torch.randn(TUNED_BATCH, 3, h, 64))
    [message] = [str(one.message) for one in caught]
    assert "(3x80x64)" in message and "size 3x64x64" in message and "further image sizes" in message


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_where_torch_was_faster_as_a_whole_it_runs_other_sizes_too(planned_db, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "1")
    monkeypatch.setattr(inductor, "why_unavailable", lambda device: "no compiler")
    path = tmp_path / "whole.db"
    shutil.copy(planned_db, path)
    with Store.create(path) as store:
        device = store.device(device_name(torch.device("cpu")))
        [key] = store.planned(device)
        store.put_plan(
            device_id=device.id,
            network=key,
            median_us=0.5,
            spread_us=0.0,
            choices=[],
            details={"alternatives": ["torch"]},
        )
    shown = fused(path).explain(torch.randn(TUNED_BATCH, 3, 96, 96))
    assert {row.kernel.split()[0] for row in shown} == {aten.FAMILY}


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_a_dynamic_graph_of_dynamo_runs_other_sizes_so_too(planned_db, no_compiler):
    """Dynamo treats a size of 1 as a constant, and all others as variables."""
    model = plain()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "backend='autotune' ")  # no graph is left to Inductor
        torch._dynamo.reset()
        counters.clear()
        fast = torch.compile(model, backend="autotune", dynamic=True, options={"tuning_db": str(planned_db)})
        for n, h, w in SIZES:
            x = torch.randn(n, 3, h, w)
            assert relative_error(fast(x), model(x)) < LIMIT
    assert counters["stats"]["unique_graphs"] <= 3
