"""Operators on all channels of a pixel on a GPU, channels last: a pixel lies in the registers of its threads."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda.common import VectorFamily
from autotune.ir import Epilogue
from autotune.ir.operators import LayerNorm, Softmax

_MAX_CHANNELS = 64  # of a thread, as float32 in registers


def _channels(config: Config) -> tuple[int, int, int]:
    """Return the channels of an access, the accesses of a thread and the threads of a pixel."""
    return int(config["vector"]), int(config["items"]), int(config["lanes"])


class ChannelRowsFamily(VectorFamily[LayerNorm | Softmax]):
    """Kernels whose threads keep a pixel's channels in registers."""

    template = "cuda/channel_rows.cu.j2"
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "channels of an access"),
        Parameter("items", (1, 2, 3, 4, 6, 8, 16), "accesses a thread"),
        Parameter("lanes", (1, 4, 8, 16, 32, 64, 128, 256), "threads a pixel"),
        Parameter("threads", (128, 256), "threads a block"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        vector, items, lanes = _channels(config)
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(
            vector * items <= _MAX_CHANNELS,
            f"a thread has at most {_MAX_CHANNELS} channels; vector times items is {vector * items}",
        )
        yield require(lanes <= int(config["threads"]), "a pixel's threads must be in one block")

    def unfit(self, problem: LayerNorm | Softmax, config: Config, arch: Architecture) -> Rules:
        vector, items, lanes = _channels(config)
        yield from super().unfit(problem, config, arch)
        yield require(
            problem.c <= vector * items * lanes,
            f"a pixel's threads hold {vector * items * lanes} channels; the problem has {problem.c}",
        )
        yield require(
            problem.c > vector * (items - 1) * lanes and (problem.c > vector * items * lanes // 2 or lanes == 1),
            "fewer accesses or threads a pixel are enough",
        )

    def cost(self, problem: LayerNorm | Softmax, config: Config, arch: Architecture) -> float:
        """Rank by accesses, idle threads among a pixel's, steps of reductions, and SMs without enough threads."""
        vector, items, lanes = _channels(config)
        started = problem.n * problem.h * problem.w * lanes
        idle = max(1.0, arch.processors * arch.sm_threads / started)
        waste = vector * items * lanes / problem.c
        reduced = lanes.bit_length() / 16 if lanes <= 32 else 0.75
        rank = 8 / vector * waste * (1 + reduced / items + items / 32) * float(idle**0.25)
        return rank + int(config["threads"]) / 4096

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "softmax": self.operator is Softmax}


class CudaLayerNorm(ChannelRowsFamily):
    """Layer normalization over channels."""

    name = "cuda_layer_norm"
    operator = LayerNorm


class CudaSoftmax(ChannelRowsFamily):
    """Softmax over channels."""

    name = "cuda_softmax"
    operator = Softmax


FAMILIES = (CudaLayerNorm(), CudaSoftmax())
