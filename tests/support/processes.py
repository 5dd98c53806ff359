"""Run scripts, Python processes and threads, and wait for their end."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
import torch
from repository import ROOT

from autotune import families
from autotune_cli.main import main

TUNED_BATCH = 3
"""Batch size of the network in `tuned_db`."""

TUNE = ("--arch", "cpu", "--batch", TUNED_BATCH, "--trials", 1, "--budget", "20m")
"""Arguments of `autotune tune` for the fixture `tuned_db`."""

HANG = 600
"""Time limit of a process in seconds. It only ends processes that hang, also on a busy machine."""


def script(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command or a program in this process, which saves the import of torch.

    Global state that it changes is restored: arguments, paths, environment, families.

    Args:
        name: A command of autotune, or a path such as tests/campaigns/stress.py.
        *arguments: Command-line arguments.
        **variables: Environment variables.

    Returns:
        The exit code, standard output and standard error.
    """
    words, code = [name, *map(str, arguments)], 0
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [str((ROOT / name).parent), *sys.path])
        patch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        patch.chdir(ROOT)
        for variable, value in {"COLUMNS": "80", "AUTOTUNE_FAMILIES": "", **variables}.items():
            patch.setenv(variable, value)
        with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()) as complained:
            try:
                if name.endswith(".py"):
                    runpy.run_path(str(ROOT / name), run_name="__main__")
                else:
                    code = main(words)
            except SystemExit as end:
                code = int(end.code or 0)
    families.use([])
    return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())


def process(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command or a program as `script` does, but in a new process. `options` go to subprocess.run."""
    program = [str(ROOT / name)] if name.endswith(".py") else ["-m", "autotune_cli", name]
    return _run([sys.executable, *program, *map(str, arguments)], **options)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process and wait for its end. `options` go to subprocess.run."""
    return _run([sys.executable, "-c", code], **options)


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "timeout": HANG, "cwd": ROOT, **options}
    return subprocess.run(command, check=False, **settings)


def assert_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a script ended with exit code 2 and one line of error, which contains the words."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for word in words:
        assert word in lines[0]


def wait_until(what: Callable[[], object], seconds: float = HANG) -> None:
    """Wait until a function returns something true; fail if it does not."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def in_threads(work: Callable[..., object], jobs: Iterable[tuple[object, ...]]) -> None:
    """Run work(*job) for all jobs at once, each in its own thread. Raise the first exception of a thread."""
    failed: list[BaseException] = []

    def run(job: tuple[object, ...]) -> None:
        try:
            work(*job)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
