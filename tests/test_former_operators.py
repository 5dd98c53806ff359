"""Rows of operators and families that this version does not have: the rest of a database is used without them."""

import shutil
import sqlite3
import warnings
from contextlib import closing

import pytest
import torch
from comparison import relative_error
from databases import LIBRARY, alter, fill, identity, put_time, renew_digests
from processes import script
from seed_network import LIMIT, expected, fused, images

from autotune.families import families
from autotune.ir import OPERATORS, parse
from autotune.ir.operators import TorchCall
from autotune.search import trace_of
from autotune.tuner import optuna_export
from autotune.tuner.kernel_builder import ForeignKernels
from tuning_db import Store, shipped_databases

PROBLEM = "former_operator n=1 c=8 dtype=f16 epilogue=none"


@pytest.fixture
def database(tmp_path):
    """Return a database with a problem of an operator, and kernels of families, that do not exist."""
    path = tmp_path / "former.db"
    with Store.create(path) as store:
        fill(store, 1)
        kernel = store.put_kernel(
            {**identity("{}"), "family": "former_family"},
            symbol="s",
            library_id=store.put_library(b"binary", compiler="c", **LIBRARY).id,
        )
        put_time(store, store.devices()[0], PROBLEM, kernel.id, 3.0, samples_us=[3.0])
    return path


def test_a_shipped_database_has_such_rows():
    operators, names = set(), set()
    for path in shipped_databases():
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            operators |= {name for (name,) in connection.execute("SELECT operator FROM problem")}
            names |= {name for (name,) in connection.execute("SELECT family FROM kernel")}
    assert operators - set(OPERATORS) - {TorchCall.operator} == {"max_pool2d_gradient"}
    assert names - set(families()) >= {"cuda_max_pool2d_gradient", "sm90_se_block"}


def test_the_tuner_leaves_them_out(database, tmp_path):
    with warnings.catch_warnings(action="error"):
        with ForeignKernels([database], "sm_90", [parse("gemm m=1 n=8 k=8 dtype=f16 epilogue=none")]) as foreign:
            assert not foreign.kernels and not foreign.rankings
        with Store.open(database) as store:
            assert not trace_of(store, store.devices()[0]).spaces
            assert optuna_export.export(store, tmp_path / "optuna.db", objectives=("time", "energy")) > 1


@pytest.mark.parametrize("arguments", [("db", "info"), ("db", "best"), ("db", "verify"), ("report",)])
def test_commands_show_a_database_with_them(arguments, database, tmp_path):
    more = ("-o", tmp_path / "report.html") if arguments == ("report",) else ()
    done = script(*arguments, database, *more)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_a_network_runs_on_kernels_of_former_families(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "renamed.db")
    alter(path, "UPDATE kernel SET family = 'former_' || family WHERE library_id NOT NULL")
    renew_digests(path)
    network, x = fused(path), images(3)
    with warnings.catch_warnings(action="error"), torch.no_grad():
        for _ in range(2):
            assert relative_error(network(x), expected(network, x)) < LIMIT
    assert any("former_" in str(row) for row in network.explain(x))
