"""Rules of the family cuda_stem."""

import math
from dataclasses import replace

from autotune.core import architecture
from autotune.families import family
from autotune.ir import (
    parse,
)


def test_stems_are_served_where_the_kernel_can_solve_them():
    stem, sm90 = family("cuda_stem"), architecture("sm90")
    text = "stem n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 dtype=f16"
    problem = parse(text)
    for arch in map(architecture, stem.architectures):
        assert stem.why_not_served(problem, arch) is None
        configs = stem.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == ({"mma", "wgmma"} if arch is sm90 else {"mma"})
        assert all(stem.why_unfit(problem, config, arch) is None for config in configs)
        assert all(math.isfinite(stem.cost(problem, config, arch)) for config in configs)
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("stride=2", "stride=1"), ("pad=3", "pad=2")),
        *(("r=7", "r=5"), ("pool_stride=2", "pool_stride=1"), ("dtype=f16", "dtype=f32")),
    ]:
        assert stem.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    assert {config["access"] for config in stem.configs_for(replace(problem, w=226), sm90)} == {2}
