"""Rules of the family cuda_narrow_conv2d."""

from dataclasses import replace

from autotune.core import architecture
from autotune.families import family
from autotune.ir import parse


def test_few_channels_in_one_line_are_served_where_lines_begin_whole_words_apart():
    narrow, sm90 = family("cuda_narrow_conv2d"), architecture("sm90")
    text = "conv2d n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype=f16"
    problem = parse(text)
    for arch in map(architecture, narrow.architectures):
        assert narrow.why_not_served(problem, arch) is None
        configs = narrow.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == (
            {"mma", "wgmma", "wgmma_ahead"} if arch is sm90 else {"mma"}
        )
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("stride=2", "stride=1"), ("pad=3", "pad=2")),
        *(("r=7", "r=5"), ("stride=2", "stride=2,1"), ("stride=2", "stride=2 dilation=2"), ("dtype=f16", "dtype=f32")),
    ]:
        assert narrow.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    for c, w, stride in [(4, 225, 1), (2, 223, 1), (1, 224, 2)]:
        asked = replace(problem, c=c, w=w, stride=(stride, stride))
        assert narrow.why_not_served(asked, sm90) is None and narrow.configs_for(asked, sm90)
