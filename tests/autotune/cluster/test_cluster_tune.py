"""tune.py on a cluster, on several devices, and on this machine alone tries the same candidates.

Their times are not compared: other tests use the cores meanwhile.
"""

import os
import re
import sqlite3
from contextlib import closing

import pytest
from dask_cluster import DaskProcesses
from processes import process, wait_until

from autotune.cluster import connected

pytest.importorskip("distributed")
pytestmark = [pytest.mark.process, pytest.mark.compile]

PROBLEMS = [
    f"conv2d n=2 h={size} w={size} c=32 k=64 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu"
    for size in (14, 28)
]
SEARCH = ["--arch", "cpu", "--only", "cpu_conv2d", "--sampler", "brute-force", "--limit", "5", "--budget", "20m"]


def tune(path, *options):
    problems = [word for problem in PROBLEMS for word in ("--problem", problem)]
    environment = {**os.environ, "AUTOTUNE_GENERATED": str(path.with_suffix(""))}  # each run compiles
    done = process(
        "tune", *SEARCH, *problems, "--gain", "0%", "--from-db", "none", "--db", path, *options, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tried(path):
    """(problem, family, config) -> whether its finals were timed; all candidates are right."""
    query = (
        "SELECT p.text, k.family, k.config, m.status, m.final FROM measurement m "
        "JOIN kernel k ON k.id = m.kernel_id JOIN problem p ON p.id = m.problem_id"
    )
    found = {}
    with closing(sqlite3.connect(path)) as connection:
        for problem, family, config, status, final in connection.execute(query):
            assert status == "ok", (problem, config, status)
            found[problem, family, config] = final or found.get((problem, family, config), False)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The candidates of a run on this machine alone."""
    path = tmp_path_factory.mktemp("here") / "here.db"
    tune(path)
    return tried(path)


@pytest.mark.daily(2, "whole runs")
def test_a_cluster_tries_what_a_run_on_this_machine_tries(here, tmp_path):
    with DaskProcesses(tmp_path) as dask:
        dask.start_worker("compile=2")
        dask.start_worker("measure=1")
        with connected(dask.address) as cluster:
            wait_until(lambda: cluster.compilers == 2 and cluster.devices())
        said = tune(tmp_path / "cluster.db", "--cluster", dask.address, "--trace", tmp_path / "trace.json")
    found = tried(tmp_path / "cluster.db")
    assert found.keys() == here.keys() and any(found.values())
    assert re.search(r"kernels compiled: [1-9]", said)
    assert '"compiler' in (tmp_path / "trace.json").read_text()


@pytest.mark.daily(2, "whole runs")
def test_two_devices_share_the_problems(here, tmp_path):
    with DaskProcesses(tmp_path) as dask:
        for _ in range(2):
            dask.start_worker("measure=1")
        with connected(dask.address) as cluster:
            wait_until(lambda: len(cluster.devices()) == 2)
        tune(tmp_path / "two.db", "--cluster", dask.address)
    found = tried(tmp_path / "two.db")
    assert found.keys() == here.keys() and any(found.values())
