"""Fixtures that several files share. Binaries and caches go to folders of their own, never to the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import script

from autotune.arch import Architecture, architecture, cpu_targets
from autotune.epilogue import Epilogue
from autotune.families.base import Kernel

TUNED_BATCH = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))


@pytest.fixture(scope="session", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session, and every process that it starts, builds and caches."""
    root = tmp_path_factory.mktemp("session")
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
def tuned_db(folders: Path) -> Path:
    """A database that scripts/tune.py made for the network on this CPU, one config a family: read it, do not write."""
    path = folders / "tuned.db"
    arguments = ("--arch", "cpu", "--batch", TUNED_BATCH, "--trials", 1, "--budget", "60s", "--db", path)
    done = script("tune", *arguments)
    assert done.returncode == 0, done.stderr
    return path
