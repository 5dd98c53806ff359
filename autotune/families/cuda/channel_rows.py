"""The family of operators on all channels of a pixel, on a GPU: a pixel lies in the registers of its threads."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, LayerNorm, Softmax

_MAX_CHANNELS = 64  # of a thread, as float32 in registers


def _channels(config: Config) -> tuple[int, int, int]:
    """Return the channels of an access, the accesses of a thread and the threads of a pixel."""
    return int(config["vector"]), int(config["items"]), int(config["lanes"])


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector, items, lanes = _channels(config)

    def rules() -> Rules:
        yield require_access(vector, dtype)
        yield require(
            vector * items <= _MAX_CHANNELS,
            f"a thread has at most {_MAX_CHANNELS} channels; vector times items is {vector * items}",
        )
        yield require(lanes <= int(config["threads"]), "a pixel's threads must be in one block")

    return first_unmet(rules())


def _why_unfit(problem: LayerNorm | Softmax, config: Config, arch: Architecture) -> str | None:
    vector, items, lanes = _channels(config)

    def rules() -> Rules:
        yield require_whole_vectors(problem.c, vector)
        yield require(
            problem.c <= vector * items * lanes,
            f"a pixel's threads hold {vector * items * lanes} channels; the problem has {problem.c}",
        )
        yield require(
            problem.c > vector * (items - 1) * lanes and (problem.c > vector * items * lanes // 2 or lanes == 1),
            "fewer accesses or threads a pixel are enough",
        )

    return first_unmet(rules())


def _cost(problem: LayerNorm | Softmax, config: Config, arch: Architecture) -> float:
    """Rank by accesses, idle threads among a pixel's, and the steps of reductions, where SMs have enough threads."""
    vector, items, lanes = _channels(config)
    started = problem.n * problem.h * problem.w * lanes
    idle = max(1.0, arch.processors * arch.sm_threads / started)
    waste = vector * items * lanes / problem.c
    reduced = lanes.bit_length() / 16 if lanes <= 32 else 0.75
    return 8 / vector * waste * (1 + reduced / items + items / 32) * float(idle**0.25) + int(config["threads"]) / 4096


def family(name: str, operator: type[LayerNorm] | type[Softmax]) -> Family[LayerNorm | Softmax]:
    """Return the family of one of the operators."""
    return Family[LayerNorm | Softmax](
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cuda/channel_rows.cu.j2",
        architectures=cuda_architectures(),
        parameters=(
            Parameter("vector", (1, 2, 4, 8), "channels of an access"),
            Parameter("items", (1, 2, 3, 4, 6, 8, 16), "accesses a thread"),
            Parameter("lanes", (1, 4, 8, 16, 32, 64, 128, 256), "threads a pixel"),
            Parameter("threads", (128, 256), "threads a block"),
        ),
        why_illegal=_why_illegal,
        why_unfit=_why_unfit,
        cost=_cost,
        context=lambda config, arch, dtype: {**config, "softmax": operator is Softmax},
        compile_seconds=(0.9, 0.1),
    )
