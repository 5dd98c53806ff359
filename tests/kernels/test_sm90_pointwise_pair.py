"""Two 1x1 convolutions in one Hopper kernel: its own text, run on a CPU."""

import dataclasses

import pytest
from comparison import assert_bytes_are_right
from emulator import Emulated, assert_computes
from kernels import assert_not_serialized, proposed, random_inputs
from reference import solve
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.families.sm90.pointwise_pair import PairShape
from autotune.ir import Epilogue, parse, sum_error

SM90, FAMILY = architecture("sm90"), family("sm90_pointwise_pair")
CASES, BYTES = table_of(__file__).values()
"""Case -> the problem and the config."""


def config_of(problem, chosen):
    (columns,), (row,) = (
        FAMILY.candidate_values(parameter, {}, SM90, problem.dtype, problem)
        for parameter in FAMILY.parameters
        if parameter.name in ("columns", "row_bytes")
    )
    return {"columns": columns, "chunk": chosen["chunk"], "row_bytes": row, **chosen}


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "chosen"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_both_convolutions(text, chosen, tmp_path):
    problem = parse(f"pointwise_pair {text}")
    config = config_of(problem, chosen)
    emulated = Emulated(proposed(FAMILY.name, problem, config, SM90), tmp_path)
    few = {"grid": 2}  # so that a block has several tiles
    shape = PairShape.from_config(config, problem.dtype)
    for launch in FAMILY.launches(problem, config, SM90):
        most = launch | few | ({} if shape.resident else {"weight_slots": 2 + shape.ahead})
        assert 0 < emulated.shared_bytes(problem, launch) <= SM90.block_shared
        assert_computes(emulated, problem, most)


def spread(problem, tensors, scalars):
    """The tensors with scales such that both results spread over the range of a byte, the hidden one first."""
    names = problem.epilogue.names
    until = dataclasses.replace(problem, epilogue=Epilogue(("store", "conv")))
    for outputs, step in (("store0", 0), ("y", names.index("scale", names.index("conv")))):
        values = solve(until, tensors, scalars)[outputs]
        scale = problem.epilogue.steps[step].arguments[0].name
        tensors = {**tensors, scale: tensors[scale] * (2 * 40 / float(values.square().mean().sqrt()))}
        until = dataclasses.replace(problem, epilogue=Epilogue(names[: names.index("conv") + 1]))
    return tensors


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "chosen"), BYTES.values(), ids=BYTES)
def test_the_kernels_text_computes_both_convolutions_of_bytes(text, chosen, tmp_path):
    problem = parse(f"pointwise_pair {text.replace(' epilogue', ' dtype=s8 epilogue')}")
    config = config_of(problem, chosen)
    emulated = Emulated(proposed(FAMILY.name, problem, config, SM90), tmp_path)
    tensors, scalars = random_inputs(problem)
    tensors = spread(problem, tensors, scalars)
    found = emulated.run(problem, tensors, scalars, FAMILY.launches(problem, config, SM90)[0] | {"grid": 2}, 1)
    for name, value in solve(problem, tensors, scalars).items():
        assert_bytes_are_right(found[name], value, name, sum_error(problem, config) if name == "y" else 0.0)


@pytest.mark.compile
@pytest.mark.parametrize("weights", ["resident", "streamed"])
@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_the_products_overlap(weights, chunk, tmp_path):
    sizes = {"columns": 64, "chunk": chunk, "row_bytes": 128, "groups": 2}
    config = {**sizes, "weights": weights, "ahead": int(chunk < 128)}
    epilogue = Epilogue.parse("bias,add,relu,store,conv,bias,relu")
    kernel = Kernel.of(FAMILY.name, config, "f16", epilogue, "sm_90")
    assert_not_serialized(kernel, tmp_path)


def test_the_family_counts_the_kernels_shared_memory():
    problem = parse("pointwise_pair n=1 h=28 w=28 c=128 hidden=512 k=128 dtype=f16 epilogue=conv")
    for config in FAMILY.configs_for(problem, SM90):
        shape = PairShape.from_config(config, problem.dtype)
        for launch in FAMILY.launches(problem, config, SM90):
            slots = launch["weight_slots"] or 512 // shape.chunk
            taken = 1024 + launch["x_slots"] * shape.slot_bytes(128) + slots * shape.weight_bytes(128)
            assert taken <= SM90.block_shared


def test_what_it_does_not_serve_has_a_reason():
    odd = parse("pointwise_pair n=1 h=9 w=9 c=12 hidden=64 k=32 dtype=f16 epilogue=conv")
    assert "multiples of 8" in FAMILY.why_not_served(odd, SM90)
    wide = parse("pointwise_pair n=1 h=9 w=9 c=16 hidden=64 k=264 dtype=f16 epilogue=conv")
    assert "at most 256" in FAMILY.why_not_served(wide, SM90)
