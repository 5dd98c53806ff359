"""Kernels at sizes that they were not drawn for: each refuses a problem or computes it, whatever its launch values."""

import math
import random
from dataclasses import replace

import pytest
from emulator import Emulated, assert_computes
from random_kernels import _LIMIT, Sample, drawn
from random_sizes import SIZES

from autotune.core import ProblemError, architecture
from autotune.families import family

SM90 = architecture("sm90")
CLUSTER = ("cluster", "cluster_m", "cluster_n", "cluster_k", "parts", "peers", "slices")
"""Parameters whose product is the number of blocks of a cluster."""
LEFT_OUT = ("cutlass2", "batch_norm", "gradient", "wgrad", "dgrad", "conv2d_statistics", "cast", "e4m3", "conv2d_pair")
"""Parts of the names of families that are not emulated, whose kernels run at their own sizes only (those of training
steps), whose results are in bytes, which are compared otherwise, or that serve few random problems."""
EMULATED = [name for name in SIZES if not any(part in name for part in LEFT_OUT)]
MANY, FEW = 300, 3
"""Sizes that are offered to a kernel, and those that it accepts of which the results are compared."""


def resized(problem, rng):
    """The same problem with images of another size, and mostly in another number; None if there is none such."""
    sizes = {name: rng.choice((1, 2, 7, 8, rng.randint(1, 40))) for name in problem.size_fields if name in "hw"}
    try:
        return replace(problem, **sizes, **{problem.batch_field: rng.randint(1, 4)})
    except ProblemError:
        return None


@pytest.mark.compile
@pytest.mark.daily(3)
@pytest.mark.parametrize("name", EMULATED)
def test_a_kernel_refuses_another_size_or_computes_it(name, tmp_path):
    one = next(drawn(name, SM90, "sm_90", Sample(kernels=1, problems=1, largest=1e9)))
    kernel, found, rng = Emulated(one.kernel, tmp_path), family(name), random.Random(name)
    others = [other for _ in range(MANY) if (other := resized(one.problem, rng))]
    cluster = math.prod(one.kernel.values.get(parameter, 1) for parameter in CLUSTER)
    accepted = [other for other in others if kernel.refusal(other, one.launch) is None]
    unfit = {other for other in accepted if found.why_unfit(other, one.kernel.values, SM90)}
    for other in sorted(accepted, key=lambda other: (other not in unfit, other.flops + other.bytes))[:FEW]:
        assert_computes(kernel, other, one.launch, cluster, limits=_LIMIT)
