"""Builds whose compilers, ninja or own process are killed.

The compiler is a shell script that misbehaves and then runs g++.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from compiler_script import compiler_script
from processes import wait_until
from repository import ROOT

from autotune.codegen.build_queue import BuildQueue, build
from autotune.codegen.translation_units import Unit
from autotune.core import ToolchainError
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.progress import Progress
from autotune.tuner.time_shares import TimeBreakdown
from tuning_db import Store

pytestmark = pytest.mark.process

CONV = {"block_k": 16, "block_pixels": 2, "unroll_c": 1}
FIRST = "if mkdir {folder}/first 2> /dev/null; then %s; fi"
ONE_AT_A_TIME = """
mkdir {folder}/memory 2> /dev/null || kill -KILL $$
while [ $(wc -l < {folder}/calls) -lt 3 ]; do sleep 0.01; done
g++ "$@"
status=$?
rmdir {folder}/memory
exit $status
"""
"""A compiler for which memory is enough once; it waits for two that find none before it works."""
KILLED = "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """An empty folder for what is built."""
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))
    return tmp_path / "generated"


@pytest.fixture
def compiler(tmp_path, monkeypatch, generated):
    """Return a function that makes the compiler misbehave, and one that counts its calls."""
    with compiler_script(tmp_path, monkeypatch) as begin_with:

        def misbehave(text):
            begin_with(f"echo x >> {{folder}}/calls\n{text}")
            return lambda: len((tmp_path / "calls").read_text().splitlines())

        yield misbehave


@pytest.fixture
def kernels(cpu_kernel):
    return [cpu_kernel("cpu_conv2d", CONV, chain) for chain in ("", "relu", "silu", "bias")]


@pytest.mark.parametrize("end", ["kill -KILL $$", "kill -KILL $PPID; sleep 600", KILLED], ids=["g++", "sh", "cc1plus"])
def test_a_killed_compiler_is_tried_again(end, compiler, kernels):
    calls = compiler(FIRST % end)
    [built] = build(kernels[:1], jobs=2)
    assert built.path and not built.error and calls() == 2


def test_compilers_for_which_memory_is_short_run_one_at_a_time(compiler, kernels):
    """Memory is enough for one: a second that runs beside it is killed."""
    calls = compiler(ONE_AT_A_TIME)
    queue = BuildQueue(jobs=4)
    queue.add([Unit((kernel,)) for kernel in kernels[:3]])
    assert all(built.path for built in results(queue))
    assert calls() >= 5, "two of the first three were killed and tried again"


def test_a_compiler_that_is_killed_also_alone_leaves_no_verdict(compiler, kernels, cpu_target, tmp_path):
    calls = compiler(KILLED)
    failed = []
    with (
        Store.create(tmp_path / "tuning.db") as store,
        KernelBuilder(store, cpu_target, 2, TimeBreakdown(), Progress()) as builder,
    ):
        builder.on_failure = failed.append
        builder.build(kernels[:2])
        assert builder.ready(wait=True) == []
        assert set(builder.skipped) == set(kernels[:2]) == set(failed)
        assert "Killed signal" in builder.skipped[kernels[0]]
        assert store.kernels(cpu_target) == [] and builder.rows == {}
        before = calls()
        builder.build(kernels[:2])
        assert builder.ready(wait=True) == [] and calls() == before, "this run does not try it again"
    compiler("")
    with (
        Store.create(tmp_path / "tuning.db") as store,
        KernelBuilder(store, cpu_target, 2, TimeBreakdown(), Progress()) as builder,
    ):
        builder.load()
        builder.build(kernels[:1])
        assert builder.ready(wait=True) == kernels[:1], "the next run does"


@pytest.mark.parametrize("end", ["kill -SEGV $$", "exit 124"], ids=["it crashes", "it takes too long"])
def test_what_the_source_causes_is_a_verdict(end, compiler, kernels):
    calls = compiler(end)
    [built] = build(kernels[:1], jobs=2)
    assert built.path is None and built.error and not built.killed and calls() == 1


def results(queue, then=lambda: None):
    """The results of a queue; `then` is called as soon as a compiler runs."""
    found, called = [], False
    while queue.pending:
        if not called and any(batch._process and batch._process.pid for batch in queue._running):
            then()
            called = True
        found += queue.finished()
        time.sleep(0.01)
    queue.close()
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ninja_is_started_again_for_the_units_that_are_left(number, compiler, kernels, tmp_path):
    compiler("sleep 0.3")
    queue = BuildQueue(jobs=1)
    queue.add([Unit((kernel,)) for kernel in kernels[:2]])

    def kill_ninja():
        while not (tmp_path / "calls").exists():
            time.sleep(0.01)
        os.kill(next(iter(queue._running))._process.pid, number)

    assert {built.unit.kernels for built in results(queue, kill_ninja) if built.path} == {(k,) for k in kernels[:2]}


def test_a_ninja_that_never_gets_to_work_is_an_error(compiler, kernels, tmp_path, monkeypatch):
    compiler("")
    (tmp_path / "ninja").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "ninja").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ToolchainError, match="the compilers stopped with exit code 5"):
        list(build(kernels[:1], jobs=1))


BUILD = f"""
from autotune.codegen.build_queue import BuildQueue
from autotune.codegen.translation_units import Unit
from autotune.families import Kernel
from autotune.ir import Epilogue
queue = BuildQueue(1)
queue.add([Unit((Kernel.of("cpu_conv2d", {CONV}, "f32", Epilogue(), "x86-64"),))])
input()
"""


def test_folders_of_dead_processes_are_removed_and_those_of_living_ones_stay(compiler, kernels, generated, tmp_path):
    compiler("sleep 600")
    living = BuildQueue(1)
    living.add([Unit((kernels[1],))])
    [own] = generated.glob("ninja-*")
    dead = subprocess.Popen([sys.executable, "-c", BUILD], cwd=ROOT, stdin=subprocess.PIPE)
    wait_until(lambda: len(sleeping(tmp_path)) == 2)
    assert len(list(generated.glob("ninja-*"))) == 2
    dead.kill()
    dead.communicate()
    wait_until(lambda: len(sleeping(tmp_path)) == 1)
    BuildQueue(1)
    assert list(generated.glob("ninja-*")) == [own] and list(own.glob("*.started"))
    living.close()
    assert not sleeping(tmp_path) and not list(generated.glob("ninja-*"))


def sleeping(folder):
    """The process ids of the compilers that sleep instead of compiling."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CXX") == str(folder / "g++") and process.cmdline()[:2] == ["sleep", "600"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
