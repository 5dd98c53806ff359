"""Resources read from device images, compared with what ptxas and cuobjdump print."""

import random
import re
import shutil
import subprocess
from contextlib import closing

import pytest
from kernels import need_compiler
from repository import ROOT

from autotune.codegen import BuildBatch, KernelResources, Unit, image_resources, rendering, translation_units
from autotune.codegen.build_queue import build
from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue

SOURCE = ROOT / "tests" / "kernels" / "resources.cu"
TOOLCHAINS = [("sm_70", False), ("sm_80", False), ("sm_80", True), ("sm_90", False), ("sm_90", True)]
_E_VERSION, _E_FLAGS, _ABI_VERSION = 0x14, 0x30, 8  # offsets in an ELF file


def compiled(target, nvcc, folder):
    """Compile SOURCE as kernels are compiled, and once more for what ptxas prints."""
    compiler = need_compiler(target, nvcc=nvcc)
    image, other = folder / "image.cubin", folder / "verbose.cubin"
    [command] = compiler.commands(SOURCE, image, [])
    subprocess.run(command, check=True, capture_output=True)
    [command] = compiler.commands(SOURCE, other, [])
    done = subprocess.run([*command, "--ptxas-options=-v"], check=True, capture_output=True, text=True)
    return image, done.stdout + done.stderr


def printed(log):
    """Return the resources that ptxas printed; it lists functions that a kernel calls behind the kernel."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        stack, *_ = re.findall(r"(\d+) bytes stack frame", part)
        [registers] = re.findall(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        stores, loads = (sum(map(int, re.findall(rf"(\d+) bytes spill {way}", part))) for way in ("stores", "loads"))
        found[part.split("'")[0]] = KernelResources(
            int(registers), stores, loads, int(shared[1]) if shared else 0, int(stack)
        )
    return found


@pytest.mark.compile
@pytest.mark.parametrize(("target", "nvcc"), TOOLCHAINS)
def test_resources_are_those_that_ptxas_prints(target, nvcc, tmp_path):
    image, log = compiled(target, nvcc, tmp_path)
    found = image_resources(image.read_bytes())
    assert found == printed(log)
    assert found["spills"].registers == 64 and found["spills"].spill_bytes > 0 < found["spills_pairs"].spill_bytes
    assert found["spills_in_a_call"].spill_bytes > 0 == found["fits"].stack_bytes == found["fits"].spill_bytes
    assert found["has_an_array"].stack_bytes == 256 and found["has_an_array"].spill_bytes == 0
    assert found["shares"].shared_bytes == 400 and found["spills"].shared_bytes == 0


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_resources_are_those_of_cuobjdump(target, tmp_path):
    if not (tool := shutil.which("cuobjdump")):
        pytest.skip("no cuobjdump")
    image, _ = compiled(target, False, tmp_path)
    said = subprocess.run([tool, "-res-usage", image], check=True, capture_output=True, text=True).stdout
    lines = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) ", said)
    found = image_resources(image.read_bytes())
    assert {name: (int(registers), int(stack)) for name, registers, stack in lines} == {
        name: (one.registers, one.stack_bytes) for name, one in found.items()
    }


@pytest.mark.compile
def test_a_compiler_before_cuda_12_6_does_not_tell_spills(tmp_path):
    image, _ = compiled("sm_80", False, tmp_path)
    old = bytearray(image.read_bytes())
    old[_ABI_VERSION], old[_E_VERSION], old[_E_FLAGS] = 7, 125, 80
    found = image_resources(bytes(old))
    assert found["spills"].spill_bytes is None and found["spills"].stack_bytes > 0
    assert found["fits"].spill_bytes == 0  # without a stack there are none


@pytest.mark.compile
def test_bytes_that_are_no_device_image_have_no_resources(tmp_path):
    image, _ = compiled("sm_80", False, tmp_path)
    whole, rng = image.read_bytes(), random.Random(1)
    assert not image_resources(b"") and not image_resources(b"\x7fELF") and not image_resources(bytes(1000))
    for size in (10, 0x40, len(whole) // 2, len(whole) - 1):
        image_resources(whole[:size])
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 10, 1000))):
            damaged[rng.randrange(len(whole))] = rng.randrange(256)
        image_resources(bytes(damaged))


@pytest.fixture
def pools(tmp_path, monkeypatch):
    """A unit of two kernels for a GPU, and an empty folder for what is built."""
    need_compiler("sm_80")
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))
    configs = random.Random(1).sample(
        list(family("cuda_avg_pool2d").configs(architecture("sm80"), "f16", Epilogue())), 2
    )
    return Unit(tuple(Kernel.of("cuda_avg_pool2d", config, "f16", Epilogue(), "sm_80") for config in configs))


@pytest.mark.compile
def test_a_build_has_the_resources_of_each_kernel(pools):
    [built] = build(pools.kernels, jobs=1)
    found = image_resources(built.path.read_bytes())
    assert built.resources == tuple(found[rendering.symbol(kernel)] for kernel in built.unit.kernels)
    assert all(one.registers >= 16 for one in built.resources)
    [again], missing = translation_units.existing(pools.kernels[::-1])
    assert again.resources == built.resources[::-1] and not missing
    with closing(BuildBatch([built.unit], 1)) as batch:
        [present] = batch.finished()
    assert present.resources == built.resources and present.seconds == 0


@pytest.mark.compile
def test_a_kernel_for_a_cpu_has_none(cpu_kernel):
    kernel = cpu_kernel("cpu_conv2d", {"block_k": 16, "block_pixels": 2, "unroll_c": 1})
    assert [built.resources for built in build([kernel], jobs=1)] == [()]
