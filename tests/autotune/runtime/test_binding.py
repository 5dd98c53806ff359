"""Binaries are loaded from the bytes that were checked; no file lies between."""

import os
import subprocess
from pathlib import Path

import pytest
from processes import python
from repository import KERNELS

from autotune.core import AutotuneError, paths
from autotune.runtime import Binary
from autotune.runtime.binding import load
from autotune.runtime.engine import EngineError, SharedLibrary


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Two shared libraries, the second with one kernel more."""
    folder, source = tmp_path_factory.mktemp("libraries"), (KERNELS / "faulty.cpp").read_text()
    flags = ["-std=c++17", "-O0", "-w", "-shared", "-fPIC", f"-I{paths.templates()}"]
    made = []
    for name, text in (("a", source), ("b", source.replace('"good"', '"better"'))):
        (folder / f"{name}.cpp").write_text(text)
        subprocess.run(["g++", *flags, str(folder / f"{name}.cpp"), "-o", str(folder / name)], check=True)
        made.append((folder / name).read_bytes())
    return made


def mapped(name):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if name in line]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.compile
def test_two_libraries_at_once_are_two(libraries):
    """dlopen knows a library by its path, and the descriptors of both have the same number."""
    before = descriptors()
    first, second = (SharedLibrary(data, "library") for data in libraries)
    again = SharedLibrary(libraries[0], "library")
    assert "good" in first.names() and "better" not in first.names()
    assert "better" in second.names() and "good" not in second.names()
    assert again.names() == first.names()
    assert descriptors() == before


@pytest.mark.compile
def test_many_loads_leave_nothing_behind(libraries):
    name = "autotune-test-many"
    before = descriptors()
    for _ in range(50):
        for data in libraries:
            assert SharedLibrary(data, name).names()
    assert descriptors() == before and not mapped(name)


@pytest.mark.compile
def test_profilers_see_a_name(libraries):
    binary = Binary.of("shared_library", libraries[0])
    library = load(binary, 0)
    assert library is load(Binary.of("shared_library", bytes(libraries[0])), 0)
    assert binary.digest[:12] in binary.name and any("r-xp" in line for line in mapped(f"/memfd:{binary.name}"))


def test_a_failed_load_leaves_nothing_behind():
    before = descriptors()
    for data in (b"", b"not a library"):
        with pytest.raises(EngineError, match=r"shared library name\.so does not load"):
            SharedLibrary(data, "name.so")
    assert descriptors() == before
    with pytest.raises(AutotuneError, match="holds no kernels"):
        load(Binary.of("cudnn_plan", b"x"), 0)


NO_PLACE = """
import torch
from fused_resnet import FusedResNet
network = FusedResNet(PATH)
x = torch.randn(3, 3, 64, 64)
assert any(row.kernel.startswith("cpu_") for row in network.explain(x))
print(tuple(network(x).shape))
"""


def test_no_folder_need_be_writable(tuned_db):
    nothing = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/dev/null", "TMPDIR": "/nonexistent"}
    code = NO_PLACE.replace("PATH", repr(str(tuned_db)))
    done = python(code, env={**os.environ, **nothing})
    assert done.returncode == 0 and done.stdout == "(3, 512, 2, 2)\n", done.stderr
