"""Units that another machine compiles: their results are those of a build on this machine. No cluster is needed."""

import pickle
from concurrent.futures import Future
from dataclasses import replace

import pytest
from kernels import need_compiler

from autotune.cluster.compile_service import compile_unit
from autotune.cluster.remote_batch import RemoteBatch
from autotune.codegen import Unit
from autotune.codegen.build_queue import build
from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue

pytestmark = pytest.mark.compile


def compiled_elsewhere(unit, folder, monkeypatch):
    """Compile a unit as a machine with another folder of binaries would; return its result on this machine."""

    def submit(request, _):
        with monkeypatch.context() as other:
            other.setenv("AUTOTUNE_GENERATED", str(folder))
            answer = compile_unit(pickle.loads(pickle.dumps(request)))
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(answer)))
        return future

    [built] = RemoteBatch([unit], submit).finished()
    return built


def test_a_remote_compilation_gives_what_a_local_one_does(tmp_path, monkeypatch):
    need_compiler("sm_80")
    config = next(family("cuda_avg_pool2d").configs(architecture("sm80"), "f16", Epilogue()))
    kernel = Kernel.of("cuda_avg_pool2d", config, "f16", Epilogue(), "sm_80")
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "local"))
    [local] = build([kernel], jobs=1)
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "here"))
    remote = compiled_elsewhere(Unit((kernel,)), tmp_path / "there", monkeypatch)
    assert remote.path.is_relative_to(tmp_path / "here")
    assert remote.path.read_bytes() == local.path.read_bytes() and remote.seconds > 0
    assert remote.resources == local.resources and len(local.resources) == 1
    assert replace(remote, path=local.path, seconds=local.seconds) == local
