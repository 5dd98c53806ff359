"""Group normalization on a GPU, channels last."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cuda.common import VectorFamily
from autotune.families.cuda.rules import require_clusters
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import GroupNorm

_TOGETHER = Parameter("together", (1, 2, 4, 8, 16, 32, 64), "neighbouring groups a block")
_SECTOR = 32  # bytes that memory delivers at once; a pixel's part of a block should have no fewer
_BARRIER_READS = 12  # that the barriers of a cluster take the time of
_CHOICES = 3  # values of `together` that are timed, from the first that fills a sector on


def _together(problem: GroupNorm, config: Config) -> list[int]:
    """Return the numbers of groups that a block can take, from the first on that fills a sector."""
    vector, threads, size = int(config["vector"]), int(config["threads"]), problem.c // problem.groups
    values = [int(value) for value in _TOGETHER.values]
    possible = [
        together
        for together in values
        if problem.groups % together == 0
        and size * together % vector == 0
        and (together == 1 or size * together <= vector * threads)
    ]
    filled = [together for together in possible if size * together * DTYPES[problem.dtype].itemsize >= _SECTOR]
    return (filled or possible[-1:])[:_CHOICES]


def _visits(problem: GroupNorm, config: Config, together: int) -> int:
    """Return the vectors of a thread."""
    vector, threads = int(config["vector"]), int(config["threads"])
    vectors = problem.c // problem.groups * together // vector
    columns = min(vectors, threads)
    pixels = ceil_div(problem.h * problem.w, int(config["cluster"]))
    return ceil_div(pixels, threads // columns) * ceil_div(vectors, columns)


def shared_bytes(problem: GroupNorm, config: Config, launch: Launch) -> int:
    """Return the shared memory of a block, as the template computes it."""
    vector, threads = int(config["vector"]), int(config["threads"])
    line = vector * DTYPES[problem.dtype].itemsize
    held = _visits(problem, config, launch[_TOGETHER.name]) * threads * line
    own = 2 * int(_TOGETHER.values[-1]) if config["cluster"] != 1 else 0
    return (threads * (vector + 1) + own) * 4 + held


class CudaGroupNorm(VectorFamily[GroupNorm]):
    """Group normalization: a block, or a cluster of blocks that share the pixels, for some groups of an image."""

    name = "cuda_group_norm"
    operator = GroupNorm
    template = "cuda/group_norm.cu.j2"
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "channels of an access"),
        Parameter("threads", (128, 256, 512, 1024), "threads a block"),
        Parameter("cluster", (1, 2, 4, 8), "blocks that share the pixels of an image"),
    )
    launch_parameters = (_TOGETHER,)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_clusters(arch, int(config["cluster"]))
        yield from super().illegal(config, arch, dtype, epilogue)

    def unfit(self, problem: GroupNorm, config: Config, arch: Architecture) -> Rules:
        yield require(problem.h * problem.w >= int(config["cluster"]), "each block of a cluster needs a pixel")
        yield from super().unfit(problem, config, arch)
        yield require(
            bool(self.launches(problem, config, arch)), "a block's part of an image exceeds its shared memory"
        )

    def launches(self, problem: GroupNorm, config: Config, arch: Architecture) -> list[Launch]:
        launches = [{_TOGETHER.name: together} for together in _together(problem, config)]
        return [launch for launch in launches if shared_bytes(problem, config, launch) <= arch.block_shared]

    def cost(self, problem: GroupNorm, config: Config, arch: Architecture) -> float:
        """Rank by the accesses of a thread for each wave of blocks, with the best of its launch values."""

        def rank(launch: Launch) -> float:
            cluster = int(config["cluster"])
            blocks = problem.n * problem.groups // launch[_TOGETHER.name] * cluster
            waves = max(1.0, blocks * int(config["threads"]) / (arch.processors * arch.sm_threads))
            barriers = _BARRIER_READS if cluster > 1 else 0
            return waves * (_visits(problem, config, launch[_TOGETHER.name]) + 8 + barriers)

        return min(map(rank, self.launches(problem, config, arch)), default=float("inf"))

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "most": _TOGETHER.values[-1]}


FAMILIES = (CudaGroupNorm(),)
