"""Shared fixtures and the levels of tests. Binaries and caches go to temporary folders, never to the user's."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from databases import fill, renew_digests

# OpenMP threads sleep while they wait, here and in child processes. Threads that spin take the cores from threads with
# work when several test processes share the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch reads it when it is imported

# The tests run beside each other, so that the CPU is always busy.
os.environ.setdefault("AUTOTUNE_IGNORE_LOAD", "1")

# No test reads or writes what `autotune verify` found on this machine: the file cannot exist.
os.environ["AUTOTUNE_EVIDENCE"] = "/dev/null/evidence.db"

import pytest
import torch
from daily import without_todays_rest
from levels import mark_level, no_process_in_unit_tests
from processes import TUNE, process

from autotune.core import Architecture, architecture, cpu_targets
from autotune.families import Kernel
from autotune.ir import Epilogue
from autotune.measure import Worker
from tuning_db import Store


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="run all cases of tests marked `daily`")


@pytest.hookimpl(tryfirst=True)  # before -m selects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], left_out = without_todays_rest(config, items)
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        mark_level(item)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with no_process_in_unit_tests(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with no_process_in_unit_tests(item):
        yield


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of worker processes; 0 runs the tests in this process, for a single file or on a GPU."""
    files = {argument.partition("::")[0] for argument in config.args}
    few = config.option.keyword or (all(name.endswith(".py") for name in files) and len(files) == 1)
    return 0 if few or torch.cuda.is_available() else min(len(os.sched_getaffinity(0)), 4)


@pytest.fixture(scope="session", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the temporary folder in which this run and its child processes build and cache."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_GENERATED", str(root / "generated"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root / "inductor"))
        patch.setenv("AUTOTUNE_INDUCTOR", "0")  # compiling takes seconds; its own tests switch it on
        yield root


@pytest.fixture(scope="session")
def cpu() -> Architecture:
    return architecture("cpu")


@pytest.fixture(scope="session")
def cpu_target() -> str:
    return cpu_targets()[0]


@pytest.fixture(scope="session")
def cpu_kernel(cpu_target: str) -> Callable[..., Kernel]:
    """Return a function (family, config, epilogue text) -> CPU kernel."""
    return lambda name, config, epilogue="": Kernel.of(name, config, "f32", Epilogue.parse(epilogue), cpu_target)


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """Return a worker of the CPU. A worker that ended is started again at the next request, which takes seconds."""
    with Worker("cpu") as worker:
        yield worker


@pytest.fixture(scope="session")
def empty_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty database."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    Store.create(path).close()
    return path


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Return two databases with some rows in common."""
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for seed, path in enumerate(paths):
        with Store.create(path) as store:
            fill(store, seed)
    return paths


@pytest.fixture(scope="session")
def made_once(folders: Path) -> Callable[[str, Callable[[Path], None]], Path]:
    """Return a function (name, make) -> a file that `make` writes once for all processes; tests only read it."""

    def made(name: str, make: Callable[[Path], None]) -> Path:
        path = folders / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                making = folders / f"making-{name}"
                make(making)
                making.rename(path)
        return path

    return made


@pytest.fixture(scope="session")
def tuned_db(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """Return a database of the network on this CPU with one config per problem. Tests must not write to it."""

    def make(path: Path) -> None:
        done = process("tune", *TUNE, "--db", path)
        assert done.returncode == 0, done.stderr
        _make_ours_win(path)

    return made_once("tuned.db", make)


def _make_ours_win(path: Path) -> None:
    """Multiply torch's times by 1000, so that tuned kernels are selected also on a busy machine.

    The comparison with torch's operators for the whole network, and the plan that came of it, are removed, because
    their outcome depends on the machine.
    """
    longer = "median_us = 1000 * median_us, details = json_remove(details, '$.interval_us')"
    with closing(sqlite3.connect(path)) as connection:
        torchs = "kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')"
        connection.execute(f"UPDATE measurement SET {longer} WHERE {torchs}")
        whole = "problem_id IN (SELECT id FROM problem WHERE text LIKE 'torch calls=%')"
        for table, rows in (("plan", "true"), ("measurement", whole), ("problem", "text LIKE 'torch calls=%'")):
            connection.execute(f"DELETE FROM {table} WHERE {rows}")
        connection.commit()
    renew_digests(path)
