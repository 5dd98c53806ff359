"""Families: every CPU family's kernels on random odd problems, and what each family's declarations promise."""

import math
from dataclasses import replace
from itertools import islice

import pytest
from random_sizes import SIZES

from autotune.core import ARCHITECTURES, UnknownNameError, architecture
from autotune.families import DEVICE_IMAGE, PERMISSIONS, SHARED_LIBRARY, families, family, serving
from autotune.ir import BYTE_FORMATS, Epilogue, parse

# -- what families declare -------------------------------------------------------------------


def test_unknown_family_lists_the_known():
    with pytest.raises(UnknownNameError, match="cpu_conv2d"):
        family("cpu_conv3d")


@pytest.mark.parametrize("name", families())
def test_declarations_are_complete(name):
    found = families()[name]
    assert found.name == name and found.kind in (SHARED_LIBRARY, DEVICE_IMAGE)
    assert (found.kind == SHARED_LIBRARY) == (found.architectures == ("cpu",))
    assert set(found.architectures) <= set(ARCHITECTURES)
    for parameter in found.parameters + found.launch_parameters:
        assert parameter.meaning and len(set(parameter.values)) == len(parameter.values)


@pytest.mark.parametrize("name", families())
def test_every_architecture_of_a_family_has_legal_configs(name):
    found = families()[name]
    chain = Epilogue(found.operators[0].anchors)
    for arch in map(architecture, found.architectures):
        for dtype in arch.dtypes:
            if dtype not in found.dtypes:
                continue
            configs = list(islice(found.configs(arch, dtype, chain, tuple(PERMISSIONS)), 1000))
            assert configs
            assert all(found.why_illegal(config, arch, dtype, chain) is None for config in configs)
            assert len({tuple(config.values()) for config in configs}) == len(configs)


NETWORK = [
    "conv2d n=128 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype={} epilogue=mul_scalar,add_scalar",
    "conv2d n=1 h=4 w=4 c=256 k=512 r=3 s=3 stride=2 pad=1 dtype={}",
    "conv2d_dgrad n=8 h=16 w=16 c=64 k=128 r=3 s=3 stride=2 pad=1 dtype={}",
    "conv2d_dgrad n=8 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype={}",
    "conv2d_wgrad n=8 h=16 w=16 c=64 k=128 r=3 s=3 stride=2 pad=1 dtype={}",
    "gemm m=64 n=1000 k=512 dtype={} epilogue=bias",
    "avg_pool2d n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "max_pool2d n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "max_pool2d_places n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "max_pool2d_places_gradient n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "global_avg_pool2d n=8 h=7 w=7 c=512 dtype={}",
    "elementwise n=8 h=7 w=7 c=512 dtype={} epilogue=scale,bias,relu",
    "layer_norm n=8 h=7 w=7 c=768 dtype={} epilogue=scale,bias",
    "group_norm n=8 h=14 w=14 c=256 groups=32 dtype={} epilogue=scale,bias,relu",
    "group_statistics n=8 h=112 w=112 c=256 groups=32 dtype={}",
    "normalize n=8 h=112 w=112 c=256 dtype={} epilogue=scale,bias,silu",
    "batch_norm_statistics n=128 h=112 w=112 c=64 dtype={}",
    "batch_norm_gradient_sums n=128 h=7 w=7 c=2048 relu=2 gradients=2 dtype={}",
    "batch_norm_gradient n=128 h=56 w=56 c=64 relu=1 dtype={}",
    "relu_gradient_sums n=128 h=56 w=56 c=64 product=1 pool=3 stride=2 pad=1 dtype={}",
    "softmax n=8 h=64 w=64 c=21 dtype={}",
    "upsample n=8 h=28 w=28 c=21 p=224 q=224 rows=1,8 columns=1,8 mode=bilinear dtype={}",
    "depth_to_space n=8 h=28 w=28 c=64 block=2 dtype={} epilogue=bias",
    "to_channels_last n=8 h=32 w=32 c=3 to=8 dtype={}",
    "space_to_depth n=8 h=64 w=64 c=3 block=4 dtype={}",
    "se_tail n=8 h=16 w=16 c=64 hidden=4 dtype={} epilogue=add,relu,add_scalar",
    "squeeze_excite n=8 h=16 w=16 c=64 hidden=4 act=silu gate=hardsigmoid dtype={}",
]


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=lambda arch: arch.name)
def test_every_layer_is_served_everywhere_with_costs_and_declared_launches(arch):
    dtypes = arch.dtypes
    if arch.name in ("sm86", "sm89"):  # sm80 with other limits
        assert dtypes[:5] == architecture("sm80").dtypes
        dtypes = dtypes[:1]
    for dtype in dtypes:
        # Gradients are of halves, or of a CPU's float32; bytes have what lies between a network's ends.
        halves = dtype in ("f16", "bf16") or (not arch.is_cuda and dtype not in BYTE_FORMATS)
        layers = [text for text in NETWORK if halves or not text.startswith("conv2d_")]
        floats = ("to_channels_last", "space_to_depth", "se_tail", "layer_norm", "group_norm", "softmax", "upsample")
        floats = (*floats, "depth_to_space", "squeeze_excite", "max_pool2d_places", "batch_norm")
        floats = (*floats, "relu_gradient_sums", "group_statistics", "normalize")
        layers = [text for text in layers if dtype not in BYTE_FORMATS or not text.startswith(floats)]
        if dtype == "e4m3":  # whose only convolutions on GPUs store whole 16 bytes
            layers = [text.replace("n=1000", "n=1008") for text in layers]
        if dtype != "tf32":
            results = ("f32",) if dtype in BYTE_FORMATS else set(BYTE_FORMATS) & set(arch.dtypes)
            layers += [f"cast n=8 h=7 w=7 c=512 result={result} dtype={{}}" for result in results]
        for problem in (parse(text.format(dtype)) for text in layers):
            serving_families = serving(problem, arch)
            assert serving_families, f"nothing solves {problem} on {arch.name}"
            for found in serving_families:
                usable = found.configs_for(problem, arch)
                assert usable and all(found.launches(problem, config, arch) for config in usable)
                for config in usable[:: max(1, len(usable) // 20)]:
                    cost = found.cost(problem, config, arch)
                    assert math.isfinite(cost)
                    for launch in found.launches(problem, config, arch):
                        assert set(launch) == {parameter.name for parameter in found.launch_parameters}
                        for parameter in found.launch_parameters:
                            assert launch[parameter.name] in parameter.values


@pytest.mark.parametrize("processors", [7, 114, 148])
@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=64 h=28 w=28 c=128 k=128 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu",
        "conv2d_se n=300 h=8 w=8 c=128 k=128 r=3 s=3 pad=1 hidden=8 dtype=f16 epilogue=gate,relu",
        "gemm m=512 n=512 k=4096 dtype=f16",
        "se_block n=300 h=16 w=16 c=64 hidden=4 dtype=f16",
        "stem_se_block n=300 h=64 w=64 c=3 k=64 block=4 hidden=4 dtype=f16",
    ],
)
def test_launches_are_declared_for_parts_of_other_sizes(text, processors):
    problem, arch = parse(text), replace(architecture("sm90"), processors=processors)
    for found in serving(problem, arch):
        configs = found.configs_for(problem, arch)
        for config in configs[:: max(1, len(configs) // 20)]:
            assert math.isfinite(found.cost(problem, config, arch))
            for launch in found.launches(problem, config, arch):
                assert all(launch[parameter.name] in parameter.values for parameter in found.launch_parameters)


def test_every_cuda_family_is_drawn_at_random_on_a_gpu():
    assert set(SIZES) == {name for name, found in families().items() if found.kind == DEVICE_IMAGE}


def test_e4m3_is_for_gpus_that_convert_it():
    """From sm_89 on; there are convolutions for sm_90 alone. CUTLASS's families, cuDNN and older GPUs have none."""
    moved = [parse(f"cast n=1 h=8 w=8 c=32 result={a} dtype={b}") for a, b in (("f32", "e4m3"), ("e4m3", "f32"))]
    pool = parse("max_pool2d n=1 h=8 w=8 c=32 r=2 s=2 stride=2 dtype=e4m3")
    conv = parse("conv2d n=1 h=8 w=8 c=32 k=32 dtype=e4m3 epilogue=scale")

    def kernels(problem, arch):
        return {found.name for found in serving(problem, arch) if found.configs_for(problem, arch)}

    for arch in ARCHITECTURES.values():
        has = not arch.is_cuda or arch.capability >= 89
        assert ("e4m3" in arch.dtypes) == has
        assert all(bool(kernels(problem, arch)) == has for problem in (*moved, pool)), arch.name
    served = {name: kernels(conv, arch) for name, arch in ARCHITECTURES.items()}
    assert {name: found for name, found in served.items() if found} == {
        "cpu": {"cpu_conv2d"}, "sm90": {"sm90_e4m3_conv2d"}
    }  # fmt: skip
    reasons = {name: found.why_not_served(conv, architecture("sm90")) for name, found in families().items()}
    assert reasons["cutlass2_conv2d"] == "it has no kernels in e4m3"
    assert family("cuda_max_pool2d").why_not_served(pool, architecture("sm80")) == "sm80 has no e4m3"


def test_families_refuse_what_they_cannot_solve():
    sm80 = architecture("sm80")
    conv = parse("conv2d n=1 h=8 w=8 c=16 k=16 dtype=f16")
    tail = parse("se_tail n=1 h=2 w=2 c=12 hidden=2 dtype=f16")
    assert family("cutlass2_conv2d").why_not_served(conv, sm80) is None
    depthwise = replace(conv, groups=16)
    for change in ({"groups": 16}, {"groups": 2, "dtype": "f32"}, {"n": 2**20, "h": 64, "w": 64}):
        assert family("cutlass2_conv2d").why_not_served(replace(conv, **change), sm80)
    assert family("cutlass2_conv2d").why_not_served(replace(conv, dtype="bf16"), architecture("sm75"))
    assert family("cuda_depthwise_conv2d").why_not_served(conv, sm80)
    assert family("cuda_depthwise_conv2d").why_not_served(depthwise, sm80) is None
    assert family("cuda_se_tail").why_not_served(replace(tail, c=16, dtype="s8"), sm80)
    assert family("cuda_se_tail").why_not_served(tail, sm80)
    assert family("cuda_se_tail").why_not_served(conv, sm80)
    moved = parse("space_to_depth n=1 h=8 w=8 c=3 block=4 dtype=f32")
    for name, arch in (("cuda_space_to_depth", sm80), ("cpu_space_to_depth", architecture("cpu"))):
        assert family(name).why_not_served(moved, arch) is None
        assert (
            family(name).why_not_served(replace(moved, epilogue=Epilogue(("relu",))), arch)
            == "the epilogue must be empty"
        )
    assert family("cpu_conv2d").why_not_served(conv, sm80)
    assert family("cpu_conv2d").why_not_served(
        parse("conv2d_dgrad n=1 h=8 w=8 c=16 k=16 dtype=f32"), architecture("cpu")
    )
