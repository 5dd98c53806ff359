"""Building: several kernels a unit, failures that stay alone, nothing built twice, two processes at once."""

import ctypes
import math
import os
import random
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from kernels import assert_exported, built_paths, need_compiler
from processes import HANG
from repository import ROOT

from autotune.codegen import ninja_build, rendering, translation_units
from autotune.codegen.build_queue import build
from autotune.core import ToolchainError, architecture, paths
from autotune.families import Kernel, family
from autotune.ir import Epilogue
from autotune.runtime import engine

CONV = {"block_k": 16, "block_pixels": 2, "unroll_c": 1}
CHAINS = ("", "relu", "bias,relu", "add,relu")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty folder for what is built."""
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))
    return tmp_path / "generated"


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("jobs", [1, 2, 8, 64])
def test_every_kernel_is_in_one_unit_and_no_core_stands_idle(jobs, cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, ",".join(["relu"] * i)) for i in range(40)]
    kernels += [cpu_kernel("cpu_avg_pool2d", {"block_c": 8}, ",".join(["relu"] * i)) for i in range(5)]
    units = translation_units.units(kernels, jobs)
    assert sorted(map(str, kernels)) == sorted(str(kernel) for unit in units for kernel in unit.kernels)
    assert len(units) >= min(jobs, len(kernels))
    assert all(len({kernel.family for kernel in unit.kernels}) == 1 for unit in units)


def test_a_unit_is_worth_its_headers_and_units_of_a_family_are_alike(cpu_kernel):
    header, each = family("cutlass2_conv2d").compile_seconds
    for count, jobs in ((100, 2), (100, 16), (7, 3), (1, 8)):
        convs = cuda_kernels("cutlass2_conv2d", "sm80", count, seed=count)
        units = translation_units.units(convs, jobs)
        sizes = [len(unit.kernels) for unit in units]
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
        assert max(sizes) <= max(1, translation_units.MAX_COST_RATIO * header / each)
        needed = math.ceil(count * each / (translation_units.MAX_COST_RATIO * header))
        assert len(units) <= max(needed, jobs) + 1, "headers are compiled more often than cores need"


def test_long_units_come_first_and_cheap_families_do_not_split_them(cpu_kernel):
    convs = cuda_kernels("cutlass2_conv2d", "sm80", 8)
    pools = cuda_kernels("cuda_avg_pool2d", "sm80", 8)
    families = [unit.kernels[0].family for unit in translation_units.units([*pools, *convs], jobs=4)]
    assert families[:4] == ["cutlass2_conv2d"] * 4 and families[4:] == ["cuda_avg_pool2d"]


@pytest.mark.compile
def test_a_unit_exports_all_of_its_kernels(fresh, cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, chain) for chain in CHAINS]
    outcomes = list(build(kernels, jobs=1))
    assert len(outcomes) == 1 and outcomes[0].error == "" and outcomes[0].seconds > 0
    library = engine.SharedLibrary(outcomes[0].path.read_bytes(), "library")
    assert sorted(library.names()) == sorted(rendering.symbol(kernel) for kernel in kernels)
    assert ctypes.CDLL(str(outcomes[0].path)).at_library_get


@pytest.mark.compile
def test_a_kernel_that_does_not_compile_fails_alone_with_the_compilers_words(fresh, cpu_kernel):
    broken = cpu_kernel("cpu_conv2d", {**CONV, "block_k": 0})
    good = [cpu_kernel("cpu_conv2d", CONV, chain) for chain in CHAINS]
    outcomes = list(build([good[0], broken, *good[1:]], jobs=1))
    failed = [outcome for outcome in outcomes if outcome.path is None]
    assert [kernel for outcome in failed for kernel in outcome.unit.kernels] == [broken]
    assert "error:" in failed[0].error and "conv2d" in failed[0].error
    built = {kernel for outcome in outcomes if outcome.path for kernel in outcome.unit.kernels}
    assert built == set(good)


@pytest.mark.compile
def test_what_exists_is_not_built_again(fresh, cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, chain) for chain in CHAINS[:2]]
    first = built_paths(kernels, jobs=1)
    before = files(fresh)
    time.sleep(0.02)
    assert built_paths(kernels, jobs=1) == first
    assert files(fresh) == before


@pytest.mark.compile
def test_nothing_but_sources_and_binaries_stays_behind(fresh, cpu_kernel, cpu_target):
    broken = cpu_kernel("cpu_conv2d", {**CONV, "block_k": 0}, "relu")
    list(build([cpu_kernel("cpu_conv2d", CONV), broken], jobs=1))
    assert {path.suffix for path in files(fresh)} == {".cpp", ".so"}
    assert [path.name for path in fresh.iterdir()] == [cpu_target]


@pytest.mark.compile
def test_another_compiler_flag_is_another_binary(cpu_kernel):
    kernel = cpu_kernel("cpu_conv2d", CONV)
    native = translation_units.Unit((kernel,))
    plain = translation_units.Unit((Kernel.of("cpu_conv2d", CONV, "f32", Epilogue(), "x86-64"),))
    assert native.name != plain.name


@pytest.mark.parametrize(
    ("said", "killed"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", True),
        ("g++: fatal error: Terminated signal terminated program as\ncompilation terminated.", True),
        ("g++: internal compiler error: Segmentation fault signal terminated program cc1plus", False),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", True),
        ("collect2: fatal error: ld terminated with signal 11 [Segmentation fault], core dumped", False),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 9437184 bytes", True),
        ("nvcc error   : '\"$CICC_PATH/cicc\"' died due to signal 9 (Kill signal)", True),
        ("nvcc error   : '\"$CICC_PATH/cicc\"' died due to signal 11 (Invalid memory reference)", False),
        ("kernel.cpp:9: error: static assertion failed", False),
    ],
)
def test_words_of_drivers_whose_programs_were_killed(said, killed):
    assert (ninja_build._KILLED.search(said) is not None) == killed


BUILD = f"""
from autotune.codegen.build_queue import build
from autotune.ir import Epilogue
from autotune.families import Kernel
kernels = [Kernel.of("cpu_conv2d", {CONV}, "f32", Epilogue.parse(chain), "x86-64") for chain in {CHAINS}]
print("ready", flush=True)
input()
for built in build(kernels, 2):
    assert built.path and built.path.exists(), built.error
    print(built.path)
"""


@pytest.mark.process
def test_two_processes_that_build_the_same_both_succeed(fresh):
    command = [sys.executable, "-c", BUILD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:  # at once: else what the first has made decides how the second groups the rest
        process.stdin.write("\n")
        process.stdin.flush()
    said = [sorted(process.communicate(timeout=HANG)[0].split()) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] and said[0]
    for path in said[0]:
        assert engine.SharedLibrary(Path(path).read_bytes(), "library").names()
    assert not list(fresh.rglob("ninja-*"))


@pytest.mark.compile
def test_closing_early_ends_the_compilers(fresh, cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, ",".join(["silu"] * i)) for i in range(1, 13)]
    outcomes = build(kernels, jobs=2)
    next(outcomes)
    outcomes.close()
    count = len(list(fresh.rglob("*.so")))
    time.sleep(1.5)
    assert len(list(fresh.rglob("*.so"))) == count < len(kernels)
    assert not list(fresh.rglob("ninja-*")), "a compiler that lived on would have filled its folder again"


@pytest.mark.compile
def test_a_folder_that_cannot_be_written_is_an_error_of_one_sentence(tmp_path, monkeypatch, cpu_kernel):
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(occupied))
    with pytest.raises(ToolchainError, match=str(occupied)):
        list(build([cpu_kernel("cpu_conv2d", CONV)], jobs=1))


# -- CUDA, as far as it goes without a GPU -------------------------------------------------------------------


@cache
def configs_of(name, arch_name, dtype, chain):
    return list(family(name).configs(architecture(arch_name), dtype, chain))


def cuda_kernels(name, arch_name, count, epilogue="", dtype="f16", seed=0):
    arch, chain = architecture(arch_name), Epilogue.parse(epilogue)
    chosen = random.Random(seed).sample(configs_of(name, arch_name, dtype, chain), count)
    return [Kernel.of(name, config, dtype, chain, f"sm_{arch.capability}") for config in chosen]


@pytest.mark.compile
def test_convolutions_for_ampere_compile_with_nvcc():
    """Those of all architectures are compiled in test_legality.py."""
    need_compiler("sm_80", nvcc=True)
    assert_exported(
        cuda_kernels("cutlass2_conv2d", "sm80", 1, "relu,store,add_scalar", seed=1)
        + cuda_kernels("cutlass2_conv2d", "sm80", 1, "bias,add,silu", "bf16", seed=2)
    )


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm70", "sm90"])
def test_other_families_compile(arch):
    need_compiler(f"sm_{arch.removeprefix('sm')}", nvcc=False)
    assert_exported(
        cuda_kernels("cuda_avg_pool2d", arch, 1, "store,mul_scalar")
        + cuda_kernels("cuda_se_tail", arch, 1, "add,relu,add_scalar")
        + cuda_kernels("cuda_squeeze_excite", arch, 4, "add,relu", seed=12)
        + cuda_kernels("cuda_max_pool2d", arch, 1, "bias,relu")
        + cuda_kernels("cuda_global_avg_pool2d", arch, 1, "store")
        + cuda_kernels("cuda_elementwise", arch, 1, "add,silu")
        + cuda_kernels("cuda_to_channels_last", arch, 1, "scale,bias")
        + cuda_kernels("cuda_space_to_depth", arch, 1)
    )


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@pytest.mark.parametrize("name", ["cuda_stem", "cuda_narrow_conv2d"])
def test_few_channels_compile_with_either_instruction(name, arch):
    need_compiler(f"sm_{arch.removeprefix('sm')}", nvcc=True)
    configs = list(family(name).configs(architecture(arch), "bf16", Epilogue()))
    chosen = {config["instruction"]: config for config in random.Random(arch).sample(configs, 200)}
    assert set(chosen) == ({"mma", "wgmma", "wgmma_ahead"} if arch == "sm90" else {"mma"})
    target, epilogue = f"sm_{arch.removeprefix('sm')}", Epilogue.parse("bias,relu")
    assert_exported([Kernel.of(name, config, "bf16", epilogue, target) for config in chosen.values()])


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_image_convolutions_compile_with_and_without_a_gate(arch):
    need_compiler(f"sm_{arch.removeprefix('sm')}", nvcc=True)
    assert_exported(
        cuda_kernels("cuda_conv2d", arch, 3, "bias,silu,add,store,add_scalar", seed=5)
        + cuda_kernels("cuda_conv2d", arch, 2, "bias,gate,add,relu", "bf16", seed=6)
        + cuda_kernels("cuda_folded_conv2d", arch, 2, "scale,gate,add,relu,store", seed=8)
        + cuda_kernels("cuda_se_block", arch, 2, "bias,silu,conv,scale,gate,add,relu,store", seed=9)
        + cuda_kernels("cuda_se_down_block", arch, 2, "bias,silu,conv,scale,gate,bias,project,add,relu,store", seed=11)
        + cuda_kernels("cuda_stem_se_block", arch, 2, "bias,keep,silu,conv,scale,conv,gate,add_kept,add,relu", seed=10)
        + cuda_kernels("cuda_mma_se_tail", arch, 3, "add,relu,store,add_scalar", seed=7)
        + cuda_kernels("cuda_expand_depthwise", arch, 2, "bias,silu,conv,bias,add,relu", seed=13)
        + cuda_kernels("cuda_inverted_residual", arch, 2, "bias,silu,conv,bias,relu6,conv,bias,add,store", seed=14)
        + cuda_kernels("cuda_conv2d_pair", arch, 2, "bias,relu,conv,bias,add,relu", seed=14)
    )


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_short_products_compile(arch):
    need_compiler(f"sm_{arch.removeprefix('sm')}", nvcc=True)
    assert_exported(cuda_kernels("cuda_pointwise_conv2d", arch, 6, "bias,silu,add,store", seed=4))


@pytest.mark.compile
def test_an_illegal_tile_fails_with_cutlass_words():
    need_compiler("sm_80", nvcc=True)
    good = cuda_kernels("cutlass2_conv2d", "sm80", 1, seed=3)[0]
    broken = Kernel.of("cutlass2_conv2d", {**good.values, "warp_k": 16, "tile_k": 16}, "f16", Epilogue(), "sm_80")
    assert family("cutlass2_conv2d").why_illegal(broken.values, architecture("sm80"), "f16", Epilogue())
    [built] = build([broken], jobs=1)
    assert built.path is None and "error" in built.error and "cutlass" in built.error


@pytest.mark.compile
def test_generated_sources_lie_beside_their_binaries(cpu_kernel):
    path = built_paths([cpu_kernel("cpu_conv2d", CONV)])[cpu_kernel("cpu_conv2d", CONV)]
    assert path.is_relative_to(paths.generated())
    assert rendering.symbol(cpu_kernel("cpu_conv2d", CONV)) in path.with_suffix(".cpp").read_text()


@pytest.mark.compile
def test_a_kernel_is_found_in_whatever_unit_it_was_built_with(fresh, cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, chain) for chain in CHAINS]
    [together] = build(kernels, jobs=1)
    before = files(fresh)
    for some in (kernels[2:], kernels[:1], kernels[1:]):
        [found] = build(some, jobs=2)
        assert found.unit.kernels == tuple(some) and found.path == together.path and found.seconds == 0
    assert files(fresh) == before
    together.path.unlink()
    [again] = build(kernels[:1], jobs=1)
    library = engine.SharedLibrary(again.path.read_bytes(), "library")
    assert again.seconds > 0 and library.names() == [rendering.symbol(kernels[0])]
    found, missing = translation_units.existing(kernels)
    assert [kernel for built in found for kernel in built.unit.kernels] == kernels[:1] and missing == kernels[1:]


@pytest.mark.compile
def test_what_another_process_makes_before_its_turn_is_found(fresh, cpu_kernel):
    units = [translation_units.Unit((cpu_kernel("cpu_conv2d", CONV, chain),)) for chain in CHAINS]
    with closing(ninja_build.BuildBatch(units, jobs=1)) as batch:
        for unit in units:
            unit.path.touch()  # most of the commands wait for the first to end
        found = batch.finished()
    assert [(built.unit, built.path) for built in found] == [(unit, unit.path) for unit in units]
    assert sum(built.seconds == 0 for built in found) >= len(units) - 1


@pytest.mark.compile
def test_compilers_give_way_to_what_measures(fresh, cpu_kernel):
    with closing(
        ninja_build.BuildBatch(translation_units.units([cpu_kernel("cpu_conv2d", CONV, "gelu")], 1), 1)
    ) as batch:
        niceness = 0
        while batch.pending:
            with suppress(ProcessLookupError, TypeError):  # it has ended
                niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, batch._process.pid))
            for built in batch.finished():
                assert built.path, built.error
        assert niceness > os.getpriority(os.PRIO_PROCESS, 0)
