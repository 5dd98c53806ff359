"""The page of autotune report in a browser: its script runs without errors, and sorts, filters and selects."""

import browser
import pytest
from repository import ROOT
from trial_database import HOSTILE, WIDE, make

from autotune.report.collect import collect
from autotune.report.comparison import compare
from autotune.report.page import render

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(browser.find() is None, reason=f"none of {', '.join(browser.NAMES)} is installed"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    make(folder / "small.db")
    make(folder / "other.db", factor=1.25)
    first, second = collect(folder / "small.db"), collect(folder / "other.db")
    path = folder / "report.html"
    path.write_text(render(first, second.name, compare(first, second)))
    return path


def test_errors_in_the_console_are_seen(page, tmp_path):
    _, console = browser.run(page, "console.error('broken'); new Image().src = 'http://localhost/a.png';", tmp_path)
    assert any("broken" in line for line in console)
    assert any("Content Security Policy" in line for line in console)  # the page may load nothing


def test_no_column_of_a_network_is_cut_in_a_narrow_window(page, tmp_path):
    script = """
        document.body.style.width = "1000px";
        const scrolled = document.querySelector(".network .scroll");
        found.widths = [scrolled.scrollWidth, scrolled.clientWidth];
        const cells = [...document.querySelectorAll(".network tbody td")];
        found.cut = cells.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent);
    """
    found, console = browser.run(page, script, tmp_path)
    assert found["widths"][0] <= found["widths"][1] and found["cut"] == [] and console == []


def test_the_page_opens_without_errors(page, tmp_path):
    script = """
        found.points = document.querySelectorAll(".roofline a").length;
        found.segments = document.querySelectorAll(".stack a").length;
        found.name = document.querySelector("#layer h3").textContent;
        found.plots = [...document.querySelectorAll("#layer figcaption")].map(one => one.textContent);
        found.importances = document.querySelectorAll("#importances tr").length;
        found.failures = document.querySelector("#failures").textContent;
        found.rows = document.querySelectorAll("#trials tbody tr").length;
        found.title = document.title;
        const box = one => ["x", "y", "width", "height"].map(name => Number(one.getAttribute(name)));
        found.memory = [...document.querySelectorAll(".memory rect")].map(box);
        found.tip = document.querySelector(".memory rect").dataset.tip;
    """
    found, console = browser.run(page, script, tmp_path)
    assert console == []
    (x, y, width, height), (next_x, next_y, next_width, next_height) = found["memory"]
    assert x < next_x < x + width and next_x + next_width > x + width  # the second is written while the first is read
    assert next_y + next_height == pytest.approx(y, abs=0.2) and height == pytest.approx(2 * next_height, abs=0.2)
    assert found["tip"] == "first\n1.0 MiB\nfrom first to second"
    assert found["points"] == 2 and found["segments"] == 3
    assert found["name"] == "1x1/1 16>16 @8x8" and found["plots"] == ["tile", "stages", "grid"]
    assert found["importances"] == 3 and found["rows"] == 49
    assert HOSTILE in found["failures"] and found["title"] == "small.db: tuning report"


def test_a_fragment_selects_a_layer(page, tmp_path):
    script = """
        const name = () => document.querySelector("#layer h3 ~ p code").textContent;
        const selected = () => document.querySelectorAll(".selected").length;
        found.first = [name(), selected()];
        await hash("#layer=1.1");
        found.second = [name(), selected()];
        await hash("#layer=nonsense");
        found.third = name();
        const point = document.querySelector('.roofline a[href="#layer=1.2"]');
        point.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        await hash(location.hash);
        found.clicked = name();
    """
    found, console = browser.run(page, script, tmp_path, "#layer=1.2")
    assert console == []
    assert found["first"][0] == WIDE == found["clicked"]
    # The layer's row in the list, in the network's table and in the comparison; its point and its bar.
    assert found["first"][1] == found["second"][1] == 5
    assert "c=16" in found["second"][0] and found["third"] == found["second"][0]


def test_trials_are_sorted_and_filtered(page, tmp_path):
    script = """
        const rows = () => [...document.querySelectorAll("#trials tbody tr")];
        const cells = column => rows().map(row => row.cells[column].textContent);
        const heads = [...document.querySelectorAll("#trials th")];
        const click = name => heads.find(head => head.textContent === name).querySelector("button").click();
        found.byTime = cells(0);
        click("time, us");
        found.slowest = cells(0)[0];
        click("tile");
        click("tile");
        found.tiles = cells(2);
        found.sorted = heads.map(head => head.getAttribute("aria-sort"));
        const field = document.querySelector("#layer input");
        field.value = "tile=32 stages=3";
        field.dispatchEvent(new Event("input"));
        found.filtered = cells(2);
        field.value = "";
        field.dispatchEvent(new Event("input"));
        const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
        choose(document.querySelectorAll("#layer select")[1], "wrong");
        found.wrong = cells(0);
        choose(document.querySelector("#family"), "");
        found.all = cells(0).length;
        found.families = document.querySelector("#layer figcaption").textContent;
        choose(document.querySelector("#family"), "cudnn");
        found.cudnn = cells(0);
    """
    found, console = browser.run(page, script, tmp_path, "#layer=1.1")
    assert console == []
    times = [float(text) for text in found["byTime"] if text]
    assert times == sorted(times) and len(times) == 48 and found["byTime"][-1] == ""
    assert found["slowest"] == "74.1"
    tiles = list(map(int, found["tiles"]))
    assert tiles == sorted(tiles, reverse=True) and found["sorted"][2] == "descending"
    assert found["filtered"] == ["32"] and found["wrong"] == [""]
    assert found["all"] == 51 and found["families"] == "family" and found["cudnn"] == ["15.0"]


def test_lists_are_sorted_and_filtered(page, tmp_path):
    script = """
        const list = document.querySelector("#list-1");
        const times = () => [...list.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[2].textContent);
        list.querySelectorAll("th button")[2].click();
        found.ascending = times();
        list.querySelectorAll("th button")[2].click();
        found.descending = times();
        const field = document.querySelector("[data-filter]");
        field.value = "C=512 3x3";
        field.dispatchEvent(new Event("input"));
        found.filtered = times();
        document.querySelector(".roofline a").dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
        found.tip = document.querySelector("#tooltip").hidden ? "" : document.querySelector("#tooltip").textContent;
        document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
        found.hidden = document.querySelector("#tooltip").hidden;
    """
    found, console = browser.run(page, script, tmp_path)
    assert console == []
    assert found["ascending"] == ["10.0", "1000"] and found["descending"] == ["1000", "10.0"]
    assert found["filtered"] == ["1000"]
    assert "1000 us by tiled" in found["tip"] and found["hidden"]


def test_a_scatter_names_the_trial_below_the_pointer(page, tmp_path):
    script = """
        const plot = document.querySelector(".plots svg");
        const ring = plot.querySelector(".fastest").getBoundingClientRect();
        const at = {bubbles: true, clientX: ring.x + ring.width / 2, clientY: ring.y + ring.height / 2};
        plot.dispatchEvent(new PointerEvent("pointermove", at));
        found.tip = document.querySelector("#tooltip").textContent;
    """
    found, console = browser.run(page, script, tmp_path)
    assert console == [] and found["tip"] == "10.0 us, tiled\ntile=64 stages=0 grid=0"


def test_trials_of_kernels_for_a_gpu_have_registers_and_spills(tmp_path):
    report, path = collect(ROOT / "tuning_db" / "resnets_h200.db"), tmp_path / "shipped.html"
    path.write_text(render(report))
    layer = next(layer for layer in report.devices[0].layers if layer.family == "sm90_conv2d")
    script = """
        const heads = [...document.querySelectorAll("#trials th")].map(head => head.textContent);
        const cells = name => [...document.querySelectorAll("#trials tbody tr")]
          .map(row => row.cells[heads.indexOf(name)].textContent);
        found.registers = cells("registers");
        found.spills = cells("spills, B");
    """
    found, console = browser.run(path, script, tmp_path, f"#layer={layer.id}")
    assert console == []
    known = sorted(
        [trial.resources.registers, trial.resources.spill_bytes]
        for trial in layer.trials
        if trial.family == layer.family
    )
    assert known == sorted([int(a), int(b)] for a, b in zip(found["registers"], found["spills"], strict=True))
