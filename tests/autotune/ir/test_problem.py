"""Problems: their text, their shapes and the order of their operands."""

import random
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch

from autotune.core import ProblemError, UnknownNameError
from autotune.ir import (
    MAX_OPERANDS,
    OPERATORS,
    AvgPool2d,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    Elementwise,
    Epilogue,
    Gemm,
    MaxPool2d,
    PatchConv2d,
    Problem,
    SeBlock,
    SeTail,
    SpaceToDepth,
    Stem,
    dtype_name,
    limit_us,
    parse,
    with_batch,
)
from autotune.ir.epilogue_steps import define_step
from autotune.ir.problem import (
    DtypeName,
    FieldType,
    NonNegative,
    NonNegativePair,
    Pair,
    output_extent,
    register,
)

TEXTS = [
    "conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=f32 epilogue=bias,relu",
    "conv2d_dgrad n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=f16 epilogue=none",
    "conv2d_wgrad n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=bf16 epilogue=none",
    "conv2d_se n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 hidden=3 dtype=f32 epilogue=gate",
    "conv2d_folded_se n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=1 hidden=3 dtype=f32 "
    "epilogue=gate",
    "conv2d_se_skip n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=1 hidden=3 skip_c=6 "
    "skip_groups=2 dtype=f32 epilogue=bias,gate,project",
    "patch_conv2d n=2 h=8 w=12 c=3 k=16 block=4 dtype=bf16 epilogue=relu",
    "gemm m=3 n=7 k=5 dtype=f32 epilogue=bias,relu",
    "avg_pool2d n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 dtype=bf16 epilogue=none",
    "max_pool2d n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 ceil=1 dtype=f16 epilogue=relu",
    "global_avg_pool2d n=1 h=7 w=8 c=3 dtype=f16 epilogue=none",
    "elementwise n=1 h=7 w=8 c=3 dtype=f16 epilogue=add,relu",
    "cast n=1 h=7 w=8 c=3 result=s8 dtype=f16 epilogue=mul_scalar,add",
    "to_channels_last n=2 h=8 w=12 c=3 to=8 dtype=f16 epilogue=none",
    "space_to_depth n=2 h=8 w=12 c=3 block=4 dtype=f16 epilogue=none",
    "stem n=2 h=8 w=9 c=3 k=16 r=7 s=7 stride=2,2 pad=3,3 pool=3 pool_stride=2 pool_pad=1 dtype=f16 epilogue=bias,relu",
    "se_tail n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=add,relu,add_scalar",
    "se_block n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=bias,conv,gate,add,relu",
    "stem_se_block n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=relu,keep,conv,bias,conv,gate,add_kept",
    "stem_se_block_pool n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=keep,conv,conv,gate,add_kept,relu",
    "se_down_block n=2 h=7 w=8 c=16 k=24 hidden=2 dtype=f16 epilogue=bias,relu,conv,gate,project,relu",
]


def random_conv(rng: random.Random) -> dict:
    groups = rng.choice((1, 1, 2, 3))
    return {
        "n": rng.randint(1, 3),
        "h": rng.randint(7, 20),
        "w": rng.randint(7, 20),
        "c": groups * rng.randint(1, 4),
        "k": groups * rng.randint(1, 4),
        "r": rng.randint(1, 3),
        "s": rng.randint(1, 3),
        "stride": (rng.randint(1, 3), rng.randint(1, 3)),
        "pad": (rng.randint(0, 3), rng.randint(0, 3)),
        "dilation": (rng.randint(1, 3), rng.randint(1, 3)),
        "groups": groups,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_back_to_the_letter(text):
    assert str(parse(text)) == text


def test_every_operator_has_a_text_here():
    assert {text.split()[0] for text in TEXTS} == set(OPERATORS)


@pytest.mark.parametrize("seed", range(40))
def test_random_conv_round_trips_and_has_torchs_shape(seed):
    fields = random_conv(random.Random(seed))
    problem = Conv2d(**fields, dtype="f32", epilogue=Epilogue.parse("bias,add,store"))
    assert parse(str(problem)) == problem
    conv = torch.nn.Conv2d(
        fields["c"],
        fields["k"],
        (fields["r"], fields["s"]),
        fields["stride"],
        fields["pad"],
        fields["dilation"],
        fields["groups"],
    )
    n, k, p, q = conv(torch.randn(fields["n"], fields["c"], fields["h"], fields["w"])).shape
    assert problem.output_shape == (n, p, q, k)
    operands = {operand.name: operand for operand in problem.operands()}
    assert operands["weight"].shape == tuple(conv.weight.shape)
    assert problem.flops == 2 * n * p * q * conv.weight.numel()


@pytest.mark.parametrize("seed", range(10))
def test_pool_has_torchs_shape(seed):
    rng = random.Random(seed)
    window, stride = (rng.randint(2, 4), rng.randint(2, 4)), (rng.randint(1, 3), rng.randint(1, 3))
    problem = AvgPool2d(n=2, h=9, w=11, c=5, r=window[0], s=window[1], stride=stride, pad=(1, 1), dtype="f32")
    n, c, p, q = torch.nn.AvgPool2d(window, stride, 1)(torch.randn(2, 5, 9, 11)).shape
    assert problem.output_shape == (n, p, q, c)


@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_has_torchs_shape(size, ceil):
    for window, stride, pad in [(3, 2, 0), (3, 2, 1), (2, 2, 0), (2, 2, 1), (2, 3, 0), (2, 3, 1), (4, 3, 2), (1, 2, 0)]:
        if size + 2 * pad < window:
            continue
        expected = torch.nn.MaxPool2d(window, stride, pad, ceil_mode=bool(ceil))(torch.randn(1, 1, size, 9)).shape
        problem = MaxPool2d(
            n=1, h=size, w=9, c=1, r=window, s=window, stride=(stride,) * 2, pad=(pad,) * 2, ceil=ceil, dtype="f32"
        )
        assert problem.output_shape == (1, expected[2], expected[3], 1)


def test_a_stem_is_a_convolution_and_a_pool():
    conv, pool = torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.MaxPool2d(3, 2, 1)
    problem = Stem(
        n=2, h=50, w=37, c=3, k=64, r=7, s=7, stride=(2, 2), pad=(3, 3), pool=3, pool_stride=2, pool_pad=1, dtype="f32"
    )
    between = conv(torch.randn(2, 3, 50, 37))
    n, k, p, q = pool(between).shape
    assert problem.output_shape == (n, p, q, k)
    assert problem.flops == 2 * between.numel() * 3 * 7 * 7
    assert [operand.shape for operand in problem.operands()] == [(2, 3, 50, 37), conv.weight.shape, (n, p, q, k)]


def test_output_extent_is_torchs_for_every_small_window():
    for size in range(3, 12):
        for kernel, stride, pad, dilation in [(1, 1, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2), (2, 3, 0, 1), (2, 2, 1, 2)]:
            x = torch.randn(1, 1, size)
            expected = torch.nn.functional.conv1d(x, torch.randn(1, 1, kernel), None, stride, pad, dilation).shape[-1]
            assert output_extent(size, kernel, stride, pad, dilation) == expected


def test_operands_come_as_inputs_output_and_the_epilogues_in_turn():
    epilogue = Epilogue.parse("bias,relu,store,add_scalar,add,scale")
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=epilogue)
    listed = [(operand.name, operand.role, operand.shape, operand.dtype) for operand in problem.operands()]
    assert listed == [
        ("x", "input", (1, 4, 4, 8), "f16"),
        ("weight", "weight", (16, 8, 1, 1), "f16"),
        ("y", "output", (1, 4, 4, 16), "f16"),
        ("bias0", "vector", (16,), "f32"),
        ("store1", "output", (1, 4, 4, 16), "f16"),
        ("add2", "input", (1, 4, 4, 16), "f16"),
        ("scale3", "vector", (16,), "f32"),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_gradients_exchange_the_operands_of_the_forward_pass(seed):
    fields = random_conv(random.Random(seed))
    forward, dgrad, wgrad = (cls(**fields, dtype="f32") for cls in (Conv2d, Conv2dDgrad, Conv2dWgrad))
    x, weight, y = (operand.shape for operand in forward.operands())
    listed = [[(o.name, o.role, o.shape) for o in problem.operands()] for problem in (dgrad, wgrad)]
    last = (weight[0], weight[2], weight[3], weight[1])
    assert listed[0] == [("dy", "input", y), ("weight", "weight", weight), ("y", "output", x)]
    assert listed[1] == [("dy", "input", y), ("x", "input", x), ("y", "output", last)]
    assert forward.flops == dgrad.flops == wgrad.flops
    assert forward.bytes == dgrad.bytes == wgrad.bytes


def test_channels_of_a_gradients_epilogue_are_its_last_axis():
    fields = {"n": 1, "h": 5, "w": 5, "c": 12, "k": 6, "groups": 2, "dtype": "f16", "epilogue": Epilogue.parse("bias")}
    assert Conv2dDgrad(**fields).operands()[-1].shape == (12,)
    assert Conv2dWgrad(**fields).operands()[-1].shape == (6,)


def test_gemm_is_torchs_linear_and_a_convolution_of_one_pixel():
    problem = Gemm(m=3, n=7, k=5, dtype="f16", epilogue=Epilogue.parse("bias,add"))
    shapes = [operand.shape for operand in problem.operands()]
    assert shapes == [(3, 5), torch.nn.Linear(5, 7).weight.shape, (3, 7), (7,), (3, 7)]
    assert problem.flops == problem.as_conv2d.flops == 2 * 3 * 7 * 5
    assert problem.bytes == problem.as_conv2d.bytes


@pytest.mark.parametrize(
    ("operator", "epilogue", "wanted"),
    [
        ("conv2d n=1 h=4 w=4 c=8 k=8", "relu,gate", "of conv2d can have none"),
        ("se_tail n=1 h=4 w=4 c=8 hidden=2", "conv", "of se_tail can have none"),
        ("conv2d_se n=1 h=4 w=4 c=8 k=8 hidden=2", "relu", "of conv2d_se must have gate, once"),
        ("conv2d_se n=1 h=4 w=4 c=8 k=8 hidden=2", "gate,gate", "must have gate, once"),
        ("se_block n=1 h=4 w=4 c=8 hidden=2", "gate,conv", "of se_block must have conv and then gate, once"),
        ("se_block n=1 h=4 w=4 c=8 hidden=2", "conv", "must have conv and then gate, once"),
        (
            "stem_se_block n=1 h=8 w=8 c=3 k=8 block=4 hidden=2",
            "keep,conv,gate,add_kept",
            "conv and then conv and then",
        ),
        ("se_down_block n=1 h=4 w=4 c=8 k=8 hidden=2", "conv,gate", "conv and then gate and then project, once"),
    ],
)
def test_places_in_a_chain_are_the_problems_own(operator, epilogue, wanted):
    with pytest.raises(ProblemError, match=wanted):
        parse(f"{operator} dtype=f16 epilogue={epilogue}")


def test_a_blocks_operands_and_work_are_those_of_its_parts():
    block = parse("se_block n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=bias,conv,gate,add")
    names = ["x", "weight1", "weight2", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in block.operands()] == names
    tail = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f16")
    conv = Conv2d(n=2, h=3, w=4, c=16, k=16, r=3, s=3, pad=(1, 1), dtype="f16")
    shapes = {operand.name: operand.shape for part in (conv, tail) for operand in part.operands()}
    shapes |= {"weight1": shapes["weight"], "weight2": shapes["weight"]}
    assert all(operand.shape == shapes[operand.name] for operand in block.operands()[:8])
    assert block.flops == 2 * conv.flops + tail.flops


def test_a_block_behind_a_stem_is_made_of_both():
    both = parse(
        "stem_se_block n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=bias,keep,conv,conv,gate,add_kept,add"
    )
    names = ["x", "weight", "weight1", "weight2", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in both.operands()] == names
    stem = PatchConv2d(n=2, h=8, w=12, c=3, k=16, block=4, dtype="f16")
    block = SeBlock(n=2, h=2, w=3, c=16, hidden=2, dtype="f16")
    assert both.output_shape == stem.output_shape == block.output_shape
    assert both.flops == stem.flops + block.flops
    assert both.operands()[:9] == (*stem.operands()[:2], *block.operands()[1:])


def test_a_block_that_halves_its_image_is_made_of_known_parts():
    block = parse("se_down_block n=2 h=7 w=8 c=16 k=24 hidden=2 dtype=f16 epilogue=bias,conv,gate,project,add")
    names = ["x", "weight1", "weight2", "projection", "w1", "b1", "w2", "b2", "y", "bias0", "add1"]
    assert [operand.name for operand in block.operands()] == names
    first = Conv2d(n=2, h=7, w=8, c=16, k=24, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype="f16")
    second = Conv2d(n=2, h=4, w=4, c=24, k=24, r=3, s=3, pad=(1, 1), dtype="f16")
    pool = AvgPool2d(n=2, h=7, w=8, c=16, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype="f16")
    projection = Conv2d(n=2, h=4, w=4, c=16, k=24, dtype="f16")
    tail = SeTail(n=2, h=4, w=4, c=24, hidden=2, dtype="f16")
    assert block.output_shape == tail.output_shape
    assert block.flops == sum(part.flops for part in (first, second, pool, projection, tail))
    weights = [part.operands()[1].shape for part in (first, second, projection)]
    assert [operand.shape for operand in block.operands()[1:4]] == weights


def test_se_tail_and_space_to_depth_operands():
    tail = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f32", epilogue=Epilogue.parse("add,relu"))
    assert [operand.name for operand in tail.operands()] == ["x", "w1", "b1", "w2", "b2", "y", "add0"]
    shapes = {operand.name: operand.shape for operand in tail.operands()}
    assert (shapes["w1"], shapes["b1"], shapes["w2"], shapes["b2"]) == ((2, 16), (2,), (16, 2), (16,))
    patches = SpaceToDepth(n=2, h=8, w=12, c=3, block=4, dtype="f16")
    assert [operand.shape for operand in patches.operands()] == [(2, 3, 8, 12), (2, 2, 3, 48)]


def test_parameters_of_custom_steps_are_operands():
    step = define_step("two", cuda="x * a + b", torch="x * a + b", params={"a": "channel", "b": "channel"})
    problem = SeTail(n=2, h=3, w=4, c=16, hidden=2, dtype="f16", epilogue=Epilogue(("add", step, "two")))
    assert [operand.name for operand in problem.operands()][5:] == ["y", "add0", "a.1", "b.2", "a.3", "b.4"]
    assert all(o.shape == (16,) and o.dtype == "f32" and o.role == "vector" for o in problem.operands()[7:])


def test_more_tensors_than_a_kernel_takes_are_refused():
    epilogue = Epilogue(("bias",) * (MAX_OPERANDS - 3))
    fits = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=epilogue)
    assert len(fits.operands()) == MAX_OPERANDS
    with pytest.raises(ProblemError, match=f"{MAX_OPERANDS + 1} tensors; at most {MAX_OPERANDS}"):
        Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=Epilogue((*epilogue.names, "add")))


def test_a_problem_of_fewer_tensors_says_how_many_it_may_have():
    class Alone(Elementwise):
        max_operands = 2

    Alone(n=1, h=4, w=4, c=8, dtype="f16")
    with pytest.raises(ProblemError, match="3 tensors; at most 2 are"):
        Alone(n=1, h=4, w=4, c=8, dtype="f16", epilogue=Epilogue(("add",)))


def test_bytes_count_each_operand_once():
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f16", epilogue=Epilogue.parse("bias"))
    assert problem.bytes == 2 * (4 * 4 * 8 + 16 * 8 + 4 * 4 * 16) + 4 * 16


def test_limit_is_the_slower_of_arithmetic_and_memory():
    problem = Conv2d(n=1, h=4, w=4, c=8, k=16, dtype="f32")
    assert limit_us(problem, 2.0, 1e30) == problem.flops / 2.0
    assert limit_us(problem, 1e30, 4.0) == problem.bytes / 4.0


@pytest.mark.parametrize("text", TEXTS)
def test_with_batch_changes_the_batch_alone(text):
    problem = parse(text)
    changed = with_batch(problem, 17)
    assert changed.batch == 17
    field = "m" if "gemm" in text else "n"
    assert str(changed) == text.replace(f" {field}={problem.batch} ", f" {field}=17 ")


def test_fields_with_a_default_may_be_left_out():
    short = parse("conv2d n=1 h=4 w=4 c=8 k=8 r=3 s=3 stride=2 pad=1 dtype=half")
    full = "conv2d n=1 h=4 w=4 c=8 k=8 r=3 s=3 stride=2,2 pad=1,1 dilation=1,1 groups=1 dtype=f16 epilogue=none"
    assert str(short) == full


CONV = "conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("conv3d n=1", "conv3d"),
        ("", "operator"),
        (f"{CONV} depth=3", "depth=3"),
        (f"{CONV} r", "'r'"),
        ("conv2d n=1 h=4 w=4 c=8 dtype=f32", "k"),
        ("conv2d n=1 h=4 w=4 c=8 k=8", "dtype"),
        (f"{CONV} r=three", "r=three"),
        (f"{CONV} r=", "r="),
        (CONV.replace("n=1", "n=0"), "n=0"),
        (CONV.replace("h=4", "h=-4"), "h=-4"),
        (f"{CONV} stride=0", "stride"),
        (f"{CONV} pad=-1", "pad"),
        (f"{CONV} stride=1,2,3", "stride"),
        (CONV.replace("n=1", "n=1,2"), "n=1,2"),
        (f"{CONV} groups=3", "groups"),
        (f"{CONV} r=5 s=5", "window"),
        (f"{CONV} r=5 s=5".replace("conv2d", "conv2d_dgrad"), "window"),
        (f"{CONV} groups=3".replace("conv2d", "conv2d_wgrad"), "groups"),
        ("avg_pool2d n=1 h=2 w=2 c=1 r=3 s=3 stride=1 dtype=f32", "window"),
        ("max_pool2d n=1 h=8 w=8 c=1 r=3 s=3 stride=2 pad=2 dtype=f32", "half the window"),
        ("to_channels_last n=1 h=8 w=8 c=4 to=3 dtype=f32", "at least c"),
        ("stem n=1 h=8 w=8 c=3 k=8 r=9 s=3 dtype=f32", "window"),
        ("stem n=1 h=8 w=8 c=3 k=8 r=3 s=3 pool=2 pool_pad=2 dtype=f32", "half"),
        ("gemm m=0 n=4 k=4 dtype=f32", "m=0"),
        ("gemm m=4 n=4 dtype=f32", "k"),
        (CONV.replace("f32", "f64"), "f64"),
        (f"{CONV} epilogue=bias,softmax", "softmax"),
        ("space_to_depth n=1 h=6 w=8 c=1 block=4 dtype=f32", "block"),
    ],
)
def test_nonsense_is_refused_in_words(text, said):
    with pytest.raises((ProblemError, UnknownNameError), match=said):
        parse(text)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        *[(alias, "f32") for alias in ("f32", "fp32", "float32", "float", torch.float32)],
        *[(alias, "f16") for alias in ("f16", "fp16", "float16", "half", torch.float16, "torch.half")],
        *[(alias, "bf16") for alias in ("bf16", "bfloat16", torch.bfloat16)],
        *[(alias, "s8") for alias in ("s8", "int8", torch.int8)],
        ("tf32", "tf32"),
    ],
)
def test_dtype_aliases(spelled, name):
    assert dtype_name(spelled) == name


@pytest.mark.parametrize("spelled", ["int4", torch.float64, "", "F16"])
def test_unknown_dtype_lists_the_known(spelled):
    with pytest.raises(UnknownNameError, match="f32, f16, bf16"):
        dtype_name(spelled)


# -- fields of users' operators ----------------------------------------------------------------------------------------


def _color(text):
    if not text.startswith("#"):
        raise ValueError(text)
    return int(text[1:], 16)


@pytest.fixture
def painted():
    """An operator with a field of each type, registered for one test."""

    @dataclass(frozen=True, kw_only=True)
    class Painted(Problem):
        operator = "painted"
        sizes = "n tile_h tile_w skipped"
        n: int
        tile: Pair
        margin: NonNegativePair = (0, 0)
        skipped: NonNegative = 0
        border: str = "zero"
        result: DtypeName = "f32"
        color: Annotated[int, FieldType("#HEX", "a color such as #ff0000", _color, write="#{:06x}".format)] = 0

        output_shape = property(lambda self: (self.n,))
        flops = 0

        def _inputs(self):
            return ()

    register(Painted)
    yield Painted
    del OPERATORS["painted"]


def test_a_users_fields_are_read_by_their_types(painted):
    problem = parse("painted n=2 tile=3 margin=0,4 border=wrap result=half dtype=f32 color=#ff")
    assert problem == painted(n=2, tile=(3, 3), margin=(0, 4), border="wrap", result="f16", dtype="f32", color=255)
    text = "painted n=2 tile=3,3 margin=0,4 skipped=0 border=wrap result=f16 color=#0000ff dtype=f32 epilogue=none"
    assert str(problem) == text and parse(text) == problem
    assert problem.struct_values() == (2, 3, 3, 0) and painted.struct == "at_painted"
    assert problem.short_name == text.partition(" dtype")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("n=2 tile=1,2,3", "'tile=1,2,3' in .* is not a whole number, or a pair of them such as 2,1"),
        ("n=2 tile=0,1", "painted: tile=0,1 must be at least 1"),
        ("n=2 tile=1 margin=-1", "painted: margin=-1,-1 must be at least 0"),
        ("n=2 tile=1 skipped=-1", "painted: skipped=-1 must be at least 0"),
        ("n=two tile=1", "'n=two' in .* is not a whole number"),
        ("n=2 tile=1 border=", "border='' must be one word"),
        ("n=2 tile=1 result=f64", "unknown dtype 'f64'"),
        ("n=2 tile=1 color=red", "'color=red' in .* is not a color such as #ff0000"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_expected(painted, words, said):
    with pytest.raises((ProblemError, UnknownNameError), match=said):
        parse(f"painted {words} dtype=f32")


def test_a_word_with_a_space_is_refused(painted):
    with pytest.raises(ProblemError, match="painted: border='a b' must be one word"):
        painted(n=1, tile=(1, 1), border="a b", dtype="f32")


def test_an_operator_may_share_a_struct_with_the_same_fields_only():
    with pytest.raises(ProblemError, match="the struct at_pool2d has the fields n h w c r s p q"):
        register(type("Other", (AvgPool2d,), {"operator": "other", "sizes": "n h", "struct": "at_pool2d"}))
    assert type("Own", (AvgPool2d,), {"operator": "own", "sizes": "n h"}).struct == "at_own"
    assert type("Same", (AvgPool2d,), {"operator": "same"}).struct == "at_pool2d"
