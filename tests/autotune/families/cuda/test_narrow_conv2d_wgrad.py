"""Rules of the family cuda_narrow_conv2d_wgrad."""

from autotune.core import architecture
from autotune.families import family
from autotune.ir import parse

FAMILY, SM90 = family("cuda_narrow_conv2d_wgrad"), architecture("sm90")
TEXT = "conv2d_wgrad n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype=f16"


def test_few_channels_are_served_with_wgmma_on_hopper_alone():
    problem = parse(TEXT)
    for arch in map(architecture, FAMILY.architectures):
        assert FAMILY.why_not_served(problem, arch) is None
        configs = FAMILY.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == ({"mma", "wgmma"} if arch is SM90 else {"mma"})
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("pad=3", "pad=2"), ("r=7", "r=5")),
        *(("stride=2", "stride=2,1"), ("stride=2", "stride=2 dilation=2"), ("dtype=f16", "dtype=f32")),
    ]:
        assert FAMILY.why_not_served(parse(TEXT.replace(old, new, 1)), SM90), new


def test_pixels_that_begin_inside_of_words_go_through_registers():
    problem = parse(TEXT.replace("stride=2", "stride=1").replace("w=224", "w=223"))
    configs = FAMILY.configs_for(problem, SM90)
    assert configs and {(config["instruction"], config["stages"]) for config in configs} == {("mma", 2)}


def test_strips_leave_few_columns_empty():
    for width, expected in [(224, {16, 32, 64, 112, 128}), (60, {16, 32}), (500, {16, 32, 64, 128})]:
        configs = FAMILY.configs_for(parse(TEXT.replace("w=224", f"w={width}")), SM90)
        assert {config["tile_q"] for config in configs} == expected, width


def test_blocks_fill_the_gpu_and_have_a_row_each():
    problem = parse(TEXT)
    wanted = {"tile_k": 64, "tile_q": 112, "resident": 2}
    config = next(one for one in FAMILY.configs_for(problem, SM90) if one | wanted == one)
    assert [launch["blocks"] for launch in FAMILY.launches(problem, config, SM90)] == [264, 132]
    small = parse(TEXT.replace("n=8 h=224", "n=1 h=7"))
    assert [launch["blocks"] for launch in FAMILY.launches(small, config, SM90)] == [4]
