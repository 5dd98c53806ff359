"""Epilogue chains: their text, the numbering of operands, and what they compute, in torch and in kernels."""

import random

import pytest
import torch
from epilogues import ELEMENTWISE, SPECIAL, random_epilogue, special_case
from kernels import built_paths, candidate_of
from reference import solve
from reference_steps import OTHERS, STEPS, run_chain

from autotune.core import ProblemError
from autotune.families import Kernel
from autotune.ir import MAX_SCALARS, Epilogue, epilogue_steps
from autotune.ir.operators import Conv2d
from autotune.measure import CandidateBench
from autotune.runtime import bind

CPU = torch.device("cpu")
CONFIG = {"block_k": 16, "block_pixels": 4, "unroll_c": 1}
LAUNCH = {"threads": 1, "order": 0}


@pytest.mark.parametrize("text", ["none", "relu", "bias,relu", "relu,store,add_scalar", "mul_scalar,add_scalar"])
def test_text_is_read_back_to_the_letter(text):
    assert str(Epilogue.parse(text)) == text


def test_empty_and_none_are_the_same_chain():
    assert Epilogue.parse("") == Epilogue.parse("none") == Epilogue()


@pytest.mark.parametrize("text", ["softmax", "bias,,relu", "bias, relu", "bias,none", "relu,", "BIAS"])
def test_unknown_steps_are_refused(text):
    with pytest.raises(ProblemError, match="choose from bias"):
        Epilogue.parse(text)


def test_too_many_scalars_are_refused():
    assert Epilogue.parse(",".join(["add_scalar"] * MAX_SCALARS)).scalars == MAX_SCALARS
    for chain in (["mul_scalar"] * (MAX_SCALARS + 1), ["clamp"] * (MAX_SCALARS // 2) + ["add_scalar"]):
        with pytest.raises(ProblemError, match=f"at most {MAX_SCALARS}"):
            Epilogue.parse(",".join(chain))


def test_pointers_and_scalars_are_numbered_apart():
    epilogue = Epilogue.parse("add_scalar,bias,relu,store,clamp,bent,add,scale")
    numbered = [(a.name, a.kind, a.index) for a in epilogue.arguments]
    assert numbered == [
        ("add_scalar0", "scalar", 0),
        ("bias0", "vector", 0),
        ("store1", "output", 1),
        ("clamp1", "scalar", 1),
        ("clamp2", "scalar", 2),
        ("up.3", "scalar", 3),
        ("slope.2", "vector", 2),
        ("shift.3", "vector", 3),
        ("jump.4", "scalar", 4),
        ("add4", "tensor", 4),
        ("scale5", "vector", 5),
    ]
    assert [len(step.arguments) for step in epilogue.steps] == [1, 1, 0, 1, 2, 4, 1, 1]
    assert epilogue.scalars == 5


def random_operands(names, shape, generator):
    """Values for whatever a chain of steps may name."""
    operands = {}
    for argument in Epilogue(names).arguments:
        sizes = {"vector": shape[-1:], "tensor": shape, "image": (shape[0], 1, 1, shape[-1]), "pixel": (*shape[:-1], 1)}
        size = sizes.get(argument.kind, ())
        operands[argument.name] = torch.randn(size, generator=generator, dtype=torch.float64)
    return operands


ALL = (*STEPS, *OTHERS)


@pytest.mark.parametrize("seed", range(len(ALL)))
def test_chains_mean_what_their_steps_mean(seed):
    generator = torch.Generator().manual_seed(seed)
    names = (*random.Random(seed).choices(STEPS, k=3), ALL[seed])
    epilogue, shape = Epilogue(names), (2, 3, 4, 5)
    v, operands = (
        4 * torch.randn(shape, generator=generator, dtype=torch.float64),
        random_operands(names, shape, generator),
    )
    scalars = epilogue.random_scalars(generator)
    y, stored = epilogue.apply(v, operands, scalars)
    for name, value in run_chain(epilogue.names, v, operands, scalars).items():
        torch.testing.assert_close({"y": y, **stored}[name], value, rtol=1e-12, atol=1e-12)


def test_every_step_has_a_meaning_of_its_own_here():
    built_in = {name for name, kind in epilogue_steps.STEPS.items() if not kind.custom}
    assert {*STEPS, *OTHERS, *epilogue_steps.ANCHORS} >= built_in


def test_places_part_a_chain():
    epilogue = Epilogue.parse("bias,relu,conv,mul_scalar,gate,add,add_scalar")
    assert epilogue.anchors == ("conv", "gate")
    assert [[step.name for step in part] for part in epilogue.parts] == [
        ["bias", "relu"],
        ["mul_scalar"],
        ["add", "add_scalar"],
    ]
    assert [a.index for part in epilogue.parts for step in part for a in step.arguments] == [0, 0, 1, 1]
    assert Epilogue.parse("gate").parts == ((), ()) and Epilogue.parse("relu").anchors == ()


def test_random_scalars_lie_in_the_steps_ranges():
    epilogue = Epilogue.parse("clamp,add_scalar,clamp")
    for seed in range(50):
        low, high, other, *second = epilogue.random_scalars(torch.Generator().manual_seed(seed))
        assert -1 <= low <= -0.25 and 0.25 <= high <= 1 and 0.25 <= other <= 1
        assert second[0] < 0 < second[1] and second != [low, high]


def test_steps_apply_in_the_order_written():
    v = torch.tensor([-2.0, 3.0])
    assert Epilogue.parse("relu,add_scalar").apply(v, {}, (-1.0,))[0].tolist() == [-1.0, 2.0]
    assert Epilogue.parse("add_scalar,relu").apply(v, {}, (-1.0,))[0].tolist() == [0.0, 2.0]


# -- in kernels ----------------------------------------------------------------------------------------

CHAINS = [random_epilogue(random.Random(seed)) for seed in range(100, 112)]


def kernel(epilogue, target):
    return Kernel.of("cpu_conv2d", CONFIG, "f32", epilogue, target)


@pytest.fixture(scope="module")
def built(cpu_target):
    """Kernels of every step behind `scale`, and of random chains, compiled together."""
    chains = [*(Epilogue(("scale", name)) for name in ELEMENTWISE), *CHAINS]
    return built_paths(kernel(chain, cpu_target) for chain in chains)


@pytest.mark.compile
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_kernels_apply_random_chains(chain, built, cpu_target):
    problem = Conv2d(n=2, h=3, w=5, c=7, k=27, dtype="f32", epilogue=chain)
    case, chosen = CandidateBench(problem, CPU), kernel(chain, cpu_target)
    case.tensors["x"] *= 4  # so that the steps' ends are met too
    case.fill_nan()
    case.bind(candidate_of(chosen, built[chosen], LAUNCH)).run()
    for name, value in solve(problem, case.tensors, case.scalars).items():
        torch.testing.assert_close(case.tensors[name].double(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_values_come_out_as_torch_has_them(name, backwards, built, cpu_target):
    """Forwards and backwards: each once in a block of 16 channels, and behind the last, where they are taken singly."""
    values, chain = torch.tensor(SPECIAL[::-1] if backwards else SPECIAL), Epilogue(("scale", name))
    problem = Conv2d(n=1, h=1, w=1, c=1, k=len(SPECIAL), dtype="f32", epilogue=chain)
    tensors, scalars, expected = special_case(problem, values)
    chosen = kernel(chain, cpu_target)
    bind(candidate_of(chosen, built[chosen], LAUNCH), problem, tensors, scalars, CPU).run()
    # gelu's 1 + erf loses small digits in float32, torch's as well; the others lose them below the normal numbers alone
    least = 3e-7 if name == "gelu" else 1e-37
    torch.testing.assert_close(tensors["y"], expected.float(), rtol=2e-6, atol=least, equal_nan=True)
