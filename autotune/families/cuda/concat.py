"""Concatenation of channels and their shuffle on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import BYTE_FORMATS, Concat, Epilogue

_INTERLEAVES = (1, 2, 4)  # that kernels are compiled for; 0 stands for a value known at run time
_MOST_VECTORS = 2**31 - 1  # a kernel counts them in 32 bits


def _run(config: Config) -> int:
    """Return the neighbouring channels of an input that a thread reads in one access."""
    return max(1, int(config["vector"]) // int(config["interleave"])) if config["interleave"] else 1


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector, interleave = int(config["vector"]), int(config["interleave"])
    return require_access(vector, dtype) or require(
        interleave == 0 or vector % interleave == 0, "vector must be a multiple of interleave"
    )


def _why_unfit(problem: Concat, config: Config, arch: Architecture) -> str | None:
    run, vector = _run(config), int(config["vector"])
    needed = problem.interleave if problem.interleave in _INTERLEAVES else 0
    numbers = [problem.c // problem.interleave]
    for piece in problem.pieces:
        numbers += [piece.pitch, piece.first, piece.end]

    def rules() -> Rules:
        yield require(config["interleave"] == needed, f"the problem needs a kernel with interleave={needed}, 0 is any")
        yield require_whole_vectors(problem.c, vector)
        yield require(
            all(number % run == 0 for number in numbers),
            f"pieces and groups must begin and end at multiples of the {run} channels of an access",
        )
        yield require(
            problem.n * problem.h * problem.w * problem.c // vector <= _MOST_VECTORS,
            f"the output must have at most {_MOST_VECTORS} vectors",
        )

    return first_unmet(rules())


def _cost(problem: Concat, config: Config, arch: Architecture) -> float:
    """Rank by accesses; several accesses a thread cost more where they leave SMs without threads."""
    vector, items, threads = (int(config[name]) for name in ("vector", "items", "threads"))
    started = problem.n * problem.h * problem.w * problem.c / (vector * items)
    idle = max(1.0, arch.processors * arch.sm_threads / started)
    return (8 / vector + 8 / _run(config)) * (1 + 0.1 / items) * float(idle**0.25) + abs(threads - 128) / 1024


FAMILY = Family[Concat](
    name="cuda_concat",
    operator=Concat,
    kind=DEVICE_IMAGE,
    template="cuda/concat.cu.j2",
    architectures=cuda_architectures(),
    dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
    parameters=(
        Parameter("interleave", (*_INTERLEAVES, 0), "groups of a shuffle, 1: none; 0: any"),
        Parameter("vector", (1, 2, 4, 8, 16), "channels of an access"),
        Parameter("items", (1, 2, 4), "accesses a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
