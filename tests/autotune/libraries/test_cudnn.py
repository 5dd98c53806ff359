"""cuDNN's plans among a database's candidates, where there is no cuDNN; and which algorithms a layer can be given."""

import json

import pytest
import torch
from cudnn_records import CONFIG, TEXT
from databases import put_cpu, put_time

from autotune.core import device_target
from autotune.ir import parse
from autotune.libraries import cudnn
from autotune.runtime import bind, candidate, shortlist
from autotune.runtime.engine import RefusedError
from autotune.runtime.selection import choices
from tuning_db import Store

CPU = torch.device("cpu")


# -- candidates --------------------------------------------------------------------------------------------------------


def timed(store, problem, family, config, us, symbol="", data=None):
    """A kernel's row that was timed on this machine's CPU."""
    device = put_cpu(store, device_target(CPU))
    identity = {"family": family, "config": json.dumps(config), "dtype": problem.dtype, "source": "test"}
    identity |= {"epilogue": str(problem.epilogue), "target": device.target}
    values = {"kind": cudnn.KIND, "target": device.target, "compiler": "", "flags": "", "cutlass": "", "abi_version": 0}
    library = store.put_library(data, **values) if data else None
    row = store.put_kernel(identity, symbol=symbol, library_id=library.id if library else None)
    put_time(store, device, problem, row.id, us, spread_us=0.0)
    return device, row


def test_a_plan_that_cannot_be_used_here_gives_way_to_the_next_candidate(tmp_path):
    problem = parse(TEXT)
    with Store.create(tmp_path / "plans.db") as store:
        timed(store, problem, "aten", {"memory_format": "contiguous"}, 9.0)
        timed(store, problem, cudnn.FAMILY, CONFIG, 3.0, str(problem), b"a plan")
        first, second, *_ = choices(store, problem, CPU)
    assert str(first.candidate) == "cudnn eng4_k24=26 bias=f32" and not first.candidate.native
    tensors = {operand.name: torch.randn(operand.shape) for operand in problem.operands()}
    with pytest.raises(RefusedError, match="NVIDIA GPU"):
        bind(first.candidate, problem, tensors, (), CPU)
    bind(second.candidate, problem, tensors, (), CPU).run()
    expected = torch.relu(
        torch.nn.functional.conv2d(tensors["x"].permute(0, 3, 1, 2), tensors["weight"], tensors["bias0"], padding=1)
    )
    assert torch.allclose(tensors["y"].permute(0, 3, 1, 2), expected, atol=1e-4)


def test_a_plan_serves_the_problem_that_it_was_made_for_and_no_other(tmp_path):
    problem, larger = parse(TEXT), parse(TEXT.replace("n=2", "n=4"))
    with Store.create(tmp_path / "plans.db") as store:
        _, row = timed(store, problem, cudnn.FAMILY, CONFIG, 3.0, str(problem), b"a plan")
        plan = candidate(store, row, {})
        assert [choice.candidate.family for choice in choices(store, larger, CPU)] == ["aten"]
    tensors = {operand.name: torch.randn(operand.shape) for operand in larger.operands()}
    with pytest.raises(RefusedError, match=r"is for '.*n=2 .*not for '.*n=4 "):
        bind(plan, larger, tensors, (), CPU)


def test_plans_take_no_place_from_kernels(tmp_path):
    problem = parse(TEXT)
    with Store.create(tmp_path / "plans.db") as store:
        for i in range(8):
            timed(store, problem, cudnn.FAMILY, {**CONFIG, "plan": f"eng{i}"}, 1.0 + i, str(problem), b"%d" % i)
        device, _ = timed(store, problem, "aten", {"memory_format": "contiguous"}, 20.0)
        timed(store, problem, "aten", {"memory_format": "channels_last"}, 2.5)
        ranking = store.ranking(device, str(problem))
    kept = shortlist(ranking, 5, 3)
    assert [row.median_us for row in kept] == [1.0, 2.0, 2.5, 3.0, 20.0]
    assert [row.median_us for row in shortlist(ranking, 1, 0)] == [2.5]
