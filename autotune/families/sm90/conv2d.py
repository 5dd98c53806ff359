"""Forward convolutions for Hopper that share templates/sm90/conv2d/conv2d.cuh, of which this has the general ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require, require_no_overflow
from autotune.families.sm90.common import MAX_CLUSTER, HopperFamily, im2col_rules
from autotune.families.sm90.conv2d_launches import LAUNCH_PARAMETERS, columns_fit, steps_fit, timed_launches
from autotune.families.sm90.conv2d_loads import (
    MERGED,
    Conv,
    Solved,
    blocks_needed,
    convolution_of,
    group_channels,
    loadings,
    merges,
    products_a_tile,
)
from autotune.families.sm90.conv2d_shape import ROW_BYTES, Conv2dShape, max_shared_bytes
from autotune.ir import BYTE_FORMATS, DTYPES, Epilogue
from autotune.ir.operators import Conv2d, Conv2dBroadcast, Conv2dSe, Gemm

P = TypeVar("P", bound=Solved)

# For the cost, in bytes a cycle of an SM: fitted, see `Conv2dFamily.cost`.
_READ_BYTES_A_CYCLE = 80  # from the L2 cache; data shared by multicast are read once
_RECEIVED_BYTES_A_CYCLE = 70  # into shared memory, by whichever block reads them
_PROMOTION_WAIT = 60  # cycles from the last product to the first addition: an estimate, not fitted


class Conv2dFamily(HopperFamily[P]):
    """Forward convolutions: persistent, warp-specialised, TMA and wgmma; NHWC.

    The GEMM is M = n*p*q, N = k, K = r*s*c; a linear layer is a convolution of images of one pixel.
    """

    template = "sm90/conv2d/conv2d.cu.j2"
    parameters: tuple[Parameter, ...] = (
        Parameter("merge", MERGED, "groups that are computed as one, with zeros between them"),
        Parameter("tile_m", (64, 128, 192, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_k", (16, 32, 64, 128), "input channels a step"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("schedule", ("cooperative", "pingpong"), "the warpgroups share a tile, or have one each, in turn"),
        Parameter("activations", ("im2col", "patch"), "a filter tap at a time, or the tile's patch with its halo"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a column"),
        Parameter("cluster_m", (1, 2, 4), "blocks that share their loads of weights"),
        Parameter("cluster_n", (1, 2, 4), "blocks that share their loads of activations"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's channels and taps"),
    )
    launch_parameters = LAUNCH_PARAMETERS

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = Conv2dShape.from_config(config, dtype)
        yield require(
            not x.pingpong or (x.groups == 2 and x.slices == 1),
            "pingpong needs groups=2, each with its own tile, and slices=1",
        )
        yield require(
            x.m % (64 * x.team) == 0, "tile_m must be a multiple of 64 rows for each warpgroup that shares a tile"
        )
        yield require(
            x.accumulators <= x.max_accumulators,
            f"a thread must have at most {x.max_accumulators} sums, or spills; it has {x.accumulators}",
        )
        streamed = not x.patch and not x.resident
        yield require(x.cluster_n == 1 or streamed, "cluster_n > 1 needs activations=im2col and weights=streamed")
        yield require(x.slices == 1 or streamed, "slices > 1 needs activations=im2col and weights=streamed")
        yield require(x.cluster <= MAX_CLUSTER, f"a cluster must have at most {MAX_CLUSTER} blocks; it has {x.cluster}")
        yield require(x.slices == 1 or x.cluster_m == 1, "slices > 1 needs cluster_m=1: split tiles share no weights")
        yield require(
            (x.m // x.team // 64 * 2 * (x.n // 32)) % x.slices == 0,
            "slices must divide a warpgroup's blocks of 32 x 32 sums",
        )
        yield require(
            x.row_bytes in ROW_BYTES, f"a step of tile_k channels must take {', '.join(map(str, ROW_BYTES))} bytes"
        )
        yield require(
            x.row_bytes == ROW_BYTES[-1] or (x.n <= 128 and x.m <= 128 and x.cluster == 1),
            "tile_k below 128 bytes is for few channels: tile_m and tile_n must be at most 128, and a cluster one "
            "block",
        )
        room, least = max_shared_bytes(arch), 2 * (x.m + x.columns) * x.row_bytes
        yield require(least <= room, f"two stages must fit {room} bytes of shared memory; they take {least}")
        yield require(x.columns <= 256, f"wgmma has at most 256 columns; tile_n and hidden make {x.columns}")
        yield require(dtype not in BYTE_FORMATS or "gate" not in epilogue.names, "gates are not computed from bytes")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        shares = chosen.get("activations") != "patch" and chosen.get("weights") != "resident"
        only_first_value = {
            "schedule": chosen.get("groups") != 2,
            "cluster_n": not shares,
            "slices": not shares or chosen.get("schedule") != "cooperative",
        }
        match parameter.name:
            case "merge":  # kernels of other values are compiled alike
                return merges(convolution_of(problem)) if problem else (1,)
            case "tile_n" | "tile_k" if problem:
                conv = convolution_of(problem, int(chosen.get("merge", 1)))
                fits: Callable[[Conv, int], bool] = columns_fit if parameter.name == "tile_n" else steps_fit
                return [value for value in parameter.values if fits(conv, int(value))]
        return parameter.values[:1] if only_first_value.get(parameter.name) else parameter.values

    def unsupported(self, problem: P) -> Rules:
        conv = convolution_of(problem)
        yield require(
            merges(conv),
            f"some of {', '.join(map(str, MERGED))} groups together must have a multiple of {ROW_BYTES[0]} bytes of "
            "input channels and of 32 output channels",
        )
        granule = 16 // DTYPES[conv.dtype].itemsize  # TMA's strides are multiples of 16 bytes
        yield require(conv.c % granule == 0 and conv.k % granule == 0, f"c and k must be multiples of {granule}")
        yield require_no_overflow(conv.dtype, conv.r * conv.s * group_channels(conv))
        yield from im2col_rules(conv, *conv.stride)

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        merge, possible = int(config.get("merge", 1)), merges(convolution_of(problem))
        yield require(merge in possible, f"it computes {merge} groups as one; the problem allows {possible}")

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        return timed_launches(problem, config, arch)

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of tiles, each bound by products or by loads.

        The constants are fitted to 1775 kernels timed on 23 layers of ResNets on an H200, and to the winners of layers
        with sizes that fit no tile.
        """
        x = Conv2dShape.from_config(config, problem.dtype)
        conv = convolution_of(problem, x.merge)
        processors, products, best = arch.processors_for(x.cluster), products_a_tile(conv, x), float("inf")
        for loading in loadings(conv, x):
            rounds = ceil_div(blocks_needed(conv, x, loading), processors)
            buffers = 2 * (loading.fill_bytes + x.weight_bytes) + x.staging_bytes(1)
            resident = max(1, min(x.blocks_by_registers(arch), rounds, arch.sm_shared // buffers))
            overlapping = resident * (2 if x.pingpong else 1)
            # With resident weights, no step waits for the next ones.
            waits: float = 80 * loading.fills + (40 if x.patch and x.resident else 150) * (products - loading.fills)
            if x.promote:
                waits += products / x.promote * (_PROMOTION_WAIT + x.accumulators / 2)
            arithmetic = products * x.m * max(x.columns, 24) * (x.row_bytes / 2) / arch.wgmma_rate + waits / overlapping
            pixels = loading.fills * loading.fill_bytes
            weights = products * x.weight_bytes / (rounds if x.resident else 1)
            read = (pixels / x.cluster_n + weights / x.cluster_m) / _READ_BYTES_A_CYCLE
            loads = max(read, (pixels + weights) / _RECEIVED_BYTES_A_CYCLE)
            epilogue = x.m * x.n / 4
            ends = 2000 + 15 * x.m + (500 if x.slices > 1 else 0)
            best = min(best, rounds * (max(arithmetic, loads) / x.slices + epilogue) + ends)
        return best

    def label(self, config: Config) -> str:
        x = Conv2dShape.from_config(config, "f16")  # no label depends on the dtype
        extras = [
            f" {x.groups}wg" if not x.pingpong else " pingpong",
            " patch" if x.patch else "",
            " resident" if x.resident else "",
            f" c{x.cluster_m}x{x.cluster_n}" if x.cluster_m * x.cluster_n > 1 else "",
            f" split{x.slices}" if x.slices > 1 else "",
            f" merge{x.merge}" if x.merge > 1 else "",
        ]
        return f"{x.m}x{x.n}x{x.k}{''.join(extras)}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        x = Conv2dShape.from_config(config, dtype)
        return {
            **super().context(config, arch, dtype),
            "hidden": x.hidden,
            "image": config.get("image"),
            "resident_blocks": x.blocks_by_registers(arch),
            "many_sums": x.many_sums,
            "promote": x.promote,
            "totals": "",
        }

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        merge = int(config.get("merge", 1))
        return {"weight": f"wgmma{merge}" if merge > 1 else "wgmma"}


class Sm90Conv2d(Conv2dFamily[Conv2d | Conv2dBroadcast | Conv2dSe | Gemm]):
    """Forward convolution for Hopper: persistent, warp-specialised, TMA and wgmma; NHWC.

    fp16 and bf16 have float32 sums, signed bytes int32 sums; e4m3.py has the kernels for e4m3.
    """

    name = "sm90_conv2d"
    operator = (Conv2d, Conv2dBroadcast, Conv2dSe, Gemm)
    dtypes = ("f16", "bf16", "s8")

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from super().illegal(config, arch, dtype, epilogue)
        if epilogue.broadcasts:
            yield require(dtype not in BYTE_FORMATS, "sums of bytes are not multiplied by the values of an image")
            kinds = [argument.kind for argument in epilogue.arguments]
            yield require(
                "mul_image" in epilogue.names and kinds.count("image") + kinds.count("pixel") == 1,
                "of the steps with a broadcast tensor the epilogue must have mul_image, once",
            )
            yield require(
                {*kinds[: kinds.index("image")]} <= {"vector", "scalar"}, "no step before mul_image may have a tensor"
            )
        if "gate" in epilogue.names:
            x = Conv2dShape.from_config(config, dtype)
            yield from se_gate.epilogue_rules(epilogue)
            yield require(
                not (x.pingpong or x.resident or x.cluster_m > 1),
                "with a gate, schedule must be cooperative, weights streamed and cluster_m 1",
            )
            yield require(
                x.n % (64 * x.slices) == 0, "with a gate, each block needs a multiple of 64 channels: tile_n / slices"
            )

    def unsupported(self, problem: Conv2d | Conv2dBroadcast | Conv2dSe | Gemm) -> Rules:
        yield from super().unsupported(problem)
        if isinstance(problem, Conv2dSe):
            yield from se_gate.problem_rules(problem)


FAMILIES = (Sm90Conv2d(),)
