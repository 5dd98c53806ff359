"""The table of architectures and which binaries run where."""

import subprocess

import pytest

from autotune.core import ARCHITECTURES, UnknownNameError, architecture, cpu_targets, of_capability, runs_on
from autotune.ir import DTYPES


def test_unknown_architecture_lists_the_known():
    with pytest.raises(UnknownNameError, match=r"unknown architecture 'sm42'.*cpu.*sm90"):
        architecture("sm42")


@pytest.mark.parametrize(
    ("capability", "name"),
    [(70, "sm70"), (72, "sm70"), (75, "sm75"), (80, "sm80"), (86, "sm86"), (87, "sm86"), (89, "sm89"), (90, "sm90")],
)
def test_a_gpu_gets_the_newest_architecture_it_has(capability, name):
    assert of_capability(capability).name == name


def test_a_gpu_that_is_too_old_is_refused():
    with pytest.raises(UnknownNameError, match="60"):
        of_capability(60)


@pytest.mark.parametrize(
    ("code", "device", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_80", "sm_89", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90", "sm_89", False),
        ("sm_70", "sm_75", True),
        ("sm_75", "sm_70", False),
        ("sm_90", "sm_100", False),
        ("x86-64", "sm_90", False),
        ("sm_90", "x86-64", False),
    ],
)
def test_binaries_run_within_a_major_version_upwards(code, device, runs):
    assert runs_on(code, device) is runs


@pytest.mark.compile
def test_cpu_targets_are_names_that_the_compiler_takes(tmp_path):
    targets = cpu_targets()
    assert targets and all(runs_on(target, targets[0]) for target in targets)
    for target in targets:
        if target.startswith("x86-64"):
            command = ["g++", f"-march={target}", "-x", "c++", "-c", "/dev/null", "-o", str(tmp_path / "x.o")]
            subprocess.run(command, check=True)


@pytest.mark.process
def test_cpu_target_is_one_that_this_machine_executes(tmp_path):
    target = cpu_targets()[0]
    if not target.startswith("x86-64"):
        pytest.skip("not an x86-64 machine")
    source = tmp_path / "sum.cpp"
    source.write_text(
        "float v[4096]; int main(int c, char**) { for (int i = 0; i < 4096; ++i) v[i] = v[i] * c + i;"
        " float s = 0; for (float x : v) s += x; return s != 8386560.f; }"
    )
    subprocess.run(
        ["g++", "-O3", "-ffast-math", f"-march={target}", str(source), "-o", str(tmp_path / "sum")], check=True
    )
    subprocess.run([str(tmp_path / "sum")], check=True)


def test_limits_are_sensible():
    for arch in ARCHITECTURES.values():
        if arch.is_cuda:
            assert arch.block_shared + arch.reserved_shared <= arch.sm_shared
            assert arch.dtypes[0] == "f16" and {"f32", "f16"} <= set(arch.dtypes) <= set(DTYPES)
            assert {"bf16" in arch.dtypes, "tf32" in arch.dtypes} == {arch.capability >= 80}
            assert ("s8" in arch.dtypes) == (arch.capability >= 75)
