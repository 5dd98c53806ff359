"""Batch norms in training, with what follows them, as problems.

A batch norm in training takes two passes over its input: the statistics, and the normalization. A ReLU behind it is
fused with the latter, also one after the addition of another tensor. The gradient takes two passes as well: the sums,
with the mask of the ReLU, and the input gradient. In front of any other pointwise operator, such as SiLU, a
batch norm is left to Inductor, which fuses both.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from autotune.ir import Epilogue, Problem
from autotune.ir.operators import (
    JOINED_RELU,
    MOST_PLACES,
    NO_RELU,
    OWN_RELU,
    BatchNormGradient,
    BatchNormGradientSums,
    BatchNormStatistics,
    Elementwise,
    MaxPool2dPlaces,
    MaxPool2dPlacesGradient,
)
from fused_resnet.torch_arguments import pair
from fused_resnet.training.convolution_passes.passes import dtype_name

Tensor = torch.Tensor
BATCH_NORM = F.batch_norm
"""(x, running mean, running variance, weight, bias, training, momentum, eps) -> y."""
MAX_POOLS = (F.max_pool2d, torch.max_pool2d)
RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_", Tensor.relu, Tensor.relu_)
ADDITIONS = (
    operator.add, operator.iadd, torch.add, "add", "add_", Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__,
    Tensor.__radd__,
)  # fmt: skip
"""The functions, and the names of methods, of torch's ReLU and of an addition."""

READERS = (torch.conv2d, *MAX_POOLS)
"""Functions with which Inductor would not fuse a batch norm that they read."""

IN_PLACE = (operator.iadd, "add_", Tensor.add_, Tensor.__iadd__)
"""Those of ADDITIONS that change their first argument."""

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


def batch_norm_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call of BATCH_NORM by name."""
    return {**_DEFAULTS, **dict(zip(_NAMES, args, strict=False)), **kwargs}


def is_trained(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of BATCH_NORM is one in training, with weight and bias."""
    given = batch_norm_arguments(args, kwargs)
    return given["training"] is True and given["weight"] is not None and given["bias"] is not None


@dataclass(frozen=True)
class TrainedNorm:
    """A batch norm in training and what follows it.

    Attributes:
        n, c, h, w: Its input's shape.
        dtype: Its input's dtype.
        relu: NO_RELU, OWN_RELU, or JOINED_RELU for a ReLU after another tensor of this shape and dtype was added.
    """

    n: int
    c: int
    h: int
    w: int
    dtype: str
    relu: int = NO_RELU

    @classmethod
    def of(cls, x: torch.Tensor, relu: int) -> TrainedNorm | None:
        """Return the norm of an input; None if it is no image, has another dtype, or is too small for statistics."""
        dtype = dtype_name(x)
        if x.dim() != 4 or dtype is None or not all(isinstance(size, int) for size in x.shape):
            return None
        n, c, h, w = x.shape
        return cls(n, c, h, w, dtype, relu) if c and n * h * w > 1 else None

    @property
    def statistics(self) -> BatchNormStatistics:
        """The first pass."""
        return BatchNormStatistics(**self._sizes)

    @property
    def normalization(self) -> Elementwise:
        """The second pass."""
        added, relu = self.relu == JOINED_RELU, self.relu != NO_RELU
        steps = ("scale", "bias", *(["add"] if added else []), *(["relu"] if relu else []))
        return Elementwise(**self._sizes, epilogue=Epilogue(steps))

    @property
    def normalization_of_two(self) -> Elementwise:
        """The second pass, with JOINED_RELU, together with that of the batch norm whose result is added."""
        return Elementwise(**self._sizes, epilogue=Epilogue(("scale", "bias", "add_scaled", "relu")))

    def gradient_sums(self, gradients: int = 1) -> BatchNormGradientSums:
        """Return the first pass of the gradient, for the sum of one or two gradients."""
        return BatchNormGradientSums(**self._sizes, relu=self.relu, gradients=gradients)

    @property
    def gradient(self) -> BatchNormGradient:
        """The second pass of the gradient."""
        return BatchNormGradient(**self._sizes, relu=OWN_RELU if self.relu == OWN_RELU else NO_RELU)

    @property
    def problems(self) -> dict[str, Problem]:
        """All passes by what they compute."""
        return {
            "statistics": self.statistics,
            "normalization": self.normalization,
            "gradient sums": self.gradient_sums(),
            **({"gradient sums of two": self.gradient_sums(2)} if self.relu == JOINED_RELU else {}),
            "gradient": self.gradient,
        }

    @property
    def _sizes(self) -> dict[str, Any]:
        return {"n": self.n, "h": self.h, "w": self.w, "c": self.c, "dtype": self.dtype}


@dataclass(frozen=True)
class TrainedPool:
    """A max pool and its gradient.

    Attributes:
        pool: The pool, which also computes the places of the largest values.
    """

    pool: MaxPool2dPlaces

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> TrainedPool | None:
        """Return the pool of a call of torch's function; None if there is no problem for it."""
        norm = TrainedNorm.of(x, NO_RELU)
        r, s = pair(kernel_size)
        if norm is None or pair(dilation) != (1, 1) or return_indices or r * s > MOST_PLACES:
            return None
        return cls(
            MaxPool2dPlaces(
                n=norm.n, h=norm.h, w=norm.w, c=norm.c, r=r, s=s, stride=pair(stride) if stride else (r, s),
                pad=pair(padding), ceil=int(ceil_mode), dtype=norm.dtype,
            )
        )  # fmt: skip

    @property
    def gradient(self) -> MaxPool2dPlacesGradient:
        """The input gradient."""
        return MaxPool2dPlacesGradient(**self._sizes)

    @property
    def problems(self) -> dict[str, Problem]:
        """Both passes by what they compute."""
        return {"output": self.pool, "gradient": self.gradient}

    @property
    def _sizes(self) -> dict[str, Any]:
        names = ("n", "h", "w", "c", "r", "s", "stride", "pad", "ceil", "dtype")
        return {name: getattr(self.pool, name) for name in names}
