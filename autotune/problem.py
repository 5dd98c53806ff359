"""Problems: what one layer must compute, apart from any device.

A problem is a frozen record with a canonical text, and the text is its identity in the database:

    conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,1 groups=1 dtype=f32 epilogue=bias,relu

`parse` reads that text back. `operands()` lists the tensors in the order in which every kernel takes its
pointers. Activations are channels last (n, h, w, c) and contiguous; convolution weights are (k, c/groups, r, s),
as torch has them, and are repacked by whoever binds a kernel that wants another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from autotune.epilogue import Epilogue
from autotune.errors import ProblemError, choose

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "s8": torch.int8,
}
"""Project's name -> the tensors' dtype. tf32: float32 whose products are rounded to TF32. s8: products summed in
int32, the epilogue in float32, the result rounded to the nearest (ties to even) and saturated."""
_ALIASES = {
    **{"float32": "f32", "fp32": "f32", "float": "f32"},
    **{"float16": "f16", "fp16": "f16", "half": "f16"},
    **{"bfloat16": "bf16", "tensorfloat32": "tf32", "int8": "s8"},
}


def dtype_name(dtype: str | torch.dtype) -> str:
    """The project's name of a dtype ("f16" for torch.float16, "half", "fp16"); raises UnknownNameError."""
    text = str(dtype).removeprefix("torch.")
    return choose("dtype", _ALIASES.get(text, text), list(DTYPES))


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem. role: "input", "weight" (constant), "vector" (constant, float32) or "output"."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPES[self.dtype].itemsize


def output_extent(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Output height or width of a sliding window, as torch counts it."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


_NO_STEPS = Epilogue()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every problem has: a dtype, an epilogue, a text, operands, and the least work it takes."""

    operator: ClassVar[str]
    dtype: str
    epilogue: Epilogue = _NO_STEPS

    def __post_init__(self) -> None:
        choose("dtype", self.dtype, list(DTYPES))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            sizes = value if isinstance(value, tuple) else (value,)
            least = 0 if field.name == "pad" else 1
            if any(isinstance(size, int) and size < least for size in sizes):
                raise ProblemError(f"{self.operator}: {field.name}={value} must be at least {least}")
        if min(self.output_shape) < 1:
            raise ProblemError(f"'{self}' has no output: its window is larger than its padded input")

    def __str__(self) -> str:
        order = [f for f in dataclasses.fields(self) if f.name not in ("dtype", "epilogue")]
        words = [f"{f.name}={_to_text(getattr(self, f.name))}" for f in order]
        return " ".join([self.operator, *words, f"dtype={self.dtype}", f"epilogue={self.epilogue}"])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output `y`, channels last."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations of the definition, a multiply and an add counted as two."""
        raise NotImplementedError

    def _inputs(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    def operands(self) -> tuple[Operand, ...]:
        """All tensors in the order in which kernels take them: inputs and weights, `y`, then the epilogue's."""
        shape = self.output_shape
        of_kind = {
            "vector": ("vector", shape[-1:], "f32"),
            "tensor": ("input", shape, self.dtype),
            "output": ("output", shape, self.dtype),
        }
        steps = [step for step in self.epilogue.steps if step.operand in of_kind]
        extra = [Operand(step.operand_name, *of_kind[step.operand or ""]) for step in steps]
        return (*self._inputs(), Operand("y", "output", shape, self.dtype), *extra)

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: every operand once."""
        return sum(operand.bytes for operand in self.operands())


@dataclass(frozen=True, kw_only=True)
class Conv2d(Problem):
    """Forward convolution (cross-correlation): x (n, h, w, c), weight (k, c/groups, r, s), y (n, p, q, k)."""

    operator: ClassVar[str] = "conv2d"
    n: int
    h: int
    w: int
    c: int
    k: int
    r: int = 1
    s: int = 1
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.groups or self.k % self.groups:
            raise ProblemError(f"'{self}': groups must divide both c and k")

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], self.dilation[0])

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], self.dilation[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """2 n p q k r s c/groups."""
        return 2 * self.n * self.p * self.q * self.k * self.r * self.s * self.c // self.groups

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype),
            Operand("weight", "weight", (self.k, self.c // self.groups, self.r, self.s), self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class AvgPool2d(Problem):
    """Average pooling with the padding counted: x (n, h, w, c), y (n, p, q, c)."""

    operator: ClassVar[str] = "avg_pool2d"
    n: int
    h: int
    w: int
    c: int
    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pad[0] > self.r or 2 * self.pad[1] > self.s:
            raise ProblemError(f"'{self}': the padding must be at most half the window")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, c)."""
        p = output_extent(self.h, self.r, self.stride[0], self.pad[0], 1)
        q = output_extent(self.w, self.s, self.stride[1], self.pad[1], 1)
        return (self.n, p, q, self.c)

    @property
    def flops(self) -> int:
        """One addition a tap."""
        n, p, q, c = self.output_shape
        return n * p * q * c * self.r * self.s

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class SpaceToDepth(Problem):
    """Moves block x block patches to channels, and NCHW to NHWC.

    x (n, c, h, w) in torch's order; y (n, h/block, w/block, block*block*c), output channel
    (dy*block + dx)*c + channel.
    """

    operator: ClassVar[str] = "space_to_depth"
    n: int
    h: int
    w: int
    c: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, block*block*c)."""
        return (self.n, self.h // self.block, self.w // self.block, self.block * self.block * self.c)

    @property
    def flops(self) -> int:
        """None: data only moves."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class SeTail(Problem):
    """Squeeze-and-excitation and what follows it in a residual block.

    y = epilogue(x * sigmoid(w2 relu(w1 mean(x) + b1) + b2)), the mean over h and w, w1 (hidden, c), w2 (c, hidden).
    The epilogue is where the identity is added: "add,relu".
    """

    operator: ClassVar[str] = "se_tail"
    n: int
    h: int
    w: int
    c: int
    hidden: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """Mean, scale and the two products."""
        return self.n * (2 * self.h * self.w * self.c + 4 * self.c * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", self.output_shape, self.dtype),
            Operand("w1", "weight", (self.hidden, self.c), self.dtype),
            Operand("b1", "vector", (self.hidden,), "f32"),
            Operand("w2", "weight", (self.c, self.hidden), self.dtype),
            Operand("b2", "vector", (self.c,), "f32"),
        )


OPERATORS: dict[str, type[Problem]] = {cls.operator: cls for cls in (Conv2d, AvgPool2d, SpaceToDepth, SeTail)}


def _to_text(value: int | tuple[int, ...]) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse(text: str) -> Problem:
    """Read a problem from its text; fields with a default may be left out. Raises ProblemError or UnknownNameError."""
    operator, *words = text.split() or [""]
    cls = OPERATORS[choose("operator", operator, list(OPERATORS))]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, object] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in fields:
            raise ProblemError(f"'{word}' in '{text}' is not one of {', '.join(fields)} written as name=value")
        if name in values:
            raise ProblemError(f"'{text}' gives {name} twice")
        values[name] = _from_text(name, value, text)
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ProblemError(f"'{text}' lacks {', '.join(missing)}")
    return cls(**values)  # type: ignore[arg-type]


def _from_text(name: str, value: str, text: str) -> object:
    if name == "dtype":
        return dtype_name(value)
    if name == "epilogue":
        return Epilogue.parse(value)
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ProblemError(f"'{name}={value}' in '{text}' is not a whole number or a pair of them") from None
    pair = name in ("stride", "pad", "dilation")
    if len(numbers) > 1 + pair:
        raise ProblemError(f"'{name}={value}' in '{text}' has too many numbers")
    if pair:
        return numbers * 2 if len(numbers) == 1 else numbers
    return numbers[0]


def with_batch(problem: Problem, n: int) -> Problem:
    """The same problem for another batch size."""
    return dataclasses.replace(problem, n=n)  # type: ignore[call-arg]


def limit_us(problem: Problem, flops_per_us: float, bytes_per_us: float) -> float:
    """The time below which no device of these two rates can solve the problem, in microseconds."""
    return max(problem.flops / flops_per_us, problem.bytes / bytes_per_us)


Tensors = Mapping[str, torch.Tensor]
"""Operand name -> tensor."""
