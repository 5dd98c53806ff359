"""Squeeze-and-excitation with several activations on a GPU: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

SM90, FAMILY = architecture("sm90"), family("cuda_squeeze_excite")
# One block an image, and clusters of them: with fewer pixels for the last block, with none for the last block, with
# more pixels than registers keep, with weights in shared memory and without.
CASES = {
    "block": ("n=5 h=3 w=4 c=64 hidden=6 act=silu gate=sigmoid dtype=f16 epilogue=none", 128, 1, 0, 1, 1),
    "two images a block": (
        "n=200 h=2 w=2 c=16 hidden=8 act=relu gate=hardsigmoid dtype=f16 epilogue=add,relu", 128, 1, 1, 1, 2,
    ),
    "cluster of 2": ("n=3 h=7 w=5 c=72 hidden=20 act=hardswish gate=hardsigmoid dtype=bf16", 128, 2, 1, 2, 1),
    "cluster of 4": ("n=2 h=5 w=5 c=24 hidden=4 act=relu gate=sigmoid dtype=f16 epilogue=add,store", 128, 4, 0, 4, 1),
    "parts of the weights": (
        "n=2 h=2 w=3 c=1160 hidden=50 act=silu gate=sigmoid dtype=f16 epilogue=add", 256, 2, 0, 4, 1,
    ),
    "cluster of 8": ("n=2 h=3 w=3 c=40 hidden=12 act=silu gate=sigmoid dtype=f32 epilogue=silu", 128, 1, 1, 8, 1),
}  # fmt: skip


@pytest.mark.compile
@pytest.mark.parametrize(("text", "threads", "keep", "early", "cluster", "images"), CASES.values(), ids=CASES)
def test_the_kernels_text_scales_by_the_gates(text, threads, keep, early, cluster, images, tmp_path):
    check(FAMILY, parse(f"squeeze_excite {text}"), (threads, keep, early, cluster), images, tmp_path)


def check(served, problem, shape, images, folder):
    """Compare a kernel's outputs with the reference; shape: threads, keep, early and cluster of its config."""
    config = dict(zip(("threads", "keep", "early", "cluster"), shape, strict=True))
    config |= {"act": problem.act, "gate": problem.gate}
    assert config in served.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(served.name, config, problem.dtype, problem.epilogue, "sm_90"), folder)
    for name, error in relative_errors(emulated, problem, {"images": images}, config["cluster"]).items():
        assert error < {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}[problem.dtype], name


# A block an image, several images a block, and a cluster of blocks.
GATES = {
    "block": ("n=3 h=3 w=4 c=64 hidden=6 act=silu gate=sigmoid dtype=f16", 128, 1, 0, 1, 1),
    "two images a block": ("n=200 h=2 w=2 c=16 hidden=8 act=relu gate=hardsigmoid dtype=f16", 128, 1, 1, 1, 2),
    "cluster of 4": ("n=2 h=5 w=5 c=24 hidden=4 act=hardswish gate=sigmoid dtype=bf16 epilogue=add", 128, 2, 1, 4, 1),
    "parts of the weights": ("n=2 h=3 w=3 c=328 hidden=15 act=silu gate=sigmoid dtype=f16", 128, 1, 0, 8, 1),
}


@pytest.mark.compile
@pytest.mark.parametrize(("text", "threads", "keep", "early", "cluster", "images"), GATES.values(), ids=GATES)
def test_the_kernels_text_computes_the_gates_alone(text, threads, keep, early, cluster, images, tmp_path):
    check(family("cuda_se_gates"), parse(f"se_gates {text}"), (threads, keep, early, cluster), images, tmp_path)


@pytest.mark.compile
def test_a_cluster_refuses_several_images(tmp_path):
    problem = parse("squeeze_excite n=4 h=4 w=4 c=64 hidden=4 act=silu gate=sigmoid dtype=f16")
    config = {"threads": 128, "keep": 1, "early": 0, "cluster": 2, "act": "silu", "gate": "sigmoid"}
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    assert emulated.refusal(problem, {"images": 2}) == "a cluster takes one image"
    assert emulated.refusal(problem, {"images": 1}) is None


def test_clusters_are_for_hopper_and_small_batches():
    few, many = (
        parse(f"squeeze_excite n={n} h=56 w=56 c=144 hidden=6 act=silu gate=sigmoid dtype=f16") for n in (1, 4096)
    )
    assert {config["cluster"] for config in FAMILY.configs_for(few, SM90)} == {1, 2, 4, 8}
    assert {config["cluster"] for config in FAMILY.configs_for(few, architecture("sm80"))} == {1}
    ranked = {
        problem.n: min(FAMILY.configs_for(problem, SM90), key=lambda config: FAMILY.cost(problem, config, SM90))
        for problem in (few, many)
    }
    assert ranked[1]["cluster"] == 8 and ranked[4096]["cluster"] < 8
