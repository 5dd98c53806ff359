"""The compiler of each target, and the error where there is none."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from kernels import need_compiler
from processes import python
from repository import ROOT

from autotune.codegen import toolchain
from autotune.codegen.translation_units import Unit
from autotune.core import ToolchainError, architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue


@pytest.mark.compile
@pytest.mark.parametrize("compiler", ["/nonexistent", "/bin/true"])
def test_no_compiler_is_an_error_of_one_sentence(compiler, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    find = toolchain.for_target.__wrapped__  # without the one that was found before
    with pytest.raises(ToolchainError, match=rf"^no C\+\+ compiler: '{compiler}' .*install g\+\+ or set CXX"):
        find("x86-64")


@pytest.mark.compile
@pytest.mark.parametrize("wanted", ["", "nvcc"])
def test_nvrtc_compiles_what_includes_no_header_of_cutlass(wanted, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOTUNE_CUDA_COMPILER", wanted)
    need_compiler("sm_80", nvcc=True)
    if need_compiler("sm_80").compiler.startswith("nvcc"):
        pytest.skip("no NVRTC as new as nvcc")
    for name, compiler in (("cuda_avg_pool2d", wanted or "nvrtc"), ("cutlass2_conv2d", "nvcc")):
        found = family(name)
        chain = Epilogue(found.operators[0].anchors)
        config = next(found.configs(architecture("sm80"), "f16", chain))
        unit = Unit((Kernel.of(name, config, "f16", chain, "sm_80"),))
        assert unit.toolchain.compiler.startswith(compiler)
        source, output = tmp_path / "unit.cu", tmp_path / "unit.cubin"
        source.write_text(unit.source)
        for command in unit.toolchain.commands(source, output, unit.folders):
            subprocess.run(command, check=True)
        assert output.read_bytes().startswith(b"\x7fELF")


@pytest.mark.process
def test_no_cuda_compiler_names_what_to_install(tmp_path):
    """Without nvcc on PATH and without pip's CUDA packages."""
    code = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [SITE]
from autotune.codegen import toolchain
for target in ("sm_70", "sm_90"):
    try:
        toolchain.for_target(target)
    except toolchain.ToolchainError as error:
        print(error)
"""
    site = tmp_path / "site"
    site.mkdir()
    # Everything but the namespace package nvidia, where pip puts CUDA.
    for package in Path(torch.__file__).parents[1].iterdir():
        if package.name != "nvidia":
            site.joinpath(package.name).symlink_to(package)
    environment = {**os.environ, "PATH": "/nonexistent", "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_HOME", None)
    done = python(code.replace("SITE", repr(str(site))), env=environment)
    first, second = done.stdout.splitlines()
    assert first.startswith("no CUDA compiler for sm_70") and "autotune-cutlass[volta]" in first
    assert second.startswith("no CUDA compiler for sm_90") and "autotune-cutlass[cuda]" in second
