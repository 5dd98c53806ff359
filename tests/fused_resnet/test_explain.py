"""The table of layers: kernels, sources and expected times."""

import sqlite3
from contextlib import closing

import pytest
from processes import TUNED_BATCH
from seed_network import fused, images

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture(scope="module")
def net(tuned_db):
    """A network for tests that leave it as it is."""
    return fused(tuned_db)


def test_explain_is_a_table(net):
    shown = net.explain(images(TUNED_BATCH))
    text = str(shown).splitlines()
    assert len(shown) == len(list(shown)) and all(len(line) <= 80 for line in text)
    assert all(any(row.layer[-20:] in line for line in text) for row in shown)
    assert not any("nothing is tuned" in line for line in text)
    assert all(row.source == "tuned" and row.loss == 0 and row.limit_share > 0 for row in shown)
    assert shown.expected_us == pytest.approx(sum(row.expected_us for row in shown))


@pytest.mark.parametrize(("n", "runs"), [(1, 1), (TUNED_BATCH - 1, 1), (2 * TUNED_BATCH, 2), (2 * TUNED_BATCH + 1, 3)])
def test_a_neighbours_kernels_are_expected_to_lose_something(net, tuned_db, n, runs):
    """One tuned batch: its kernels run as often as it goes into the other, and no kernel takes less than the limit."""
    with closing(sqlite3.connect(tuned_db)) as connection:
        times = connection.execute("SELECT median_us FROM measurement WHERE status = 'ok'").fetchall()
    for row in net.explain(images(n)):
        assert row.source == f"batch {TUNED_BATCH}"
        assert any(row.expected_us == pytest.approx(runs * time) for (time,) in times)
        assert 0 <= row.loss <= max(0.0, 1 / row.limit_share - 1) + 1e-9


def test_what_is_faster_in_other_layers_is_at_a_neighbours_batch_too(net):
    tuned, other = ([row.layer for row in net.explain(images(n))] for n in (TUNED_BATCH, TUNED_BATCH + 3))
    assert other == tuned


def test_untuned_layers_are_not_given_times(tuned_db):
    shown = fused(tuned_db).bfloat16().explain(images(1).bfloat16())
    assert shown.expected_us is None
    assert {(row.source, row.expected_us, row.loss) for row in shown} == {("untuned", None, None)}
    assert all(len(line) <= 80 for line in str(shown).splitlines()) and "nothing is tuned" in str(shown)
