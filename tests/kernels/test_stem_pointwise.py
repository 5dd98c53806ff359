"""The first layers of a network with the 1x1 convolution after them in one kernel: its own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors
from kernels import assert_exported, need_compiler

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.cuda.few_channels import FewChannelsShape
from autotune.ir import parse

FAMILY, POOL = family("cuda_stem_pointwise"), "pool=3 pool_stride=2 pool_pad=1"
MMA = {"instruction": "mma", "strips": 2, "rows": 2, "together": 1, "stages": 2, "resident": 1}
WGMMA = {**MMA, "instruction": "wgmma", "strips": 4}
# Images whose last tile ends below the image and beyond its last column, and odd numbers of pooled rows; channels that
# fill no 32; warps that split the channels, and warps that do not; several tiles of a block, with one stage and two;
# tensors before and behind the second convolution.
CASES = {
    "a ResNet's": (
        f"n=2 h=21 w=40 c=3 k=64 r=7 s=7 stride=2 pad=3 {POOL} outputs=64 dtype=f16 "
        "epilogue=bias,relu,store,conv,bias,relu",
        {"rows": 4, "stages": 1},
    ),
    "one reader": (
        f"n=1 h=34 w=66 c=4 k=64 r=5 s=5 stride=2 pad=2 {POOL} outputs=128 dtype=bf16 epilogue=bias,silu,conv,bias",
        {"together": 2},
    ),
    "few channels": (
        f"n=2 h=13 w=24 c=1 k=24 r=3 s=3 stride=2 pad=1 {POOL} outputs=72 dtype=f16 epilogue=conv,bias,mul_scalar,add",
        {},
    ),
    "odd channels": (
        f"n=1 h=27 w=58 c=3 k=40 r=7 s=7 stride=2 pad=3 {POOL} outputs=88 dtype=bf16 "
        "epilogue=store,add,relu6,conv,add,store",
        {"rows": 8},
    ),
}


def config_of(problem, arch, wanted):
    return next(
        config
        for config in FAMILY.configs_for(problem, architecture(arch))
        if all(config[key] == value for key, value in wanted.items())
    )


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@pytest.mark.parametrize(("text", "chosen"), CASES.values(), ids=CASES)
@pytest.mark.compile
def test_the_kernels_text_computes_both_convolutions(text, chosen, arch, tmp_path):
    problem = parse(f"stem_pointwise {text}")
    config = config_of(problem, arch, {**(WGMMA if arch == "sm90" else MMA), **chosen})
    emulated = Emulated(
        Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, arch.replace("sm", "sm_")), tmp_path
    )
    for walk in (1, 4):
        assert emulated.shared_bytes(problem, {"walk": walk}) == FewChannelsShape.from_config(config).shared_bytes
        for name, error in relative_errors(emulated, problem, {"walk": walk}).items():
            assert error < {"f16": 1e-3, "bf16": 8e-3}[problem.dtype], (name, walk)


@pytest.mark.compile
def test_a_kernel_refuses_what_it_is_not_compiled_for(tmp_path):
    problem = parse(f"stem_pointwise {CASES['few channels'][0]}")
    config = config_of(problem, "sm80", MMA)
    emulated = Emulated(Kernel.of(FAMILY.name, config, "f16", problem.epilogue, "sm_80"), tmp_path)
    assert emulated.refusal(problem, {"walk": 1}) is None
    for old, new, reason in (
        ("k=24", "k=40", "channels of the two"),
        ("outputs=72", "outputs=104", "channels of the two"),
        ("outputs=72", "outputs=60", "multiple of 8"),
        ("pad=1", "pad=0", "another c, filter, stride, padding"),
    ):
        other = parse(f"stem_pointwise {CASES['few channels'][0]}".replace(old, new, 1))
        assert reason in emulated.refusal(other, {"walk": 1}), new


@pytest.mark.compile
@pytest.mark.parametrize(("arch", "wanted"), [("sm80", MMA), ("sm90", WGMMA)])
def test_kernels_compile(arch, wanted):
    target = arch.replace("sm", "sm_")
    need_compiler(target)
    problem = parse(f"stem_pointwise {CASES['one reader'][0]}")
    config = config_of(problem, arch, wanted)
    assert_exported([Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, target)])


def test_what_it_does_not_serve_has_a_reason():
    text, sm90 = f"stem_pointwise {CASES['few channels'][0]}", architecture("sm90")
    assert FAMILY.why_not_served(parse(text), sm90) is None
    assert FAMILY.why_not_served(parse(text), architecture("sm75"))
    for old, new, reason in (
        ("k=24", "k=72", "k must be at most 64"),
        ("k=24", "k=20", "multiple of 8"),
        ("outputs=72", "outputs=136", "at most 128"),
        ("outputs=72", "outputs=60", "multiple of 8"),
        (POOL, "pool=1", "a pool"),
        ("w=24", "w=25", "multiple of 2"),
    ):
        assert reason in FAMILY.why_not_served(parse(text.replace(old, new, 1)), sm90), new
