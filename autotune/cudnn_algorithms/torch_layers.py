"""Selects the cuDNN algorithms of a torch model's convolutions: by number, by plan, or by requirements.

    from autotune import cudnn_algorithms

    with cudnn_algorithms.use(model, conv_fwd_algo=1, conv_bwd_filter_algo=1, layers="layer1.*"):
        loss(model(x)).backward()

    model = cudnn_algorithms.wrap(model, deterministic=True, workspace_limit=64 << 20)

An algorithm is named by its number in cuDNN's classic API (`autotune algorithms` lists them), by the name of a plan of
the graph API, or by the engine of a plan, such as "eng57". torch computes the passes without any requirement. torch
itself is not patched: `use` gives the layers another forward while the context lasts, `wrap` replaces them by `Conv2d`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autotune.core import LibraryError, UnknownNameError, require_one_of
from autotune.cudnn_algorithms import benchmark
from autotune.cudnn_algorithms.selection import DIRECTIONS, ORDERS, Algorithm, select_algorithm
from autotune.ir import dtype_name
from autotune.ir.operators import Conv2d as Problem
from autotune.libraries.cudnn.classic import BACKWARD_DATA, BACKWARD_FILTER, FORWARD, NAMES, load
from autotune.measure import CandidateBench

Algo = int | str | None
Pair = tuple[int, int]

_PLAN = re.compile(r"eng\d+(_k\d+=-?\d+)*")
"""Pattern of the name of a plan or of its engine."""


@dataclass(frozen=True)
class Requirements:
    """Requirements on the algorithms of a layer.

    Attributes:
        conv_fwd_algo: Algorithm of the forward pass: a classic number, or the name or engine of a plan. None takes the
            best algorithm that meets the other requirements or, if there are none, the one that torch takes.
        conv_bwd_data_algo: The same for the backward-data pass.
        conv_bwd_filter_algo: The same for the backward-filter pass.
        workspace_limit: Most bytes of workspace.
        deterministic: Whether the same input must give the same bits.
        prefer: "time", "energy" or "workspace": measure all algorithms that meet the requirements, once for each size
            of the layer, and take the best.

    Raises:
        LibraryError: For requirements that no layer could meet.
    """

    conv_fwd_algo: Algo = None
    conv_bwd_data_algo: Algo = None
    conv_bwd_filter_algo: Algo = None
    workspace_limit: int | None = None
    deterministic: bool = False
    prefer: str | None = None

    def __post_init__(self) -> None:
        if self.prefer is not None:
            require_one_of("preference", self.prefer, list(ORDERS))
        if self.workspace_limit is not None and self.workspace_limit < 0:
            raise LibraryError(f"workspace_limit={self.workspace_limit} is negative: give a number of bytes")
        for direction in DIRECTIONS:
            algo, names = self.algo(direction), NAMES[direction]
            if algo is not None and str(algo) not in map(str, range(len(names))) and not _PLAN.fullmatch(str(algo)):
                known = ", ".join(f"{number} {name}" for number, name in enumerate(names))
                raise LibraryError(
                    f"there is no {direction} algorithm {algo!r}: choose one of {known}, or a plan such as 'eng41'"
                )
        if not self.any_pass and all(self.algo(direction) is None for direction in DIRECTIONS):
            raise LibraryError("no pass has a requirement: give an algorithm, workspace_limit, deterministic or prefer")

    def algo(self, direction: str) -> Algo:
        """Return the algorithm that is required for a pass."""
        return {
            FORWARD: self.conv_fwd_algo,
            BACKWARD_DATA: self.conv_bwd_data_algo,
            BACKWARD_FILTER: self.conv_bwd_filter_algo,
        }[direction]

    @property
    def any_pass(self) -> bool:
        """True if there are requirements on all passes, so that torch computes none of them."""
        return self.workspace_limit is not None or self.deterministic or self.prefer is not None


class Conv2d(nn.Conv2d):
    """An nn.Conv2d whose passes run on selected algorithms of cuDNN; its state_dict is the same."""

    requirements: Requirements

    @classmethod
    def from_module(cls, module: nn.Conv2d, **requirements: Any) -> Conv2d:
        """Return a layer that shares the parameters of `module`; requirements: the fields of `Requirements`."""
        made = cls(
            module.in_channels,
            module.out_channels,
            module.kernel_size,  # type: ignore[arg-type]
            module.stride,  # type: ignore[arg-type]
            module.padding,  # type: ignore[arg-type]
            module.dilation,  # type: ignore[arg-type]
            module.groups,
            module.bias is not None,
            module.padding_mode,
            device="meta",
        )
        made.weight, made.bias, made.training = module.weight, module.bias, module.training
        made.requirements = Requirements(**requirements)
        return made

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the convolution of an input (N, C, H, W): (N, K, P, Q) in the memory format of the input."""
        return _forward(self, self.requirements, input)


@contextmanager
def use(model: nn.Module, layers: str = "*", **requirements: Any) -> Iterator[list[str]]:
    """Run the convolutions of a model on selected algorithms while the context lasts.

    Args:
        model: A model, or a single convolution.
        layers: Pattern of the names of the convolutions, such as "layer1.*.conv2".
        requirements: The fields of `Requirements`.

    Yields:
        The names of the convolutions.

    Raises:
        LibraryError: For requirements that no layer could meet, or without an NVIDIA GPU. Also at the first call with
            inputs of a new size, if cuDNN does not support the algorithm; the message lists those that it supports.
        UnknownNameError: If no convolution has such a name.
    """
    wanted, found = Requirements(**requirements), convolutions(model, layers)
    _check_device()
    before = {name: layer.__dict__.get("forward") for name, layer in found.items()}
    for layer in found.values():
        layer.__dict__["forward"] = partial(_forward, layer, wanted)
    try:
        yield list(found)
    finally:
        for name, layer in found.items():
            if before[name] is None:
                del layer.__dict__["forward"]
            else:
                layer.__dict__["forward"] = before[name]


def wrap(model: nn.Module, layers: str = "*", **requirements: Any) -> nn.Module:
    """Replace a model's convolutions by `Conv2d` with requirements; arguments and errors as for `use`.

    The new layers do not have the hooks of the old ones.

    Returns:
        The model; or the new layer, if the model is a convolution itself.
    """
    found = convolutions(model, layers)
    made = {name: Conv2d.from_module(layer, **requirements) for name, layer in found.items()}
    _check_device()
    for name, layer in made.items():
        if not name:
            return layer
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
    return model


def convolutions(model: nn.Module, pattern: str = "*") -> dict[str, nn.Conv2d]:
    """Return the convolutions of a model whose names match a pattern; raises UnknownNameError if none does.

    A model that is a convolution itself has the name "".
    """
    every = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    found = {name: layer for name, layer in every.items() if fnmatch.fnmatchcase(name, pattern)}
    if not every:
        raise UnknownNameError(f"{type(model).__name__} has no nn.Conv2d: there is nothing to choose algorithms for")
    if not found:
        names = list(every)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise UnknownNameError(f"no convolution is called '{pattern}': there are {shown}")
    return found


def supported(layer: nn.Conv2d, x: torch.Tensor, **options: Any) -> list[Algorithm]:
    """Return all algorithms of all passes of a layer on an input, not run; options as for `list_algorithms`."""
    x, pad = _padded(layer, x)
    size = _Size.of(layer, x, layer.weight, pad)
    offers = [offer for problem in size.passes().values() for offer in size.algorithms(problem, **options)[0]]
    return [offer.algorithm for offer in offers]


def problem(layer: nn.Conv2d, x: torch.Tensor) -> Problem:
    """Return the forward pass of a layer on an input as a problem, without bias."""
    x, pad = _padded(layer, x)
    forward: Problem = _Size.of(layer, x, layer.weight, pad).passes()[FORWARD]
    return forward


def _check_device() -> None:
    if not torch.cuda.is_available():
        raise LibraryError("torch sees no NVIDIA GPU: cuDNN's algorithms can be selected on one only")
    load()


# -- a layer's call --------------------------------------------------------------------------------------------


def _forward_eagerly(layer: nn.Conv2d, requirements: Requirements, x: torch.Tensor) -> torch.Tensor:
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if x.device.type != "cuda" or weight.device != x.device:
        raise LibraryError(
            f"cuDNN computes on one NVIDIA GPU: the input is on {x.device}, the layer on {weight.device}"
        )
    if x.dtype != weight.dtype or x.dim() != 4:
        raise LibraryError(
            f"the input is {tuple(x.shape)} of {x.dtype}; the layer takes (N, C, H, W) of {weight.dtype}"
        )
    x, pad = _padded(layer, x)
    size = _Size.of(layer, x, weight, pad)
    needed = (True, x.requires_grad, weight.requires_grad) if torch.is_grad_enabled() else (True, False, False)
    for direction, wanted in zip(DIRECTIONS, needed, strict=True):
        if wanted:
            _select(size, direction, requirements)  # select, and raise errors, here and not in the backward pass
    apply: Callable[..., torch.Tensor] = _Convolution.apply
    y = apply(x, weight, size, requirements)
    return y if bias is None else y + bias[:, None, None]


_forward: Callable[[nn.Conv2d, Requirements, torch.Tensor], torch.Tensor] = torch.compiler.disable(_forward_eagerly)
"""`_forward_eagerly`, hidden from torch.compile, which cannot trace cuDNN's calls."""


def _padded(layer: nn.Conv2d, x: torch.Tensor) -> tuple[torch.Tensor, Pair]:
    """Return the input and the padding left to cuDNN, which pads with zeros, the same on both sides.

    Any other padding is done here; then cuDNN pads nothing.
    """
    window = [(d * (r - 1)) for d, r in zip(layer.dilation, layer.kernel_size, strict=True)]
    if layer.padding == "same":
        sides = [(total // 2, total - total // 2) for total in window]
    else:
        pads = (0, 0) if layer.padding == "valid" else layer.padding
        sides = [(int(pad), int(pad)) for pad in pads]
    (top, bottom), (left, right) = sides
    if layer.padding_mode == "zeros" and top == bottom and left == right:
        return x, (top, left)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, (left, right, top, bottom), mode=mode), (0, 0)


@dataclass(frozen=True)
class _Size:
    """Shapes of a convolution and everything else that decides which algorithms cuDNN supports."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: Pair
    pad: Pair
    dilation: Pair
    groups: int
    dtype: str
    channels_last: bool
    device: torch.device

    @classmethod
    def of(cls, layer: nn.Conv2d, x: torch.Tensor, weight: torch.Tensor, pad: Pair) -> _Size:
        last = [
            tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
            for tensor in (x, weight)
        ]
        dtype = dtype_name(x.dtype)
        dtype = "tf32" if dtype == "f32" and torch.backends.cudnn.allow_tf32 else dtype
        window = (_pair(layer.stride), pad, _pair(layer.dilation), layer.groups)
        return cls(tuple(x.shape), tuple(weight.shape), *window, dtype, any(last), x.device)

    def passes(self) -> dict[str, Any]:
        """Return the problems of the three passes."""
        (n, c, h, w), (k, _, r, s) = self.x, self.weight
        window = {"stride": self.stride, "pad": self.pad, "dilation": self.dilation, "groups": self.groups}
        return benchmark.passes(Problem(n=n, h=h, w=w, c=c, k=k, r=r, s=s, dtype=self.dtype, **window))  # type: ignore[arg-type]

    def algorithms(self, problem: Any, **options: Any) -> tuple[list[benchmark.RunnableAlgorithm], list[str]]:
        """Return the algorithms of one of the passes, and reasons as `list_algorithms` does."""
        return benchmark.list_algorithms(problem, self.device, self.channels_last, **options)

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def window(self) -> tuple[Any, ...]:
        """The arguments of torch's convolution that follow its bias."""
        return self.stride, self.pad, self.dilation, False, (0, 0), self.groups


def _pair(value: tuple[int, ...]) -> Pair:
    return value[0], value[1]


Enqueue = Callable[[benchmark.ConvTensors, int], None]


@lru_cache(maxsize=4096)
def _select(size: _Size, direction: str, requirements: Requirements) -> Enqueue | None:
    """Return what runs a pass; None for torch. Raises LibraryError if no algorithm meets the requirements."""
    algo = requirements.algo(direction)
    if algo is None and not requirements.any_pass:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise LibraryError("run the layer once before it is captured: its algorithm is selected at the first call")
    key = None if algo is None else str(algo)
    kinds = benchmark.KINDS if key is None else ("classic",) if key.isdigit() else ("engine",)
    problem = size.passes()[direction]
    offers, reasons = size.algorithms(problem, kinds=kinds)
    if key and not offers:
        raise LibraryError(f"{direction} algorithm {key} is not available: {'; '.join(reasons)}")
    algorithms = [offer.algorithm for offer in offers]
    if key is None and requirements.prefer != "workspace":
        with torch.no_grad():
            algorithms = list(
                benchmark.benchmark_algorithms(
                    CandidateBench(problem, size.device), offers, requirements.prefer == "energy"
                )
            )
    best = select_algorithm(
        algorithms,
        direction,
        key,
        workspace_limit=requirements.workspace_limit,
        deterministic=requirements.deterministic,
        prefer=requirements.prefer or "time",
    )
    return offers[algorithms.index(best)].enqueue


class _Convolution(torch.autograd.Function):
    """A convolution without bias; each pass runs on the algorithm that was selected for it."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, size: _Size, requirements: Requirements
    ) -> torch.Tensor:
        ctx.size, ctx.requirements = size, requirements
        form = size.memory_format
        x, weight = x.contiguous(memory_format=form), weight.contiguous(memory_format=form)
        ctx.save_for_backward(x, weight)
        run = _select(size, FORWARD, requirements)
        if run is None:
            result: torch.Tensor = torch.ops.aten.convolution(x, weight, None, *size.window)
            return result
        problem = size.passes()[FORWARD]
        n, p, q, k = problem.output_shape
        y = torch.empty((n, k, p, q), dtype=x.dtype, device=x.device, memory_format=form)
        run((x, weight, y), _stream(x))
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        size, form = ctx.size, ctx.size.memory_format
        dy = dy.contiguous(memory_format=form)
        gradients: list[torch.Tensor | None] = [None, None]
        for place, direction in enumerate((BACKWARD_DATA, BACKWARD_FILTER)):
            if not ctx.needs_input_grad[place]:
                continue
            run = _select(size, direction, ctx.requirements)
            if run is None:
                mask = [place == 0, place == 1, False]
                backward = torch.ops.aten.convolution_backward
                gradients[place] = backward(dy, x, weight, None, *size.window, mask)[place]
                continue
            gradient = torch.empty_like((x, weight)[place], memory_format=form)
            tensors = (gradient, weight, dy) if place == 0 else (x, gradient, dy)
            run(tensors, _stream(x))
            gradients[place] = gradient
        return *gradients, None, None


def _stream(tensor: torch.Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream
