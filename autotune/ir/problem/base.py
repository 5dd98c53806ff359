"""The bases of all problems, of those on images and of those with a window: text, tensors, C struct, least work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

import torch

from autotune.core import ProblemError
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.epilogue import MAX_SCALARS, AnchorFunction, Argument, Epilogue
from autotune.ir.epilogue_steps import ANCHORS
from autotune.ir.problem.fields import TENSOR_DTYPES, DtypeName, field_types, reader_of_fields

Tensors = Mapping[str, torch.Tensor]
"""Operand name -> tensor."""

MAX_OPERANDS = 15
"""Most tensors of one problem (AT_WORKSPACE of templates/abi.h: the workspace's pointer follows theirs)."""

_NO_STEPS = Epilogue()


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem.

    Attributes:
        name: Name of the tensor, unique within its problem.
        role: "input", "weight" (constant), "vector" (constant, float32, one value per channel) or "output".
        shape: Shape of the contiguous tensor.
        dtype: Name of its dtype, as in TENSOR_DTYPES.
        positive: Whether all values are positive, as those of a variance.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    positive: bool = False

    @property
    def bytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape) * TENSOR_DTYPES[self.dtype].itemsize


C = TypeVar("C", bound="Problem")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def problem_class(cls: type[C]) -> type[C]:
    """Make a class of problems a dataclass; a decorator.

    Its methods are those of Problem: dataclasses would compile a constructor and others for each class when it is
    imported, which takes a millisecond.
    """
    made: type[C] = dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=True)(cls)
    fields = dataclasses.fields(made)
    made._names = {field.name for field in fields}
    made._defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return made


@problem_class
class Problem:
    """The computation of one layer, for given sizes and dtypes, independent of any device.

    An operator is a subclass, which `register` makes a dataclass. Its fields are the sizes; their types say
    how they are written in a problem's text (see fields.py). A subclass defines `output_shape`, `flops`, `_inputs` and
    `reference`, and these class variables.

    Attributes:
        operator: Name of the operator, the first word of a problem's text.
        sizes: Names of the int32 fields of its C struct, in order, separated by spaces. Each is an attribute of the
            problem; of a pair such as `stride`, `stride_h` and `stride_w` are the two numbers.
        struct: Name of its C struct. A class that declares `sizes` and no `struct` has a struct `at_<operator>`.
        scalars: Number of floats that it takes at run time; kernels find them before those of the epilogue.
        anchors: The steps of ANCHORS that its epilogue must have, in order.
        batch_field: Name of the field that `with_batch` changes.
        size_fields: Names of the fields that change with the size of a network's images.
        max_operands: Largest number of tensors.
        has_epilogue: Whether its epilogue may have steps.
        broadcasts: Whether its epilogue may read tensors that are broadcast to the output (n, h, w, c).
        dtype: Dtype of the inputs and weights.
        epilogue: Steps that are applied to the result before it is stored.
    """

    operator: ClassVar[str]
    sizes: ClassVar[str]
    struct: ClassVar[str]
    scalars: ClassVar[int] = 0
    anchors: ClassVar[tuple[str, ...]] = ()
    batch_field: ClassVar[str] = "n"
    size_fields: ClassVar[tuple[str, ...]] = ()
    max_operands: ClassVar[int] = MAX_OPERANDS
    has_epilogue: ClassVar[bool] = True
    _names: ClassVar[AbstractSet[str]]  # of the fields
    _defaults: ClassVar[Mapping[str, Any]]
    broadcasts: ClassVar[bool] = False
    dtype: DtypeName
    epilogue: Epilogue = _NO_STEPS

    def __init_subclass__(cls) -> None:
        if "sizes" in vars(cls) and "struct" not in vars(cls):
            cls.struct = f"at_{cls.operator}"

    def __init__(self, **values: Any) -> None:
        given = {**self._defaults, **values}
        if given.keys() != self._names:
            missing, unknown = sorted(self._names - given.keys()), sorted(given.keys() - self._names)
            raise TypeError(f"{type(self).__name__}: missing are {missing}, and unknown are {unknown}")
        self.__dict__.update(given)
        self.__post_init__()

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field '{name}'")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field '{name}'")

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():
            kind.check(f"{self.operator}: {name}", getattr(self, name))
        if self.epilogue.anchors != self.anchors:
            rule = f"must have {' and then '.join(self.anchors)}, once" if self.anchors else "can have none"
            raise ProblemError(f"'{self}': of the steps {', '.join(ANCHORS)} the epilogue of {self.operator} {rule}")
        if self.epilogue.steps and not self.has_epilogue:
            raise ProblemError(f"'{self}': {self.operator} has no epilogue")
        if self.epilogue.broadcasts and not self.broadcasts:
            raise ProblemError(
                f"'{self}': the epilogue of {self.operator} cannot read tensors that are broadcast, as add_image, "
                "mul_image, add_pixel and mul_pixel do: use them in an elementwise, concat, concat_conv2d or "
                "conv2d_broadcast problem"
            )
        if self.scalars + self.epilogue.scalars > MAX_SCALARS:
            raise ProblemError(f"'{self}' takes more than {MAX_SCALARS} scalars, those of its epilogue included")
        if min(self.output_shape, default=1) < 1:
            raise ProblemError(f"'{self}' has no output: its window is larger than its padded input")
        if (tensors := len(self.operands())) > self.max_operands:
            raise ProblemError(f"'{self}' has {tensors} tensors; at most {self.max_operands} are possible")

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._values == other._values)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"

    @property
    def _values(self) -> object:
        return reader_of_fields(type(self))(self)  # type: ignore[arg-type]

    def __str__(self) -> str:
        types = field_types(type(self))
        names = [name for name in types if name not in ("dtype", "epilogue")]
        words = [f"{name}={types[name].write(getattr(self, name))}" for name in names]
        return " ".join([self.operator, *words, f"dtype={self.dtype}", f"epilogue={self.epilogue}"])

    @property
    def short_name(self) -> str:
        """Return a few words for tables: the operator and its sizes."""
        return str(self).partition(" dtype=")[0]

    @property
    def batch(self) -> int:
        """Return the batch size."""
        return int(getattr(self, self.batch_field))

    @property
    def output_dtype(self) -> str:
        """Return the dtype of `y` and of the epilogue's tensors."""
        return self.dtype

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output `y`, channels last."""
        raise NotImplementedError

    @property
    def roundings(self) -> int:
        """Return how often a value is rounded between the inputs and the result; one in each of our kernels."""
        return 1

    @property
    def flops(self) -> int:
        """Return the number of floating-point operations of the definition; a multiply-add counts as two."""
        raise NotImplementedError

    def _inputs(self) -> tuple[Operand, ...]:
        """Return the operands that precede `y`."""
        raise NotImplementedError

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute `y` before the epilogue, in plain torch and in the dtype of the given tensors.

        Args:
            tensors: All operands by name; activations are channels last unless the operator says otherwise.
            scalars: The operator's own scalars.
        """
        raise NotImplementedError

    def reference_anchors(self, tensors: Tensors) -> Sequence[AnchorFunction]:
        """Return the functions of the anchors `conv`, `gate` and `project`, in the order of `anchors`."""
        return ()

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs besides `y` and those of the epilogue, by name; `y` is finished, `scalars` are its own."""
        return {}

    def operands(self) -> tuple[Operand, ...]:
        """Return all tensors in the order of a kernel's pointers: inputs and weights, `y`, then the epilogue's."""
        y = Operand("y", "output", self.output_shape, self.output_dtype)
        return (*self._inputs(), y, *(self._operand(a) for a in self.epilogue.arguments if a.kind != "scalar"))

    def _operand(self, argument: Argument) -> Operand:
        """Return the tensor or vector of an epilogue's argument."""
        shape, dtype = self._shape_at(argument), self.output_dtype
        match argument.kind:
            case "vector":
                return Operand(argument.name, "vector", shape[-1:], "f32")
            case "image":
                return Operand(argument.name, "input", (*shape[:1], 1, 1, *shape[-1:]), dtype)
            case "pixel":
                return Operand(argument.name, "input", (*shape[:-1], 1), dtype)
        return Operand(argument.name, "output" if argument.kind == "output" else "input", shape, dtype)

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        """Return the shape of the value to which the step of an argument applies."""
        return self.output_shape

    def struct_values(self) -> tuple[int, ...]:
        """Return the values of the C struct's fields, in the order of `sizes`."""
        return tuple(self._struct_value(name) for name in self.sizes.split())

    def _struct_value(self, name: str) -> int:
        if hasattr(self, name):
            return int(getattr(self, name))
        pair, _, axis = name.rpartition("_")
        return int(getattr(self, pair)["hw".index(axis)])

    @property
    def bytes(self) -> int:
        """Return the smallest number of bytes to move: every operand once."""
        return sum(operand.bytes for operand in self.operands())


def with_batch(problem: Problem, n: int) -> Problem:
    """Return the same problem for another batch size."""
    return dataclasses.replace(problem, **{problem.batch_field: n})  # type: ignore[arg-type]


def limit_us(problem: Problem, flops_per_us: float, bytes_per_us: float) -> float:
    """Return the roofline limit in microseconds: no device of these two rates can solve the problem faster.

    Args:
        problem: The problem.
        flops_per_us: Operations per microsecond in half precision, or in float32 on a CPU. Tensor cores multiply bytes
            at twice that rate.
        bytes_per_us: Bytes per microsecond.
    """
    rate = 2 * flops_per_us if problem.dtype in BYTE_FORMATS else flops_per_us
    return max(problem.flops / rate, problem.bytes / bytes_per_us)


@problem_class
class Images(Problem):
    """A problem on n images of h x w pixels with c channels.

    By default it reads the images x (n, h, w, c), its output has their shape, and only memory bounds it. Others
    define `_inputs`, `output_shape` and `flops`.
    """

    size_fields: ClassVar[tuple[str, ...]] = ("h", "w")
    n: int
    h: int
    w: int
    c: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """Return 0: only memory bounds it."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x,)

    @property
    def _x(self) -> Operand:
        """Return the input (n, h, w, c)."""
        return Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype)

    @property
    def _x_nchw(self) -> Operand:
        """Return the input (n, c, h, w), in torch's order."""
        return Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype)


def as_nchw(x: torch.Tensor) -> torch.Tensor:
    """Return a view of (n, h, w, c) as (n, c, h, w).

    One channel gets the stride that torch gives it in a new tensor: the attention of CUDA refuses a stride of 1 there.
    """
    n, h, w, c = x.shape
    return x.reshape(n, c, h, w) if c == 1 else x.permute(0, 3, 1, 2)


def as_nhwc(x: torch.Tensor) -> torch.Tensor:
    """Return a view of (n, c, h, w) as (n, h, w, c)."""
    return x.permute(0, 2, 3, 1)


def output_extent(size: int, kernel: int, stride: int, pad: int, dilation: int = 1, ceil: int = 0) -> int:
    """Return the output height or width of a sliding window, by the formulas of torch.nn.Conv2d and MaxPool2d.

    Args:
        size: Height or width of the input.
        kernel: Height or width of the window.
        stride: Distance between two positions of the window.
        pad: Padding on each side.
        dilation: Distance between two taps of the window.
        ceil: 1 for torch's ceil_mode: a last window that ends beyond the padded input also counts, if it begins
            within the input or the padding before it.
    """
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    extent = (room + (stride - 1) * ceil) // stride + 1
    return extent - (ceil and (extent - 1) * stride >= size + pad)


class Windowed:
    """A problem with a window of r x s pixels, whose positions are the pixels of its output."""

    h: int
    w: int
    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int]

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])
