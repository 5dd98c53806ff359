"""The figures of pages: their ids, the seven faults on a small repository, what --update writes, and the debts."""

import json
import subprocess
from dataclasses import replace

import pytest
from databases import identity, put_device
from repository import ROOT

from autotune.core import AutotuneError
from autotune_cli.commands import bench
from autotune_cli.commands import figures as command_line
from autotune_cli.figures import Catalogue, checks, faults, measuring, older_batches, put, record_name, updated
from autotune_cli.figures.catalogue import _evaluated
from autotune_cli.main import main
from tuning_db import Store

MOST_DEBTS = 34
"""Debts of figures.toml when the list began. It only shrinks: lower this number when debts were paid."""
MOST_FILES = 120
"""Files of benchmarks/, programs and layers included: one record a figure."""
TOML = """
[units]
us = {significant = 3}
images = {decimals = 0}
x = {decimals = 2, suffix = "x"}

[[group]]
id = "net.f16"
network = "torchvision:net"
device = "GPU"
record = "net"
batches = {1 = "aa", 8 = "bb"}
database = "nets_h200.db"
plan = "Net dtype=f16"
variants = ["compile"]

[[formula]]
id = "both"
formula = "geomean({net.f16.n*:over.compile})"
unit = "x"
"""
README = """# Net

| batch | us | over compile | images per second |
| ---: | ---: | ---: | --- |
| 1 | 100<!--f:net.f16.n1--> | 2.00x<!--f:net.f16.n1:over.compile--> | 10000<!--f:net.f16.n1:images--> |
| 8 | 40.6<!--f:net.f16.n8--> | 4.50x<!--f:net.f16.n8:over.compile--> | |

Both: 3.00x<!--f:both-->, at batch 8 of [the record](benchmarks/net.json).
"""


def variants(us, ratio):
    entry = {"status": "ok", "stream": {"median": us}, "stream_ratio": {"median": 1.0}}
    peer = {"status": "ok", "stream": {"median": us * ratio}, "stream_ratio": {"median": ratio}}
    return {"fused": entry, "compile": peer}


@pytest.fixture(autouse=True)
def all_commits_are_known(request, monkeypatch):
    if "process" not in request.keywords:
        monkeypatch.setattr(checks, "_is_known", lambda root, commit: True)


@pytest.fixture
def repository(tmp_path):
    """A repository without a fault."""
    for folder in ("docs", "benchmarks", "tuning_db"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "benchmarks" / "figures.toml").write_text(TOML)
    batches = [{"batch": 1, "variants": variants(100.0, 2.0)}, {"batch": 8, "variants": variants(40.62, 4.5)}]
    made_by = {"commit": "0" * 40, "uncommitted_changes": False, "date": "2100-01-01T00:00:00Z"}
    (tmp_path / "benchmarks" / "net.json").write_text(json.dumps({**made_by, "batches": batches}))
    with Store.create(tmp_path / "tuning_db" / "nets_h200.db") as store:
        add_plan(store, "Net n=1 dtype=f16 aa", 101.0)
        add_plan(store, "Net n=8 dtype=f16 bb", 40.0)
    return tmp_path


def add_plan(store, network, us, library=None):
    """Add a plan of one layer, whose kernel is not compiled, or is in a library and of no template of today."""
    device = store.device("GPU") or put_device(store, "GPU")
    kernel = store.put_kernel(identity(f"{network} {library}"), symbol="s", library_id=library)
    choices = [{"layer": "conv", "kernel": kernel.id, "launch": {}, "us": us, "overlap": False}]
    store.put_plan(device_id=device.id, network=network, median_us=us, spread_us=0.1, choices=choices, details={})


def change(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def found(repository):
    return [(fault.number, fault.name) for fault in faults(Catalogue.read(repository))[0]]


def test_a_repository_whose_figures_are_right_has_no_fault(repository):
    assert faults(Catalogue.read(repository)) == ([], [])


# -- the seven faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("40.6<!--f:net.f16.n8-->", "40.7<!--f:net.f16.n8-->"),
        ("4.50x<!--", "4.5x<!--"),
        ("f:both", "f:neither"),
        ("f:net.f16.n8:over.compile", "f:net.f16.n8:over.eager"),
        ("f:net.f16.n1:images", "f:net.f16.n2:images"),
    ],
)
def test_1_a_number_differs_from_its_record(repository, before, after):
    change(repository / "README.md", before, after)
    assert found(repository) == [(1, "README.md")]


def test_1_pages_of_docs_are_read_too(repository):
    (repository / "docs" / "page.md").write_text("It takes 101<!--f:net.f16.n1--> us.\n")
    assert found(repository) == [(1, "docs/page.md")]


@pytest.mark.parametrize("number", ["2.00x", "10000"])
def test_2_a_number_in_a_table_of_readme_without_an_id(repository, number):
    page = (repository / "README.md").read_text().splitlines()
    page[4] = page[4].replace(page[4][page[4].index(number) :].partition(" ")[0], number)
    (repository / "README.md").write_text("\n".join(page))
    assert found(repository) == [(2, "README.md")]


@pytest.mark.parametrize(
    ("before", "after"),
    [('"uncommitted_changes": false', '"uncommitted_changes": true'), ('"commit": "0', '"other": "0')],
)
def test_3_a_record_of_uncommitted_changes_or_an_unknown_commit(repository, before, after):
    change(repository / "benchmarks" / "net.json", before, after)
    assert found(repository) == [(3, "net")]


@pytest.mark.process
def test_3_a_commit_that_the_repository_does_not_have(repository):
    subprocess.run(["git", "init", "-q", repository], check=True)
    assert found(repository) == [(3, "net")]


def test_4_the_plan_is_not_in_the_shipped_database(repository):
    change(repository / "benchmarks" / "figures.toml", '8 = "bb"', '8 = "cc"')
    assert found(repository) == [(4, "net.f16.n8")]


def test_4_the_shipped_plan_is_newer_than_the_record(repository):
    change(repository / "benchmarks" / "net.json", "2100-", "2000-")
    assert found(repository) == [(4, "net.f16.n1"), (4, "net.f16.n8")]


def test_4_the_shipped_plan_is_another_than_the_one_that_ran(repository):
    with Store.open(repository / "tuning_db" / "nets_h200.db") as store:
        plans = {plan.network: plan.digest for plan in store.plans()}
    path = repository / "benchmarks" / "net.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"database": {"plans": plans}}))
    assert found(repository) == []
    path.write_text(json.dumps(record | {"database": {"plans": plans | {"Net n=1 dtype=f16 aa": "other"}}}))
    assert found(repository) == [(4, "net.f16.n1")]


def test_a_record_of_bench_has_the_digests_of_the_plans_of_its_database(repository):
    path = repository / "tuning_db" / "nets_h200.db"
    with Store.open(path) as store:
        assert bench.entry(path)["plans"] == {plan.network: plan.digest for plan in store.plans()} != {}


def test_4_a_figure_of_readme_has_no_plan_in_its_database(repository):
    change(repository / "benchmarks" / "figures.toml", 'plan = "Net dtype=f16"\n', "")
    assert set(found(repository)) == {(4, "net.f16.n1"), (4, "net.f16.n8")}


def test_5_record_and_plan_differ_in_their_times(repository):
    with Store.create(repository / "tuning_db" / "nets_h200.db") as store:
        add_plan(store, "Net n=8 dtype=f16 bb", 38.0)
    assert found(repository) == [(5, "net.f16.n8")]


def test_6_a_plan_with_kernels_of_older_templates_is_marked(repository):
    with Store.create(repository / "tuning_db" / "nets_h200.db") as store:
        facts = {"kind": "device_image", "target": "sm_90", "compiler": "nvcc", "flags": "", "cutlass": "4"}
        library = store.put_library(b"binary", **facts, abi_version=1)
        add_plan(store, "Net n=8 dtype=f16 bb", 40.0, library.id)
    assert found(repository) == [(6, "net.f16.n8")]
    assert older_batches(Catalogue.read(repository)) == {"net.f16": [8]}
    put(repository, "net.f16", "older", "[8]")
    assert found(repository) == []
    put(repository, "net.f16", "older", "[1, 8]")
    assert found(repository) == [(6, "net.f16.n1")]
    put(repository, "net.f16", "older", "")
    assert (repository / "benchmarks" / "figures.toml").read_text() == TOML


def test_7_a_record_that_nothing_names(repository):
    (repository / "benchmarks" / "lost.json").write_text("{}")
    assert found(repository) == [(7, "lost.json")]


def test_a_debt_is_no_fault_until_it_is_paid(repository):
    file = repository / "benchmarks" / "figures.toml"
    file.write_text(TOML + '[[debt]]\nfault = 3\nreason = "old"\nids = ["net"]\n')
    assert found(repository) == [(3, "net")], "paid"
    change(repository / "benchmarks" / "net.json", '"commit": "0', '"other": "0')
    assert faults(Catalogue.read(repository))[0] == []
    assert [fault.name for fault in faults(Catalogue.read(repository))[1]] == ["net"]


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_update_writes_the_numbers_of_the_records_and_nothing_else(repository):
    catalogue = Catalogue.read(repository)
    wrong = README.replace("40.6<", "1<").replace("3.00x<", "9.00x<")
    assert wrong != README and updated(wrong, catalogue.text) == README == updated(README, catalogue.text)


def test_formulas_are_numbers_and_ids_only():
    values = {"a": [2.0], "b": [3.0, 12.0]}
    assert _evaluated("{a} * (1 + {a}) - 1 / {a}", values.get) == 5.5
    assert _evaluated("geomean({b})", values.get) == pytest.approx(6.0)
    for formula in ("__import__('os')", "max({b})", "{a} ** 2", "'a'"):
        with pytest.raises(AutotuneError, match="is no formula"):
            _evaluated(formula, values.get)


def test_a_record_of_doors_has_figures_of_each_door(repository):
    us = {"cli": 50.0, "torch.compile": 100.0}
    outcomes = {name: {"status": "ok", "us": {"median": time}} for name, time in us.items()}
    outcomes["cli"]["over"] = {"torch.compile": {"median": 0.5}}
    record = {"arguments": {"batch": 1}, "outcomes": outcomes}
    (repository / "benchmarks" / "net.json").write_text(json.dumps(record))
    catalogue = Catalogue.read(repository)
    assert catalogue.text("net.f16.n1.torch.compile") == "100"
    assert catalogue.text("net.f16.n1.cli:over.torch.compile") == "2.00x"
    with pytest.raises(AutotuneError, match="no batch 8"):
        catalogue.text("net.f16.n8")


# -- measuring ---------------------------------------------------------------------------------------------------------

QUIET = ["GPU", "0", "0x0000000000000001", "700.00", "700.00"]


def test_a_gpu_gets_time_to_become_idle():
    busy, states = [QUIET[0], "12", *QUIET[2:]], []

    def read():
        states.append(busy if len(states) < 3 else QUIET)
        return states[-1]

    assert measuring.settled(read, seconds=1.0) == QUIET and len(states) == 4
    assert measuring.settled(lambda: busy, seconds=0.05) == busy


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, "Other", "this is Other"),
        (1, "40", "busy"),
        (2, "0x0000000000000021", "throttled"),
        (3, "500.00", "power limit"),
    ],
)
def test_a_gpu_that_would_give_other_times_is_refused(place, value, reason):
    measuring.require_quiet("GPU", QUIET)
    with pytest.raises(AutotuneError, match=reason):
        measuring.require_quiet("GPU", [*QUIET[:place], value, *QUIET[place + 1 :]])


def test_uncommitted_changes_are_refused(repository, monkeypatch):
    monkeypatch.setattr(measuring, "checkout", lambda: {"commit": "0" * 40, "uncommitted_changes": True})
    with pytest.raises(AutotuneError, match="commit them first"):
        measuring.measure(Catalogue.read(repository), [], print)


@pytest.mark.parametrize("records", [("net",), ("net", "older")])
@pytest.mark.parametrize(("factor", "runs"), [(1.02, 1), (1.2, 2)])
def test_a_group_is_measured_by_one_command_and_again_if_a_time_moved(repository, monkeypatch, factor, runs, records):
    ran, told, ahead = [], [], []

    def run(root, line):
        ran.append(line)
        times = ((1, 100.0, 2.0), (8, 40.62, 4.5))
        batches = [{"batch": batch, "variants": variants(us * factor, ratio)} for batch, us, ratio in times]
        (root / line.rpartition(" ")[2]).write_text(json.dumps({"batches": batches}))

    monkeypatch.setattr(measuring, "checkout", lambda: {"commit": "0" * 40, "uncommitted_changes": False})
    monkeypatch.setattr(measuring, "_gpu", lambda: QUIET)
    monkeypatch.setattr(measuring, "_run", run)
    monkeypatch.setattr(measuring, "compile_ahead", lambda root, lines, tell: ahead.extend(lines))
    catalogue = Catalogue.read(repository)
    group, name = replace(catalogue.groups["net.f16"], record=records), "net" if records == ("net",) else "net.f16"
    measuring.measure(replace(catalogue, groups={"net.f16": group}), [group], told.append)
    line = "autotune bench --model torchvision:net --batch 1,8 --db tuning_db/nets_h200.db --only compile,fused"
    assert ran == [f"{line} --out benchmarks/{name}.json"] * runs and len(told) == (1 if runs == 1 else 9)
    line = "autotune bench --model torchvision:net --batch {} --seconds 0 --only compile --out {}"
    assert ahead == [line.format(batch, "{out}") for batch in (1, 8)]
    group = Catalogue.read(repository).groups["net.f16"]
    assert group.record == (name,) == (record_name(Catalogue.read(repository), group),)


def test_a_second_run_that_is_cut_off_leaves_the_record_of_the_first(repository, monkeypatch):
    texts = []

    def run(root, line):
        path = root / line.rpartition(" ")[2]
        if texts:
            path.write_text("half")
            raise KeyboardInterrupt
        batches = [{"batch": batch, "variants": variants(us, 2.0)} for batch, us in ((1, 200.0), (8, 80.0))]
        texts.append(json.dumps({"batches": batches}))
        path.write_text(texts[0])

    monkeypatch.setattr(measuring, "checkout", lambda: {"commit": "0" * 40, "uncommitted_changes": False})
    monkeypatch.setattr(measuring, "_gpu", lambda: QUIET)
    monkeypatch.setattr(measuring, "_run", run)
    monkeypatch.setattr(measuring, "compile_ahead", lambda root, lines, tell: None)
    catalogue = Catalogue.read(repository)
    group = catalogue.groups["net.f16"]
    with pytest.raises(KeyboardInterrupt):
        measuring.measure(catalogue, [group], print)
    assert (repository / "benchmarks" / f"{record_name(catalogue, group)}.json").read_text() == texts[0]


@pytest.mark.parametrize("moves", [(), ("two",)])
def test_a_program_for_several_networks_runs_once_and_again_for_those_that_moved(repository, monkeypatch, moves):
    file = repository / "benchmarks" / "figures.toml"
    program = 'program = "python nets.py --only {networks} --out {record}"\nvariants'
    one = TOML[TOML.index("[[group]]") : TOML.index("[[formula]]")].replace("variants", program)
    two = one.replace('"net.f16"', '"two.f16"').replace("torchvision:net", "two")
    file.write_text(f"{TOML[: TOML.index('[[group]]')]}{one}{two}")
    entry = {"batches": [{"batch": batch, "variants": variants(us, 2.0)} for batch, us in ((1, 100.0), (8, 40.0))]}
    record, lines = repository / "benchmarks" / "net.json", []
    record.write_text(json.dumps({"networks": {"net": entry, "two": entry}}))

    def run(root, line):
        lines.append(line)
        slower = {"batches": [{"batch": batch, "variants": variants(500.0, 2.0)} for batch in (1, 8)]}
        networks = {name: slower if name in moves else entry for name in ("net", "two")}
        (root / line.rpartition(" ")[2]).write_text(json.dumps({"networks": networks}))

    monkeypatch.setattr(measuring, "checkout", lambda: {"commit": "0" * 40, "uncommitted_changes": False})
    monkeypatch.setattr(measuring, "_gpu", lambda: QUIET)
    monkeypatch.setattr(measuring, "_run", run)
    measuring.measure(Catalogue.read(repository), [], lambda line: None)
    line = "python nets.py --only {} --out benchmarks/net.json"
    assert lines == [line.format("net,two"), *(line.format(name) for name in moves)]
    assert [group.record for group in Catalogue.read(repository).groups.values()] == [("net",)] * 2


@pytest.mark.process
def test_peers_are_compiled_ahead_by_one_compiler_process_each(tmp_path):
    (tmp_path / "peer.py").write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).write_text(os.environ['TORCHINDUCTOR_COMPILE_THREADS'] + sys.argv[2])\n"
        "sys.exit(1)\n"
    )
    told = []
    lines = [f"python peer.py {tmp_path}/out-{number} {{out}}" for number in range(3)]
    measuring.compile_ahead(tmp_path, lines, told.append)
    found = [(tmp_path / f"out-{number}").read_text() for number in range(3)]
    assert len({*found}) == 3 and all(text.startswith("1/") for text in found)
    assert len(told) == 1 and "3 batch sizes" in told[0]
    measuring.compile_ahead(tmp_path, [], told.append)
    assert len(told) == 1


# -- the repository itself ---------------------------------------------------------------------------------------------


@pytest.mark.process
def test_the_figures_of_this_repository_have_no_fault_but_debts(monkeypatch):
    """make check also compares the digests of kernels, which takes ten seconds."""
    older = {f"{group.id}.n{batch}" for group in Catalogue.read(ROOT).groups.values() for batch in group.older}
    monkeypatch.setattr(checks, "_older_layers", lambda store, plan: [])
    rest, owed = faults(Catalogue.read(ROOT))
    assert [fault for fault in rest if not (fault.number == 6 and fault.name in older)] == []
    assert len(owed) <= MOST_DEBTS, "no new debts: measure the figures"


@pytest.mark.process
def test_the_folder_of_records_stays_small():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "benchmarks"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) <= MOST_FILES, "one record a figure: delete what it replaces"


def test_the_command_lists_checks_and_updates(repository, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "ROOT", repository)
    assert main(["figures", "--only", "net.f16.n8"]) == 0
    listed = capsys.readouterr().out
    assert "net.f16.n8  40.6" in listed and "  net     nets_h200.db: Net n=8 dtype=f16 bb" in listed
    assert main(["figures", "--check"]) == 0
    change(repository / "README.md", "40.6<", "41.6<")
    assert main(["figures", "--check"]) == 1
    assert "1 README.md: line 6: net.f16.n8 is 40.6 in its record, not 41.6" in capsys.readouterr().out
    assert main(["figures", "--update"]) == 0 and (repository / "README.md").read_text() == README
    assert main(["figures", "--only", "net.f16.n9"]) == 2
