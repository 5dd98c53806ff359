"""Rules and launches of the family cuda_pointwise_conv2d."""

from autotune.core import architecture
from autotune.families import family
from autotune.ir import parse


def test_short_products_are_served_where_their_operands_fit_registers():
    short, sm90 = family("cuda_pointwise_conv2d"), architecture("sm90")
    text = "conv2d n=8 h=8 w=8 c=64 k=128 dtype=f16"
    assert short.why_not_served(parse(text), sm90) is None
    assert short.why_not_served(parse("gemm m=100 n=16 k=256 dtype=bf16"), sm90) is None
    for old, new in [
        *(("c=64", "c=60"), ("c=64", "c=264"), ("c=64", "c=160"), ("k=128", "k=130"), ("f16", "f32")),
        *(("k=128", "k=128 stride=2"), ("k=128", "k=128 groups=2"), ("k=128", "k=128 r=3 s=3 pad=1")),
    ]:
        assert short.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    problem = parse(text)
    for config in short.configs_for(problem, sm90):
        assert int(config["steps"]) == 2
        walks = [launch["walk"] for launch in short.launches(problem, config, sm90)]
        assert min(walks) == 1 + int(config["ahead"]), "there is a next tile to read ahead"
    single = parse("gemm m=8 n=64 k=64 dtype=f16")
    assert {config["ahead"] for config in short.configs_for(single, sm90)} == {0}
