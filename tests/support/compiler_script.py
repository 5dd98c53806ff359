"""A compiler that does something first: a shell script that runs g++ behind it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.codegen import toolchain

SCRIPT = """#!/bin/sh
case "$*" in *-dumpfullversion* | *-shared*) exec {gpp} "$@" ;; esac
{then}
exec {gpp} "$@"
"""


@contextmanager
def compiler_script(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that makes the compiler of this process begin with a text, in which {folder} is the folder."""

    def begin_with(text: str) -> None:
        script = folder / "g++"
        script.write_text(SCRIPT.format(gpp=shutil.which("g++"), then=text.format(folder=folder)))
        script.chmod(0o755)
        patch.setenv("CXX", str(script))
        toolchain.for_target.cache_clear()

    yield begin_with
    toolchain.for_target.cache_clear()
