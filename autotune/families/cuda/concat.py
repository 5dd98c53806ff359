"""Concatenation of channels and their shuffle on a GPU, channels last."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.cuda.common import WITH_BYTES, VectorFamily
from autotune.ir import Epilogue
from autotune.ir.operators import Concat

_INTERLEAVES = (1, 2, 4)  # that kernels are compiled for; 0 stands for a value known at run time
_MOST_VECTORS = 2**31 - 1  # a kernel counts them in 32 bits


def _run(config: Config) -> int:
    """Return the neighbouring channels of an input that a thread reads in one access."""
    return max(1, int(config["vector"]) // int(config["interleave"])) if config["interleave"] else 1


class CudaConcat(VectorFamily[Concat]):
    """Concatenation of channels, with a shuffle or without: a thread copies some channels of some output pixels."""

    name = "cuda_concat"
    operator = Concat
    template = "cuda/concat.cu.j2"
    dtypes = WITH_BYTES
    parameters = (
        Parameter("interleave", (*_INTERLEAVES, 0), "groups of a shuffle, 1: none; 0: any"),
        Parameter("vector", (1, 2, 4, 8, 16), "channels of an access"),
        Parameter("items", (1, 2, 4), "accesses a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        vector, interleave = int(config["vector"]), int(config["interleave"])
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(interleave == 0 or vector % interleave == 0, "vector must be a multiple of interleave")

    def decided(self, problem: Concat) -> Mapping[str, Value]:
        return {"interleave": problem.interleave if problem.interleave in _INTERLEAVES else 0}

    def unfit(self, problem: Concat, config: Config, arch: Architecture) -> Rules:
        run, vector = _run(config), int(config["vector"])
        numbers = [problem.c // problem.interleave]
        for piece in problem.pieces:
            numbers += [piece.pitch, piece.first, piece.end]
        yield from super().unfit(problem, config, arch)
        yield require(
            all(number % run == 0 for number in numbers),
            f"pieces and groups must begin and end at multiples of the {run} channels of an access",
        )
        yield require(
            problem.n * problem.h * problem.w * problem.c // vector <= _MOST_VECTORS,
            f"the output must have at most {_MOST_VECTORS} vectors",
        )

    def cost(self, problem: Concat, config: Config, arch: Architecture) -> float:
        """Rank by accesses; several accesses a thread cost more where they leave SMs without threads."""
        vector, items, threads = (int(config[name]) for name in ("vector", "items", "threads"))
        started = problem.n * problem.h * problem.w * problem.c / (vector * items)
        idle = max(1.0, arch.processors * arch.sm_threads / started)
        return (8 / vector + 8 / _run(config)) * (1 + 0.1 / items) * float(idle**0.25) + abs(threads - 128) / 1024


FAMILIES = (CudaConcat(),)
