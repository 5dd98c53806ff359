"""Operators of torch as candidates, the baseline of every layer, and the setting of TF32 that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from autotune.ir import BYTE_FORMATS, DTYPES, E4M3, Epilogue, Problem, Tensors, compute
from autotune.ir.epilogue_steps import STEPS
from autotune.ir.operators import Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution, FirstLayers

FAMILY = "aten"
"""Name of the family in databases."""

PASSES = (Conv2d, Conv2dDgrad, Conv2dWgrad)
"""Problems that torch solves by one operator; it computes the reference of any other."""


def configs(problem: Problem) -> list[dict[str, str]]:
    """Return the configs of torch's candidates: convolutions in both memory formats, other problems in one."""
    formats = ["channels_last", "contiguous"] if isinstance(problem, (*PASSES, FirstLayers)) else ["channels_last"]
    return [{"memory_format": name} for name in formats]


def _leave(value: torch.Tensor, output: torch.Tensor) -> None:
    """Store in the output's dtype; 8-bit formats are rounded to the nearest and saturated."""
    form = _FORMATS.get(output.dtype)
    output.copy_(form.stored(value) if form else value)


_FORMATS = {form.tensors: form for form in BYTE_FORMATS.values()}

_IN_PLACE: dict[str, Callable[..., Any]] = {
    "bias": torch.Tensor.add_,
    "scale": torch.Tensor.mul_,
    "add": torch.Tensor.add_,
    "store": _leave,
    "add_scalar": torch.Tensor.add_,
    "mul_scalar": torch.Tensor.mul_,
    "clamp": torch.Tensor.clamp_,
    "relu": torch.Tensor.relu_,
    "relu6": lambda v: F.relu6(v, inplace=True),
    "leaky_relu": lambda v, slope: F.leaky_relu(v, slope, inplace=True),
    "sigmoid": torch.Tensor.sigmoid_,
    "hardsigmoid": lambda v: F.hardsigmoid(v, inplace=True),
    "silu": lambda v: F.silu(v, inplace=True),
    "hardswish": lambda v: F.hardswish(v, inplace=True),
    "tanh": torch.Tensor.tanh_,
}


def _readable(kind: str, argument: torch.Tensor | float) -> torch.Tensor | float:
    """Return an argument that torch's operators take: they do not mix float8 with other dtypes."""
    if isinstance(argument, torch.Tensor) and argument.dtype == E4M3.tensors and kind != "output":
        return argument.float()
    return argument


def _finish(epilogue: Epilogue, value: torch.Tensor, tensors: Tensors, scalars: tuple[float, ...]) -> None:
    """Apply the chain to a temporary tensor, in place where torch can, and store the result in `y`."""
    for step in epilogue.steps:
        kinds = [argument.kind for argument in step.arguments]
        arguments = map(_readable, kinds, step.values(tensors, scalars, value.dtype))
        if step.name in _IN_PLACE:
            _IN_PLACE[step.name](value, *arguments)
        else:
            value = STEPS[step.name].torch(value, *arguments)
    _leave(value, tensors["y"])


def bind(
    problem: Problem, config: dict[str, str], tensors: Tensors, scalars: tuple[float, ...]
) -> Callable[[Tensors], None]:
    """Return a function that solves a problem and fills its outputs.

    Args:
        problem: The problem.
        config: One of `configs(problem)`.
        tensors: All operands by name; weights are converted to the config's memory format now.
        scalars: The operator's own scalars, then those of the epilogue.

    Returns:
        run(late): solves the problem; the tensors in `late` replace those of the same name.
    """
    if not isinstance(problem, (*PASSES, FirstLayers)):
        bytes_ = {problem.dtype, problem.output_dtype} & set(BYTE_FORMATS)

        def run(late: Tensors) -> None:
            operands = {**tensors, **late}
            given = {name: tensor.float() for name, tensor in operands.items()} if bytes_ else operands
            with cudnn_setting(problem, next(iter(operands.values())).device):
                for name, value in compute(problem, given, scalars).items():
                    _leave(value, operands[name])

        return run

    memory_format = torch.channels_last if config["memory_format"] == "channels_last" else torch.contiguous_format
    solve = (
        _first_layers(problem, memory_format, tensors)
        if isinstance(problem, FirstLayers)
        else convolution(problem, memory_format, tensors)
    )

    def run_convolution(late: Tensors) -> None:
        operands = {**tensors, **late}
        with cudnn_setting(problem, next(iter(operands.values())).device):
            y = solve(operands)
        _finish(problem.epilogue, y.permute(0, 2, 3, 1), operands, scalars)

    return run_convolution


def _factors(problem: Problem) -> torch.dtype:
    """Return the dtype of the products: float32 for bytes, whose sums are exact in it up to 2^24.

    It is also that of a result in bytes: rounded to float16 before the scale, it would be another byte.
    """
    return torch.float32 if {problem.dtype, problem.output_dtype} & set(BYTE_FORMATS) else DTYPES[problem.dtype]


def convolution(
    problem: Convolution, memory_format: torch.memory_format, tensors: Tensors
) -> Callable[[Tensors], torch.Tensor]:
    """Return a convolution or gradient without its epilogue: operands -> a temporary tensor (n, channels, h, w).

    Args:
        problem: The problem.
        memory_format: Of torch's operands.
        tensors: The operands by name; the weight is converted to the memory format now.
    """
    window = (problem.stride, problem.pad, problem.dilation)
    factors = _factors(problem)

    def nchw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.permute(0, 3, 1, 2).to(factors).contiguous(memory_format=memory_format)

    def backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wanted: int) -> torch.Tensor:
        mask = [wanted == i for i in range(3)]
        rest = (*window, False, (0, 0), problem.groups)  # not transposed, no output padding
        gradients: Sequence[torch.Tensor] = torch.ops.aten.convolution_backward(nchw(dy), x, weight, None, *rest, mask)
        return gradients[wanted]

    def stand_in(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Return a placeholder of the operand whose gradient is computed; torch reads its shape and memory format."""
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)

    if not isinstance(problem, Conv2d | Conv2dDgrad):
        k, r, s, c = problem.output_shape
        return lambda t: backward(t["dy"], nchw(t["x"]), stand_in((k, c, r, s), t["x"]), 1)
    weight = tensors["weight"].to(factors).contiguous(memory_format=memory_format)
    if isinstance(problem, Conv2d):
        return lambda t: F.conv2d(nchw(t["x"]), weight, None, *window, problem.groups)
    shape = (problem.n, problem.c, problem.h, problem.w)
    return lambda t: backward(t["dy"], stand_in(shape, t["dy"]), weight, 0)


def _first_layers(
    problem: FirstLayers, memory_format: torch.memory_format, tensors: Tensors
) -> Callable[[Tensors], torch.Tensor]:
    """Return a convolution and its pool without the epilogue, as `_convolution`."""
    weight = tensors["weight"].to(_factors(problem)).contiguous(memory_format=memory_format)

    def solve(t: Tensors) -> torch.Tensor:
        x = t["x"].to(_factors(problem)).contiguous(memory_format=memory_format)
        return problem.max_pool(F.conv2d(x, weight, None, problem.stride, problem.pad))

    return solve


_DEPENDENT = ("f32", "tf32")
"""Dtypes of problems whose float32 factors cuDNN may round to TF32."""


def is_dependent(problem: Problem, device: torch.device) -> bool:
    """Return whether cuDNN computes a problem by the setting."""
    return device.type == "cuda" and problem.dtype in _DEPENDENT


def cudnn_setting(problem: Problem, device: torch.device) -> AbstractContextManager[None]:
    """Let cuDNN round the factors of a problem to TF32 only if the problem says so.

    The setting is that of the process, so other problems leave it alone.
    """
    if not is_dependent(problem, device):
        return nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(True, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=problem.dtype == "tf32")


@contextmanager
def full_float32() -> Iterator[None]:
    """Let torch multiply float32 exactly as float32, also where its settings allow TF32."""
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, False
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        products.allow_tf32 = before
