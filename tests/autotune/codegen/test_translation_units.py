"""Compilations in the trace of a run: two at once, one that fails, one that is given up.

The compiler is a shell script that does something and then runs g++.
"""

from contextlib import closing

import pytest
import trace_events
from compiler_script import compiler_script
from kernels import need_compiler
from processes import wait_until

from autotune.codegen.build_queue import BuildQueue, build
from autotune.codegen.translation_units import Unit
from autotune.core import architecture, timeline
from autotune.families import Kernel, family
from autotune.ir import Epilogue

pytestmark = pytest.mark.process

CONV = {"block_k": 16, "block_pixels": 2, "unroll_c": 1}
TWO_AT_ONCE = "while [ $(ls {folder} | grep -c began) -lt 2 ]; do sleep 0.01; done"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a function that tells the compiler what to do first; kernels are built in an empty folder."""
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))
    with compiler_script(tmp_path, monkeypatch) as begin_with:
        yield lambda text: begin_with(f"mktemp {{folder}}/began.XXXXXX\n{text}")


@pytest.fixture
def units(cpu_kernel):
    return [Unit((cpu_kernel("cpu_conv2d", CONV, chain),)) for chain in ("", "relu")]


def lanes(path):
    return trace_events.lanes(trace_events.read(path), "tune")


def test_two_compilers_at_once_are_two_lanes_whose_slices_overlap(compiler, units, tmp_path):
    compiler(TWO_AT_ONCE)
    with timeline.recording(tmp_path / "trace.json"), closing(BuildQueue(jobs=2)) as queue:
        queue.add(units)
        wait_until(lambda: queue.finished() is not None and not queue.pending)
    found = lanes(tmp_path / "trace.json")
    assert set(found) == {"compiler 1", "compiler 2"}
    [first], [second] = found.values()
    assert trace_events.overlap(first, second)
    assert first["name"] == second["name"] == "cpu_conv2d"
    kernels = [kernel for one in (first, second) for kernel in one["args"]["kernels"]]
    assert sorted(kernels) == sorted(str(kernel) for unit in units for kernel in unit.kernels)


def test_a_unit_that_fails_is_shown_with_its_kernels_alone_and_those_that_exist_are_not(compiler, units, tmp_path):
    compiler("echo 'kernel.cpp:1: error: not today' >&2; exit 1")
    kernels = [kernel for unit in units for kernel in unit.kernels]
    with timeline.recording(tmp_path / "failed.json"):
        assert all(built.error for built in build(kernels, jobs=1))
    [slices] = lanes(tmp_path / "failed.json").values()
    assert [len(one["args"]["kernels"]) for one in slices] == [2, 1, 1]
    assert slices[0]["name"] == "cpu_conv2d, 2 kernels"
    assert all("not today" in one["args"]["error"] for one in slices)
    compiler("")
    with timeline.recording(tmp_path / "again.json"):
        for _ in range(2):
            assert all(built.path for built in build(kernels, jobs=1))
    [[one]] = lanes(tmp_path / "again.json").values()
    assert len(one["args"]["kernels"]) == 2 and "error" not in one["args"]


def test_the_registers_of_kernels_for_a_gpu_are_shown(tmp_path, monkeypatch):
    need_compiler("sm_80")
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))
    config = next(family("cuda_avg_pool2d").configs(architecture("sm80"), "f16", Epilogue()))
    with timeline.recording(tmp_path / "trace.json"):
        [built] = build([Kernel.of("cuda_avg_pool2d", config, "f16", Epilogue(), "sm_80")], jobs=1)
    [[one]] = lanes(tmp_path / "trace.json").values()
    assert one["args"]["registers"] == [built.resources[0].registers] and one["args"]["spill_bytes"] == [0]


def test_what_is_being_compiled_at_the_end_of_a_run_is_given_up(compiler, units, tmp_path):
    compiler("sleep 600")
    with (
        pytest.raises(KeyboardInterrupt),
        timeline.recording(tmp_path / "trace.json"),
        closing(BuildQueue(jobs=1)) as queue,
    ):
        queue.add(units)
        wait_until(lambda: list(tmp_path.glob("began.*")))
        raise KeyboardInterrupt
    [[one]] = lanes(tmp_path / "trace.json").values()
    assert one["args"]["error"] == "given up" and len(one["args"]["kernels"]) == 1
