"""Fixtures that several files share. Binaries and caches go to folders of their own, never to the user's."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from databases import fill

# Threads of torch and of our kernels that wait for each other sleep, in this process and in those that it starts: where
# they spin and something else wants the cores too, one that could work waits for one that does nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded

import pytest
import torch
from levels import mark_level, no_process_in_unit_tests
from processes import TUNE, process

from autotune.core import Architecture, architecture, cpu_targets
from autotune.families import Kernel
from autotune.ir import Epilogue
from autotune.measure import Worker
from tuning_db import Store


@pytest.hookimpl(tryfirst=True)  # before -m selects tests by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
    """Processes that share the files of a run. 0: this one runs them, be it that there is one file, or one GPU."""
    files = {argument.partition("::")[0] for argument in config.args}
    few = config.option.keyword or (all(name.endswith(".py") for name in files) and len(files) == 1)
    return 0 if few or torch.cuda.is_available() else min(len(os.sched_getaffinity(0)), 4)


@pytest.fixture(scope="session", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this run, with every process that it starts, builds and caches."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_GENERATED", str(root / "generated"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield root


@pytest.fixture(scope="session")
def cpu() -> Architecture:
    return architecture("cpu")


@pytest.fixture(scope="session")
def cpu_target() -> str:
    return cpu_targets()[0]


@pytest.fixture(scope="session")
def cpu_kernel(cpu_target: str) -> Callable[..., Kernel]:
    """(family, config, epilogue text) -> a CPU kernel."""
    return lambda name, config, epilogue="": Kernel.of(name, config, "f32", Epilogue.parse(epilogue), cpu_target)


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """A measuring process of the CPU; one that was ended is replaced at the next request, at a cost of seconds."""
    with Worker("cpu") as worker:
        yield worker


@pytest.fixture(scope="session")
def empty_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that knows nothing."""
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
def tuned_db(folders: Path) -> Path:
    """A database that scripts/tune.py made for the network on this CPU, one config a problem: read it, do not write."""
    path = folders / "tuned.db"
    with (folders / "tuned.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            making = folders / "making.db"
            done = process("tune", *TUNE, "--db", making)
            assert done.returncode == 0, done.stderr
            _make_ours_win(making)
            making.rename(path)
    return path


def _make_ours_win(path: Path) -> None:
    """Lengthen torch's times, so that ours run each layer that they serve: on a busy machine it would be by chance."""
    longer = "median_us = 1000 * median_us, details = json_remove(details, '$.interval_us')"
    with closing(sqlite3.connect(path)) as connection:
        torchs = "kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')"
        connection.execute(f"UPDATE measurement SET {longer} WHERE {torchs}")
        connection.commit()
