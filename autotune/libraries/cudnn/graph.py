"""A convolution with its epilogue as a cuDNN graph, and the tensors that it runs on.

cuDNN identifies a graph's tensors by numbers (UIDs). They follow from the problem alone, so a plan that was restored
from its serialized form can be given its tensors without the graph that it was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autotune.core import LibraryError
from autotune.ir import DTYPES, Operand, Problem, Step, Tensors
from autotune.ir.operators import Conv2d, Conv2dDgrad, Convolution
from autotune.libraries.aten import PASSES
from autotune.libraries.cudnn.library import CudnnLibrary

_SCALAR, _CONSTANT = 101, 201  # first UID of the epilogue's scalars, and of constants
_CONSTANTS = (3.0, 1 / 6)  # of hardsigmoid and hardswish: relu6(x + 3) / 6

_UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda graph, x: graph.relu(input=x),
    "relu6": lambda graph, x: graph.relu(input=x, lower_clip=0.0, upper_clip=6.0),
    "sigmoid": lambda graph, x: graph.sigmoid(input=x),
    "tanh": lambda graph, x: graph.tanh(input=x),
    "silu": lambda graph, x: graph.swish(input=x),
    "gelu": lambda graph, x: graph.gelu(input=x),
    "gelu_tanh": lambda graph, x: graph.gelu_approx_tanh(input=x),
}

STEPS = (*_UNARY, "bias", "scale", "add", "store", "add_scalar", "mul_scalar", "clamp", "hardsigmoid", "hardswish")
"""Epilogue steps that can be expressed in a cuDNN graph. Whether cuDNN supports a combination, only cuDNN tells."""

_NAMES = {"f16": "HALF", "bf16": "BFLOAT16", "f32": "FLOAT", "tf32": "FLOAT", "s8": "INT8", "e4m3": "FP8_E4M3"}


def check(problem: Problem) -> Convolution:
    """Return a problem that can be expressed as a cuDNN graph.

    Raises:
        LibraryError: It cannot.
    """
    if not isinstance(problem, PASSES):
        raise LibraryError(f"cuDNN's plans are available for convolutions and their gradients, not for '{problem}'")
    if foreign := [name for name in problem.epilogue.names if name not in STEPS]:
        raise LibraryError(
            f"cuDNN's plans are available with the epilogue steps {', '.join(STEPS)}, not with {', '.join(foreign)}"
        )
    return problem


def vector_dtypes(problem: Convolution) -> tuple[str | None, ...]:
    """Return the dtypes in which an epilogue's vectors can be given; (None,) for a problem without vectors.

    cuDNN's precompiled kernels take the problem's dtype only, those that it compiles at run time also float32.
    """
    if not any(argument.kind == "vector" for argument in problem.epilogue.arguments):
        return (None,)
    return (problem.dtype, "f32") if problem.dtype in ("f16", "bf16") else ("f32",)


def describe(library: CudnnLibrary, problem: Convolution, vectors: str | None) -> Any:
    """Return a problem as a pygraph with the plans of all heuristics.

    Args:
        library: The package and its handle.
        problem: The convolution.
        vectors: Dtype of the epilogue's vectors.

    Raises:
        Exception: An error of the package, whose errors have no common base: cuDNN does not support the problem.
    """
    cudnn = library.cudnn
    graph = cudnn.pygraph(
        io_data_type=_of(cudnn, problem.dtype),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=library.handle,
    )
    _Chain(cudnn, graph, problem, vectors).build()
    graph.validate()
    graph.build_operation_graph()
    modes = cudnn.heur_mode
    graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
    return graph


def arguments(
    problem: Convolution, vectors: str | None, tensors: Tensors, scalars: tuple[float, ...]
) -> dict[int, torch.Tensor]:
    """Return the tensors of a graph by UID: weights channels last, vectors in their dtype, scalars on the GPU."""
    numbers = operand_numbers(problem)
    found = {}
    for operand in problem.operands():
        if operand.name in tensors:
            found[numbers[operand.name]] = _laid_out(operand, tensors[operand.name], vectors)
    values = {_SCALAR + i: value for i, value in enumerate(scalars)}
    if any(name.startswith("hard") for name in problem.epilogue.names):
        values |= {_CONSTANT + i: value for i, value in enumerate(_CONSTANTS)}
    if not values:
        return found
    device = next(iter(tensors.values())).device
    scalar = partial(torch.full, (1,), dtype=torch.float32, device=device)  # whatever torch's default dtype is
    return found | {number: scalar(fill_value=value) for number, value in values.items()}


def operand_numbers(problem: Problem) -> dict[str, int]:
    """Return the UIDs of a problem's operands: their positions, counted from one."""
    return {operand.name: place for place, operand in enumerate(problem.operands(), 1)}


def _laid_out(operand: Operand, tensor: torch.Tensor, vectors: str | None) -> torch.Tensor:
    if operand.role == "weight":
        return tensor.contiguous(memory_format=torch.channels_last)
    if operand.role == "vector":
        return tensor.to(DTYPES[vectors or "f32"])
    return tensor


class _Chain:
    """Adds the operators of one problem to a graph."""

    def __init__(self, cudnn: Any, graph: Any, problem: Convolution, vectors: str | None) -> None:
        self._cudnn, self._graph, self._problem, self._vectors = cudnn, graph, problem, vectors
        n, p, q, k = problem.output_shape
        self._shape = (n, k, p, q)  # of the output, in cuDNN's order
        self._numbers = operand_numbers(problem)
        self._ones: dict[int, Any] = {}

    def build(self) -> None:
        """Add all operators."""
        value = self._shaped(self._convolution())
        if self._problem.dtype == "s8":
            value.set_data_type(self._cudnn.data_type.INT32)
        names = self._problem.epilogue.names
        for place, step in enumerate(self._problem.epilogue.steps):
            value = self._shaped(self._step(step, value))
            if step.name == "store" and place == len(names) - 1:
                value = self._shaped(self._graph.identity(input=value))  # a tensor cannot be two outputs
        self._output(value, "y")

    def _convolution(self) -> Any:
        problem, graph = self._problem, self._graph
        window: dict[str, Any] = {
            "padding": list(problem.pad),
            "stride": list(problem.stride),
            "dilation": list(problem.dilation),
        }
        if problem.dtype == "s8":  # exact sums; the steps behind them are float32
            window["compute_data_type"] = self._cudnn.data_type.INT32
        x = ("x", (problem.n, problem.c, problem.h, problem.w))
        weight = ("weight", (problem.k, problem.c // problem.groups, problem.r, problem.s))
        dy = ("dy", (problem.n, problem.k, problem.p, problem.q))
        if isinstance(problem, Conv2d):
            return graph.conv_fprop(image=self._operand(*x), weight=self._operand(*weight), **window)
        if isinstance(problem, Conv2dDgrad):
            return graph.conv_dgrad(loss=self._operand(*dy), filter=self._operand(*weight), **window)
        return graph.conv_wgrad(image=self._operand(*x), loss=self._operand(*dy), **window)

    def _step(self, step: Step, value: Any) -> Any:
        graph = self._graph
        if step.name in _UNARY:
            return _UNARY[step.name](graph, value)
        made: dict[str, Callable[[], Any]] = {
            "bias": lambda: graph.bias(input=value, bias=self._vector(step)),
            "scale": lambda: graph.mul(a=value, b=self._vector(step)),
            "add": lambda: graph.add(a=value, b=self._operand(step.arguments[0].name, self._shape)),
            "store": lambda: self._output(value, step.arguments[0].name),
            "add_scalar": lambda: graph.add(a=value, b=self._scalar(step, 0)),
            "mul_scalar": lambda: graph.mul(a=value, b=self._scalar(step, 0)),
            "clamp": lambda: self._clamp(step, value),
            "hardsigmoid": lambda: self._hardsigmoid(value),
            "hardswish": lambda: graph.mul(a=value, b=self._shaped(self._hardsigmoid(value))),
        }
        return made[step.name]()

    def _clamp(self, step: Step, value: Any) -> Any:
        above = self._shaped(self._graph.max(input0=value, input1=self._scalar(step, 0)))
        return self._graph.min(input0=above, input1=self._scalar(step, 1))

    def _hardsigmoid(self, value: Any) -> Any:
        graph = self._graph
        raised = self._shaped(graph.add(a=value, b=self._one("three", _CONSTANT)))
        clipped = self._shaped(graph.relu(input=raised, lower_clip=0.0, upper_clip=6.0))
        return graph.mul(a=clipped, b=self._one("sixth", _CONSTANT + 1))

    def _shaped(self, value: Any) -> Any:
        """Say what an intermediate value is: where extents are 1, cuDNN could take it for channels first."""
        return value.set_dim(list(self._shape)).set_stride(channels_last(self._shape))

    def _output(self, value: Any, name: str) -> Any:
        value.set_output(True).set_data_type(_of(self._cudnn, self._problem.dtype)).set_uid(self._numbers[name])
        return value

    def _operand(self, name: str, shape: tuple[int, ...]) -> Any:
        return self._tensor(name, shape, self._problem.dtype, self._numbers[name])

    def _vector(self, step: Step) -> Any:
        name = step.arguments[0].name
        dtype = self._vectors or self._problem.dtype
        return self._tensor(name, (1, self._shape[1], 1, 1), dtype, self._numbers[name])

    def _scalar(self, step: Step, place: int) -> Any:
        argument = step.arguments[place]
        return self._one(f"{argument.name}.{place}", _SCALAR + argument.index)

    def _one(self, name: str, number: int) -> Any:
        """Return the tensor of a single float32 in the GPU's memory; the same UID gives the same tensor."""
        if number not in self._ones:
            self._ones[number] = self._tensor(name, (1, 1, 1, 1), "f32", number)
        return self._ones[number]

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str, number: int) -> Any:
        return self._graph.tensor(
            name=name, dim=list(shape), stride=channels_last(shape), data_type=_of(self._cudnn, dtype), uid=number
        )


def channels_last(shape: tuple[int, ...]) -> list[int]:
    """Strides of (n, c, h, w), or of weights (k, c, r, s), with the second extent innermost."""
    _, c, h, w = shape
    return [c * h * w, 1, c * w, c]


def _of(cudnn: Any, dtype: str) -> Any:
    return getattr(cudnn.data_type, _NAMES[dtype])
