"""Gradients of a convolution from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.cutlass2.streamk import (
    ALIGNMENTS,
    StreamKFamily,
    StreamKWork,
    product_parameters,
    split_parameters,
    widest_access,
)
from autotune.families.cutlass2.tile import ThreadblockTile, require_addressable
from autotune.ir.operators import Conv2dDgrad, Conv2dWgrad

_ALIGNMENT = Parameter("alignment", ALIGNMENTS, "channels of an access: the most that c and k allow")
_IDENTITY = "gemm::threadblock::GemmIdentityThreadblockSwizzle"


class Cutlass2Conv2dDgrad(StreamKFamily[Conv2dDgrad]):
    """The input gradient: M = n*h*w, N = c, K = r*s*k; a step takes a chunk of k under all taps."""

    name = "cutlass2_conv2d_dgrad"
    operator = Conv2dDgrad
    template = "cutlass2/conv2d_gradient.cu.j2"
    k_major = (True, False)
    parameters = product_parameters(
        "input pixels",
        "input channels",
        "output channels",
        _ALIGNMENT,
        Parameter("strided", (0, 1), "1: pixels sorted by their place modulo the stride; 0: for stride 1"),
    )
    launch_parameters = split_parameters("output channels")

    def unsupported(self, problem: Conv2dDgrad) -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.stride == (1, 1) or problem.dilation == (1, 1), "stride or dilation must be 1")
        yield require(max(problem.r, problem.s) <= 32, "filters must be at most 32x32")
        yield require_addressable(problem)

    def decided(self, problem: Conv2dDgrad) -> Mapping[str, Value]:
        return {"alignment": widest_access(problem.k, problem.c), "strided": int(problem.stride != (1, 1))}

    def work(self, problem: Conv2dDgrad, tile: ThreadblockTile) -> StreamKWork:
        """Return the work: with a stride, pixels of each residue have their own tiles and a share of the taps."""
        (m, n, k), (down, right) = tile.shape, problem.stride
        pixels = problem.n * ceil_div(problem.h, down) * ceil_div(problem.w, right)
        residues = down * right
        return StreamKWork(
            tiles_m=residues * ceil_div(pixels, m),
            tiles_n=ceil_div(problem.c, n),
            steps=ceil_div(problem.k, k),
            iterations=problem.r * problem.s / residues,
        )

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        strided = config["strided"] == 1
        return {
            **super().context(config, arch, dtype),
            "header": "conv2d_dgrad.cuh",
            "work": "DgradWork",
            "cutlass_kernel": "DefaultConv2dDgrad",
            "cutlass_swizzle": "conv::threadblock::StridedDgradIdentityThreadblockSwizzle" if strided else _IDENTITY,
            "stride_support": "kStrided" if strided else "kUnity",
        }

    def label(self, config: Config) -> str:
        return super().label(config) + (" strided" if config["strided"] else "")

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc"}


class Cutlass2Conv2dWgrad(StreamKFamily[Conv2dWgrad]):
    """The weight gradient: M = k, N = r*s*c, K = n*p*q.

    It has few tiles with many steps, so their distribution over blocks decides the time.
    """

    name = "cutlass2_conv2d_wgrad"
    operator = Conv2dWgrad
    template = "cutlass2/conv2d_gradient.cu.j2"
    k_major = (False, False)
    parameters = product_parameters("output channels", "taps and input channels", "output pixels", _ALIGNMENT)
    launch_parameters = split_parameters("output pixels")

    def unsupported(self, problem: Conv2dWgrad) -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        size = problem.operands()[0].bytes
        yield require(size < 2**28, f"dy must be smaller than 256 MiB, as CUTLASS counts its bits in 32; it has {size}")
        yield require_addressable(problem)

    def decided(self, problem: Conv2dWgrad) -> Mapping[str, Value]:
        return {"alignment": widest_access(problem.k, problem.c)}

    def work(self, problem: Conv2dWgrad, tile: ThreadblockTile) -> StreamKWork:
        sizes = (problem.k, problem.r * problem.s * problem.c, problem.n * problem.p * problem.q)
        return StreamKWork.of(sizes, tile)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {
            **super().context(config, arch, dtype),
            "header": "conv2d_wgrad.cuh",
            "work": "WgradWork",
            "cutlass_kernel": "DefaultConv2dWgrad",
            "cutlass_swizzle": _IDENTITY,
            "stride_support": "kStrided",
        }


FAMILIES = (Cutlass2Conv2dDgrad(), Cutlass2Conv2dWgrad())
