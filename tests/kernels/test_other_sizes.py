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
EMULATED = [name for name in SIZES if not name.startswith("cutlass2")]
MANY, FEW = 300, 3
"""Sizes that are offered to a kernel, and those that it accepts of which the results are compared."""


def resized(problem, rng):
    """The same problem with images of another size, and mostly in another number; None if there is none such."""
    sizes = {name: rng.choice((1, 2, 7, 8, rng.randint(1, 40))) for name in ("h", "w")}
    try:
        return replace(problem, **sizes, **{problem.batch_field: rng.randint(1, 4)})
    except ProblemError:
        return None


@pytest.mark.compile
@pytest.mark.daily(3)
@pytest.mark.parametrize("name", EMULATED)
def test_a_kernel_refuses_another_size_or_computes_it(name, tmp_path):
    one = next(drawn(name, SM90, "sm_90", Sample(kernels=1, problems=1, largest=1e8)))
    kernel, found, rng = Emulated(one.kernel, tmp_path), family(name), random.Random(name)
    others = [other for _ in range(MANY) if (other := resized(one.problem, rng))]
    cluster = math.prod(one.kernel.values.get(parameter, 1) for parameter in CLUSTER)
    accepted = [other for other in others if kernel.refusal(other, one.launch) is None]
    unfit = {other for other in accepted if found.why_unfit(other, one.kernel.values, SM90)}
    small = sorted(accepted, key=lambda other: (other not in unfit, other.flops + other.bytes))
    for other in small[:FEW]:
        assert_computes(kernel, other, one.launch, cluster, limits=_LIMIT)
    assert not unfit, f"{len(unfit)} sizes that the family leaves out are accepted: {small[0]} {one}"
