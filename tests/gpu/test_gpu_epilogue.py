"""Every step of an epilogue on a GPU: values at which formulas break, and custom steps that are wrong."""

import os

import pytest
import torch
from epilogues import ELEMENTWISE, SPECIAL, special_case
from kernels import built_paths, candidate_of

from autotune.families import Kernel
from autotune.ir import Epilogue, parse
from autotune.ir.epilogue_steps import define_step
from autotune.ir.operators import AvgPool2d
from autotune.measure import CandidateBench
from autotune.runtime import bind

pytestmark = pytest.mark.gpu

CONFIG = {"filter": 0, "stride": 0, "vector": 8, "columns": 1, "rows": 1, "threads": 64}


def kernel(epilogue):
    major, minor = torch.cuda.get_device_capability()
    return Kernel.of("cuda_avg_pool2d", CONFIG, "f16", epilogue, f"sm_{major}{minor}")


@pytest.fixture(scope="module")
def built():
    return built_paths((kernel(Epilogue(("scale", name))) for name in ELEMENTWISE), len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_values_come_out_as_torch_has_them(name, built):
    device, chosen = torch.device("cuda:0"), kernel(Epilogue(("scale", name)))
    values = torch.tensor([*SPECIAL, 5.0])
    problem = AvgPool2d(n=1, h=1, w=1, c=len(values), r=1, s=1, stride=(1, 1), dtype="f16", epilogue=chosen.epilogue)
    tensors, scalars, expected = special_case(problem, values)
    on_device = {key: tensor.to(device) for key, tensor in tensors.items()}
    bind(candidate_of(chosen, built[chosen], {}), problem, on_device, scalars, device).run(
        torch.cuda.current_stream().cuda_stream
    )
    torch.testing.assert_close(on_device["y"].cpu(), expected.half(), rtol=1e-3, atol=1e-6, equal_nan=True)


def test_texts_that_disagree_are_wrong():
    define_step("lying_on_gpus", cuda="x * 2.f", torch="x * 2.05")
    problem = parse("avg_pool2d n=1 h=4 w=4 c=32 r=2 s=2 stride=2 dtype=f16 epilogue=lying_on_gpus")
    chosen = kernel(problem.epilogue)
    case = CandidateBench(problem, torch.device("cuda:0"))
    result = case.run(candidate_of(chosen, built_paths([chosen])[chosen], {}))
    assert result.status == "wrong" and result.median_us is None
