"""Concatenations, pools and lone epilogues on a GPU: their kernels' own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
LIMIT = {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}
# Vectors of all pieces and of a few channels, more than one item a thread, the last ones missing; ranges of wider
# tensors; shuffles of the kernels' groups, of any, and of groups that fill no access; all kinds of operands.
CASES = {
    "densenet": ("concat n=2 h=5 w=7 pieces=64,32,32 dtype=f16 epilogue=scale,bias,relu", (1, 8, 2, 64)),
    "eight pieces": ("concat n=1 h=3 w=5 pieces=8,16,8,24:40/48,8,8,8,8 dtype=bf16 epilogue=store,bias", (1, 8, 1, 64)),
    "odd channels": ("concat n=2 h=3 w=3 pieces=1:2/3,5,0:7/9 dtype=f32 epilogue=add,relu", (1, 1, 4, 64)),
    "shuffle": ("concat n=2 h=4 w=5 pieces=24,8:32/48 interleave=2 dtype=f16 epilogue=none", (2, 8, 1, 64)),
    "shuffle of odd groups": ("concat n=2 h=4 w=5 pieces=29:58/58,0:29/58 interleave=2 dtype=f16", (2, 2, 2, 64)),
    "three groups": (
        "concat n=1 h=4 w=5 pieces=9,12 interleave=3 dtype=f16 epilogue=mul_image,add_pixel",
        (0, 1, 2, 64),
    ),
    "clipped pool": (
        "clipped_avg_pool2d n=2 h=7 w=9 c=16 r=3 s=3 stride=2 pad=1 ceil=1 dtype=f16 epilogue=relu",
        (3, 2, 4, 2, 1, 64),
    ),
    "clipped pool of any window": (
        "clipped_avg_pool2d n=1 h=8 w=9 c=6 r=4 s=2 stride=3,2 pad=2,1 ceil=1 dtype=f32",
        (0, 0, 2, 1, 1, 64),
    ),
    "adaptive pool": ("adaptive_avg_pool2d n=2 h=7 w=9 c=24 p=5 q=4 dtype=bf16 epilogue=bias,add", (8, 64)),
    "gates": ("elementwise n=3 h=3 w=5 c=24 dtype=f16 epilogue=mul_image,mul,mul_pixel,sub,add_image", (8, 2, 64)),
    "activations": ("elementwise n=2 h=3 w=3 c=5 dtype=f32 epilogue=prelu,mish,elu,softplus,abs,exp", (1, 1, 64)),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize(("text", "values"), CASES.values(), ids=CASES)
def test_the_kernels_text_solves_the_problem(text, values, tmp_path):
    problem = parse(text)
    chosen = family(f"cuda_{problem.operator}")
    config = dict(zip((parameter.name for parameter in chosen.parameters), values, strict=True))
    assert config in chosen.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    for name, error in relative_errors(emulated, problem, {}).items():
        assert error < LIMIT[problem.dtype], name


def test_a_kernel_says_why_it_refuses_a_concatenation(tmp_path):
    config = {"interleave": 2, "vector": 8, "items": 1, "threads": 64}
    emulated = Emulated(
        Kernel.of("cuda_concat", config, "f16", parse("concat n=1 h=1 w=1 pieces=1 dtype=f16").epilogue, "sm_90"),
        tmp_path,
    )
    refused = {
        "pieces=24,24 interleave=2": None,
        "pieces=24,24": "this kernel is compiled for interleave = 2",
        "pieces=8,4 interleave=2": "c must be a multiple of the vector of 8 elements",
        "pieces=22,26 interleave=2": "all pieces must be multiples of an access: of vector / interleave channels",
        "pieces=2:26/28,24 interleave=2": "all pieces must be multiples of an access: of vector / interleave channels",
    }
    for words, reason in refused.items():
        assert emulated.refusal(parse(f"concat n=1 h=2 w=3 {words} dtype=f16"), {}) == reason
