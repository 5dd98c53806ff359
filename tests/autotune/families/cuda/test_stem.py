"""Rules of the families cuda_stem and cuda_stem_cast."""

import math
from dataclasses import replace

import pytest

from autotune.core import ProblemError, architecture
from autotune.families import family, serving
from autotune.ir import parse


def test_stems_are_served_where_the_kernel_can_solve_them():
    stem, sm90 = family("cuda_stem"), architecture("sm90")
    text = "stem n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 dtype=f16"
    problem = parse(text)
    for arch in map(architecture, stem.architectures):
        assert stem.why_not_served(problem, arch) is None
        configs = stem.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == (
            {"mma", "wgmma", "wgmma_ahead"} if arch is sm90 else {"mma"}
        )
        assert all(stem.why_unfit(problem, config, arch) is None for config in configs)
        assert all(math.isfinite(stem.cost(problem, config, arch)) for config in configs)
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("stride=2", "stride=1"), ("pad=3", "pad=2")),
        *(("r=7", "r=5"), ("pool_stride=2", "pool_stride=1"), ("dtype=f16", "dtype=f32")),
    ]:
        assert stem.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    assert {config["access"] for config in stem.configs_for(replace(problem, w=226), sm90)} == {2}


def test_a_stem_with_a_result_in_bytes_has_a_family_of_its_own():
    text = "n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1"
    plain, cast = parse(f"stem {text} dtype=f16"), parse(f"stem_cast {text} result=s8 dtype=f16 epilogue=mul_scalar")
    sm80, sm86, sm90 = map(architecture, ("sm80", "sm86", "sm90"))
    assert [[one.name for one in serving(problem, sm90)] for problem in (plain, cast)] == [
        ["cuda_stem"],
        ["cuda_stem_cast"],
    ]
    found = family("cuda_stem_cast")
    assert {config["result"] for config in found.configs_for(cast, sm86)} == {"s8"}
    assert {config["result"] for config in found.configs_for(replace(cast, result="e4m3"), sm90)} == {"e4m3"}
    assert not list(found.configs_for(replace(cast, result="e4m3"), sm80)), "sm80 has no e4m3"
    with pytest.raises(ProblemError, match="the result must be s8 or e4m3"):
        replace(cast, result="f32")
