"""The report of a database: what it collects, its page as text, and its errors."""

import dataclasses
import html.parser
import json
import math
import random
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
from databases import alter, rows, slow_down
from processes import assert_error, script
from repository import ROOT
from trial_database import DEVICE, HOSTILE, POINTWISE, WIDE, make

from autotune.report import charts
from autotune.report.axes import Axis, log_axis
from autotune.report.charts import history, roofline
from autotune.report.collect import collect
from autotune.report.comparison import compare
from autotune.report.history import PAUSE, runs
from autotune.report.layers import runner
from autotune.report.page import render
from autotune.report.records import Layer, Trial
from autotune.report.sentences import about, size
from fused_resnet.training.kernels.step_plans import step_key
from tuning_db import DatabaseError, Store, evidence

VOID = {"meta", "input", "br", "link", "img"}
MOST_BYTES = 2e6
"""Of the report of a shipped database."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("reports") / "small.db"
    make(path)
    return path


@pytest.fixture(scope="module")
def device(small):
    [found] = collect(small).devices
    return found


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in their order, and keeps attributes and the texts of elements."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def assert_self_contained(page):
    parsed = Page(page)
    for tag, name, value in parsed.attributes:
        assert name not in ("src", "srcset", "background", "action", "data"), (tag, name, value)
        if name in ("href", "xlink:href"):
            assert value.startswith("#"), (tag, value)
    styles = "".join(text for tag, text in parsed.texts if tag == "style")
    scripts = "".join(text for tag, text in parsed.texts if tag == "script")
    assert not re.search(r"@import|url\(", styles)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|https?://(?!www\.w3\.org/2000/svg)", scripts)


def test_a_layer_has_all_trials_and_the_numbers_of_its_problem(device):
    narrow, wide = device.layers
    assert (narrow.problem, wide.problem) == (POINTWISE, WIDE)
    assert len(narrow.trials) == 51 and narrow.us == 10.0 and narrow.family == "tiled" and narrow.runner == "ours"
    assert narrow.library_us == {"ours": 10.0, "cuDNN": 15.0, "torch": 20.0}
    flops, moved = 2 * 128 * 16 * 16, 2 * (128 * 16 + 16 * 16 + 128 * 16)
    assert (narrow.flops, narrow.bytes, narrow.limiter) == (flops, moved, "memory")
    assert narrow.share_of_limit == pytest.approx(moved / DEVICE["bytes_per_us"] / 10)
    assert narrow.flops_per_us == pytest.approx(flops / 10) and narrow.intensity == pytest.approx(flops / moved)
    assert wide.limiter == "arithmetic"
    assert wide.share_of_limit == pytest.approx(2 * 128 * 512 * 512 * 9 / DEVICE["flops_per_us"] / 1000)


def test_rates_of_a_cpu_are_in_gflops(small, device):
    cpu = dataclasses.replace(device, flops_per_us=41_072.0, bytes_per_us=9_589.0)
    report = dataclasses.replace(collect(small), devices=(cpu,))
    page = html.unescape(render(report))
    assert (
        "41.07 GFLOP/s" in page
        and "<th>GFLOP/s</th>" in page
        and "TFLOP/s" not in page.partition('id="environment"')[0]
    )
    rate = cpu.layers[0].flops / cpu.layers[0].us / 1e3
    assert f"<td>{rate:.3g}</td>" in page and f"{rate:.3g} GFLOP/s, " in charts.describe(cpu.layers[0], cpu.unit)
    first, second = (roofline(one).points for one in (device, cpu))
    assert [point.x for point in first] != [point.x for point in second]


def test_networks_of_one_class_are_told_apart_by_their_work(device):
    [network] = device.networks
    known = dataclasses.replace(network, layers=network.layers[:2])
    narrow, wide = 2 * 128 * 16 * 16, 2 * 128 * 512 * 512 * 9
    assert size(network) == "3 layers" and size(known) == f"2 layers, {(narrow + wide) / 1e9:.3g} GFLOP"


def test_a_network_has_the_name_that_the_user_gave_and_what_is_known_of_its_plan(small, device, tmp_path, monkeypatch):
    monkeypatch.setenv(evidence.FILE, str(tmp_path / "evidence.db"))
    [network] = device.networks
    assert not network.label and "autotune verify has not run it on this machine" in about(network)
    assert "It was not compared with PyTorch's operators or torch.compile" in about(
        dataclasses.replace(network, torch_us={})
    )
    path = str(shutil.copy(small, tmp_path / "named.db"))
    alter(path, "UPDATE plan SET details = json_set(details, '$.label', '<b>mine')")
    with Store.open(path) as store:
        [plan] = store.plans()
        evidence.add(evidence.Check(plan.digest, device.name, "580.1", "2.11", "", 0, 1e-4, 1e-4, None, "right"))
    found = collect(path)
    [[network]] = [one.networks for one in found.devices]
    assert network.label == "<b>mine" and network.key == device.networks[0].key
    assert re.search(r"verify found it right on \S+ with driver 580.1, torch 2.11$", network.verified)
    assert f"&lt;b&gt;mine: {network.key}" in render(found)


def test_failures_are_grouped_by_their_cause(device):
    found = {(one.status, one.message): one.count for one in device.layers[0].failures}
    assert found == {("does not compile", "too much shared memory"): 2, ("wrong", HOSTILE): 1}


def test_importances_name_the_parameter_that_decides(device):
    found = {one.family: one for one in device.layers[0].importances}
    assert max(found["tiled"].values, key=found["tiled"].values.get) == "tile"
    assert math.isclose(sum(found["tiled"].values.values()), 1)
    assert not found["aten"].values and "too few" in found["aten"].reason


def test_importances_count_what_was_too_slow_for_all_samples(device, tmp_path):
    make(tmp_path / "a.db")
    alter(tmp_path / "a.db", "UPDATE measurement SET final = 0, samples_us = '[20.0, 20.0]' WHERE median_us > 12")
    [pruned] = collect(tmp_path / "a.db").devices
    assert [one.values for one in pruned.layers[0].importances] == [one.values for one in device.layers[0].importances]


def test_a_plan_finds_its_problems_by_the_times_of_the_trials(device):
    [network] = device.networks
    assert [one.layer and one.layer.problem for one in network.layers] == [POINTWISE, WIDE, None]
    assert network.us == 1010 and network.sum_us == 1017
    assert network.layers[1].share == pytest.approx(1000 / 1017)
    text = ". ".join(about(network))
    for words in ("3 layers", "1010 us", "(aten) take 1500 us", "second.wide", "For 1 layer no stored trial"):
        assert words in text
    assert "too long" not in text
    assert "tune again" in ". ".join(about(dataclasses.replace(network, is_throttled=True)))


def test_the_memory_of_a_plan_is_a_chart(device):
    [network] = device.networks
    chart = charts.memory(network)
    assert (chart.bytes, chart.sum_bytes) == (3 * 2**19, 3 * 2**19)
    assert charts.memory(dataclasses.replace(network, memory=())) is None


def test_a_time_of_two_problems_tells_no_layer(tmp_path):
    make(tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        first, second = (
            connection.execute("SELECT id FROM problem WHERE text = ?", [t]).fetchone()[0] for t in (POINTWISE, WIDE)
        )
        names = "device_id, kernel_id, launch, status, median_us, samples_us, final, details"
        same = f"SELECT {first}, {names} FROM measurement WHERE problem_id = {second}"
        connection.execute(f"INSERT INTO measurement (problem_id, {names}) {same}")
        connection.commit()
    [device] = collect(tmp_path / "a.db").devices
    assert [bool(one.layer) for one in device.networks[0].layers] == [True, False, False]


def test_facts_tell_software_clocks_and_throttling(small, device):
    facts = dict(device.facts)
    assert facts["SM clock"] == "1980 MHz" and facts["throttling"] == "power cap in 48 of 48 trials"
    assert facts["highest arithmetic rate measured"] == "16 TFLOP/s" and facts["multiprocessors"] == "132"
    assert dict(collect(small).facts)["measured with"] == "CUDA 13.0, PyTorch 2.9"


def test_a_tuned_database_gives_the_winners(tuned_db):
    report = collect(tuned_db)
    with Store.open(tuned_db) as store:
        [row] = store.devices()
        best = {text: store.ranking(row, text)[0].median_us for text in store.problem_texts()}
    [device] = report.devices
    assert {layer.problem: layer.us for layer in device.layers} == best and device.networks == ()
    assert sum(len(layer.trials) for layer in device.layers) == rows(tuned_db, "SELECT count(*) FROM measurement")[0][0]


def test_the_plan_of_a_training_step_shows_its_problems(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "step.db")
    with Store.create(path) as store:
        [row] = store.devices()
        best = {text: store.ranking(row, text)[0] for text in sorted(store.problem_texts())[:2]}
        choices = [
            {"layer": text, "kernel": one.kernel_id, "launch": dict(one.launch), "us": one.median_us}
            for text, one in best.items()
        ]
        key = step_key("model", 2, "f32", [])
        store.put_plan(device_id=row.id, network=str(key), median_us=9.0, spread_us=0.1, choices=choices)
    [device] = collect(path).devices
    network = device.networks[0]
    assert [one.layer.problem for one in network.layers] == list(best)
    assert all(one.name == one.layer.name and one.name not in best for one in network.layers)
    assert_self_contained(render(collect(path)))


def trial(us, at, final=False, **seconds):
    return Trial(1, "{}", "f", {}, "ok" if us else "wrong", "", us, None, final, at, seconds)


def layer(identity, trials):
    return Layer(identity, "p", "p", None, None, None, None, "", tuple(trials), (), ())


def test_runs_are_separated_by_pauses_and_their_best_falls():
    rng = random.Random(1)
    first = [layer(str(i), [trial(rng.uniform(1, 9), 5 * k + i, time=0.5) for k in range(30)]) for i in range(3)]
    later = layer("3", [trial(2.0, 1000 + PAUSE + k) for k in range(25)] + [trial(1.0, 1e6, final=True)] * 30)
    early, late = runs([*first, later])
    assert (early.trials, early.layers, late.trials, late.layers) == (90, 3, 25, 1)
    assert early.seconds == 147 and early.best[0][1] == sum(one.trials[0].us for one in first)
    totals = [us for _, us in early.best]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == pytest.approx(sum(min(trial.us for trial in one.trials) for one in first))
    assert sum(early.busy["time"]) == pytest.approx(45) and set(early.busy) == {"time"}
    assert history(early).line.count("V") == len(early.best) and len(history(early).lanes) == 1
    assert not history(late).lanes


def test_layers_of_packed_databases_are_no_run():
    searched = layer("1", [trial(2.0, at) for at in range(30)])
    kept = [dataclasses.replace(trial(1.0, 99, final=True), kernel=kernel) for kernel in (7, 8, 9)]
    packed = layer("2", [*(dataclasses.replace(trial(2.0, at), kernel=7) for at in range(30)), *kept])
    tried = layer("3", [*searched.trials, trial(1.0, 99, final=True)])
    assert [run.trials for run in runs([tried, packed])] == [30], "the layer whose finalist was tried"
    assert runs([packed, searched]) == (), "without finals a layer does not tell"
    assert [run.trials for run in runs([searched])] == [30], "but nothing says that it is packed"


def test_few_trials_are_no_run():
    assert runs([layer("1", [trial(1.0, at) for at in range(5)])]) == () == runs([])


def test_an_axis_places_values_and_round_ticks():
    axis = Axis(0, 100, 10, 210)
    assert axis.at(50) == 110 and [tick.label for tick in axis.ticks()] == ["0", "20", "40", "60", "80", "100"]
    rates = log_axis([0.02, 700], 300, 0)
    assert rates.at(0.02) < 300 and [tick.label for tick in rates.ticks()] == ["0.1", "1", "10", "100", "1,000"]
    assert [tick.label for tick in Axis(40, 95, 0, 1, log=True).ticks()] == ["40", "50", "60", "70", "80", "90"]


def test_the_roofline_lies_above_what_it_limits(device):
    chart = roofline(device)
    assert chart.ridge == 16 and chart.left_out == 0 and len(chart.points) == 2
    places = [tuple(map(float, pair.split(","))) for pair in chart.roof.split()]
    assert all(point.y > places[-1][1] for point in chart.points) and "of the limit by memory" in chart.points[1].label


def test_a_comparison_has_the_ratio_of_each_problem(small, tmp_path):
    make(tmp_path / "slower.db", factor=1.5)
    [found] = compare(collect(small), collect(tmp_path / "slower.db"))
    assert [one.ratio for one in found.problems] == pytest.approx([1.5, 1.5]) and found.mean_ratio == pytest.approx(1.5)
    assert found.faster == (2, 0) and found.networks[0].ratio == pytest.approx(1.5)


def test_a_comparison_lists_problems_of_one_database_last(small, tmp_path):
    make(tmp_path / "part.db")
    slow_down(tmp_path / "part.db", 3, "median_us < 100")
    alter(tmp_path / "part.db", "DELETE FROM measurement WHERE median_us > 900")
    [found] = compare(collect(small), collect(tmp_path / "part.db"))
    assert [(one.ratio and round(one.ratio, 3), one.second_us) for one in found.problems] == [(3.0, 30.0), (None, None)]


def test_the_page_is_well_formed_and_self_contained(small, tmp_path):
    make(tmp_path / "other.db", factor=1.1)
    done = script("report", small, "--against", tmp_path / "other.db", "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert_self_contained(page)
    assert HOSTILE not in page
    found = data_of(page)
    [narrow, _] = found.values()
    assert sum(len(family["trials"]) for family in narrow["families"]) == 51
    assert narrow["failures"][1][3] == HOSTILE
    for words in ("Net n=2 dtype=f16", "1010 us", "second.wide", "power cap", "best cuDNN, us", "geometric mean"):
        assert words in page


@pytest.mark.parametrize("name", ["resnets_h200", "se_resnet9_fixup_h200", "se_resnet9_fixup_sm80_h200"])
def test_a_shipped_database_gives_a_small_page(name):
    report = collect(ROOT / "tuning_db" / f"{name}.db")
    page = render(report)
    assert_self_contained(page)
    assert len(page.encode()) < MOST_BYTES and "NVIDIA H200" in page and "keeps little besides the finalists" in page
    assert all(network.us for network in report.devices[0].networks)


def test_kernels_for_a_gpu_have_registers_and_spills():
    report = collect(ROOT / "tuning_db" / "resnets_h200.db")
    trials = [trial for layer in report.devices[0].layers for trial in layer.trials]
    known = [trial for trial in trials if trial.resources]
    assert {runner(trial.family) for trial in known} == {"ours"}
    assert len(known) == sum(runner(trial.family) == "ours" for trial in trials)
    assert all(0 < trial.resources.registers <= 255 for trial in known)
    assert any(trial.resources.spill_bytes for trial in known)
    for layer in data_of(render(report)).values():
        for one in layer["families"]:
            assert len(one["resources"]) == (len(one["trials"]) if one["runner"] == "ours" else 0)


def test_a_database_without_trials_gives_a_page(empty_db):
    page = render(collect(empty_db))
    assert_self_contained(page)
    assert "Nothing was timed yet" in page and data_of(page) == {}


def test_several_devices_and_unknown_families_give_a_page(two):
    report = collect(two[0])
    second = dataclasses.replace(report.devices[0], name="another")
    page = render(dataclasses.replace(report, devices=(report.devices[0], second)))
    assert_self_contained(page)
    assert "<h3>another</h3>" in page


def test_mistakes_are_told_in_a_sentence(small, tmp_path):
    (tmp_path / "text.db").write_text("no database, but a text of some length\n" * 50)
    assert_error(script("report", tmp_path / "absent.db"), "absent.db", "autotune tune")
    assert_error(script("report", tmp_path / "text.db", "-o", tmp_path / "x.html"), "text.db")
    assert_error(script("report", small, "--against", tmp_path / "none.db", "-o", tmp_path / "x.html"), "none.db")
    assert not (tmp_path / "x.html").exists()


def test_a_damaged_row_is_named(small, tmp_path):
    damaged = shutil.copy(small, tmp_path / "damaged.db")
    alter(damaged, "UPDATE kernel SET config = '{' WHERE id = 3")
    with pytest.raises(DatabaseError, match="row 3 of table 'kernel' is damaged"):
        collect(damaged)


def test_a_plan_of_a_layer_without_a_time_tells_no_problem(tmp_path):
    make(tmp_path / "a.db")
    with Store.create(tmp_path / "a.db") as store:
        [device] = store.devices()
        wrong = next(row for row in store.measurements(device, POINTWISE) if row.status == "wrong")
        choice = {"layer": "torch", "kernel": wrong.kernel_id, "launch": wrong.launch, "us": None, "overlap": False}
        values = {"median_us": 5.0, "spread_us": 0.0, "choices": [choice], "details": {}}
        store.put_plan(device_id=device.id, network="Net n=2 compiler=none 0123456789ab", **values)
    report = collect(tmp_path / "a.db")
    [_, spare] = report.devices[0].networks
    assert spare.precompiled and spare.us == 5.0 and spare.layers[0].layer is None
    assert_self_contained(render(report))
