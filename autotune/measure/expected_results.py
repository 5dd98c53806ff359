"""Expected results: the reference of a problem, slice by slice, with NaN and infinities in the same places.

The reference is computed slice by slice over the batch, so that a large batch needs little memory. In
float64 the result of a layer in bytes takes eight times its memory, and so does what each step of the epilogue returns.
The result of ResNet-50's first block at batch 2048 takes 1.6 GB in bytes.

Random numbers do not show a kernel that loses NaN, such as one whose ReLU is fmaxf(x, 0). With it a network that has
diverged looks healthy. So a candidate that is right for random numbers runs twice more: with a few NaN among its
activations, and with a few infinities. docs/internals/measurement.md gives the rule and its reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from autotune.core import ProblemError, ceil_div
from autotune.ir import BYTE_FORMATS, TENSOR_DTYPES, Operand, Problem, Tensors, compute, is_built_in, with_batch
from autotune.ir.operators import TorchCall

MOST_BYTES = 2**30
"""Most bytes of the results of a slice, in the dtype in which they are computed."""


def sliced_reference(
    problem: Problem,
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[float, ...],
    dtype: torch.dtype,
    most_bytes: int = MOST_BYTES,
) -> dict[str, torch.Tensor]:
    """Solve a problem in a dtype as `ir.compute` does, in slices of the batch if the results take more than some bytes.

    Args:
        problem: The problem.
        tensors: All operands but the outputs, by name, in any dtype.
        scalars: The operator's own scalars, then those of the epilogue.
        dtype: Dtype in which it is computed.
        most_bytes: Most bytes of the results of a slice.

    Returns:
        Every output by its operand name, in `dtype`, or in float32 if there are several slices.
    """
    numbers = sum(math.prod(operand.shape) for operand in problem.operands() if operand.role == "output")
    slices = ceil_div(numbers * dtype.itemsize, most_bytes)
    rows = rows_of_image(problem) if slices > 1 else None
    if rows is None:
        return compute(problem, {name: in_dtype(tensor, dtype) for name, tensor in tensors.items()}, scalars)
    shared = {name: in_dtype(tensor, dtype) for name, tensor in tensors.items() if name not in rows}
    images, whole = max(1, problem.batch // slices), dict[str, torch.Tensor]()
    for first in range(0, problem.batch, images):
        last = min(first + images, problem.batch)
        parts = {
            name: in_dtype(tensor[first * rows[name] : last * rows[name]], dtype)
            for name, tensor in tensors.items()
            if name in rows
        }
        for name, part in compute(with_batch(problem, last - first), {**shared, **parts}, scalars).items():
            if name not in whole:
                size = (problem.batch * rows[name], *part.shape[1:])
                whole[name] = torch.empty(size, dtype=torch.float32, device=part.device)
            whole[name][first * rows[name] : last * rows[name]] = part
    return whole


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of numbers in a dtype; other integers than bytes, which are indices, stay as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() or tensor.dtype == torch.int8 else tensor


def rows_of_image(problem: Problem) -> dict[str, int] | None:
    """Return the rows that one image has in each operand that has a part for each image, by the operand's name.

    None if the results of one image may depend on others: an output has no part for each image, as a weight gradient,
    or the operator is not known.
    """
    if not is_built_in(type(problem)) or isinstance(problem, TorchCall) or problem.batch < 2:
        return None
    try:
        one_image = with_batch(problem, 1)
    except ProblemError:  # such as the statistics of one number
        return None
    rows: dict[str, int] = {}
    for operand, of_one in zip(problem.operands(), one_image.operands(), strict=True):
        if operand.shape == (of_one.shape[0] * problem.batch, *of_one.shape[1:]):
            rows[operand.name] = of_one.shape[0]
        elif operand.role == "output" or operand.shape != of_one.shape:
            return None
    return rows


_NAN, _INFINITIES = (math.nan,), (math.inf, -math.inf)
_LARGE = ((1000.0,), (-300.0,))
"""Numbers far from all others, with different magnitudes. A result that is the same for both in the places of the
special values depends on no special value."""
_PLACES = 2
"""Special values in each activation."""
_IMAGES = 2
"""Images whose results are compared: the first one has the special values, and the second one has none."""
_TOLERANCE = 0.25
"""Largest error of a number, relative to its magnitude plus the root mean square of all. The numbers themselves were
compared before, and numbers of e4m3 are 12 % apart."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the integer dtype of that size."""


class SpecialValues:
    """Special values in the activations of a problem, and the results that the reference has for them.

    Args:
        problem: The problem.
        tensors: All operands by name. A check changes the activations, and leaves them as they were.
        scalars: The operator's own scalars, then those of the epilogue.
    """

    def __init__(self, problem: Problem, tensors: Tensors, scalars: tuple[float, ...]) -> None:
        self._tensors, self._scalars = tensors, scalars
        self._rows = rows_of_image(problem)
        self._problem = with_batch(problem, min(_IMAGES, problem.batch)) if self._rows else problem
        self._places = {} if _makes_integers(problem) else self._chosen_places()
        self._has_products = any(operand.role == "weight" for operand in problem.operands())
        self._known: dict[tuple[float, ...], dict[str, torch.Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Memory of the references."""
        return sum(tensor.nbytes for results in self._known.values() for tensor in results.values())

    def fault(self, run: Callable[[], None]) -> str | None:
        """Run a candidate on special values and compare its results with those of the reference.

        Args:
            run: Runs the candidate, which reads and writes the tensors, and waits for it.

        Returns:
            What is wrong; None if nothing is, or if no activation can hold special values.
        """
        for values in (_NAN, _INFINITIES) if self._places else ():
            try:
                expected = self._reference(values)
            except (RuntimeError, IndexError):  # one of torch's operators does not take such values
                return None
            with self._written(values):
                run()
            for operand in self._outputs():
                if fault := self._fault_of(operand, expected[operand.name], values):
                    return fault
        return None

    def _chosen_places(self) -> dict[str, torch.Tensor]:
        """Return the places of the special values: for each activation, indices of its elements in the first image.

        They are spread over the image and differ between activations, so that each is seen to be read.
        """
        images = self._problem.batch if is_built_in(type(self._problem)) else 1  # a user's problem may have no batch
        operands = [
            operand
            for operand in self._problem.operands()
            if operand.role == "input" and TENSOR_DTYPES[operand.dtype].is_floating_point
        ]
        places: dict[str, torch.Tensor] = {}
        for i, operand in enumerate(operands):
            elements = math.prod(operand.shape) // images
            parts = [2 * (_PLACES * i + j) + 1 for j in range(_PLACES)]
            chosen = [elements * part // (2 * _PLACES * len(operands)) for part in parts]
            places[operand.name] = torch.tensor(chosen, device=self._tensors[operand.name].device)
        return places

    @contextmanager
    def _written(self, values: tuple[float, ...]) -> Iterator[None]:
        """Write values into the places, and afterwards the bits that were there."""
        bits = {name: _bits(self._tensors[name])[places] for name, places in self._places.items()}
        for name, places in self._places.items():
            _put(self._tensors[name], places, values)
        try:
            yield
        finally:
            for name, places in self._places.items():
                _bits(self._tensors[name])[places] = bits[name]

    def _reference(self, values: tuple[float, ...]) -> dict[str, torch.Tensor]:
        """Return the results for values in the places, in float32; of the first images only, where images are apart."""
        if values not in self._known:
            given = {}
            for operand in self._problem.operands():
                if operand.role == "output":
                    continue
                given[operand.name] = self._part(operand).clone()
                if operand.name in self._places:
                    _put(given[operand.name], self._places[operand.name], values)
                given[operand.name] = in_dtype(given[operand.name], torch.float32)
            # cuDNN may take an algorithm that spreads NaN to neighbours.
            with torch.backends.cudnn.flags(enabled=False), torch.no_grad():
                results = compute(self._problem, given, self._scalars)
            self._known[values] = {one.name: _as_stored(results[one.name], one.dtype) for one in self._outputs()}
        return self._known[values]

    def _fault_of(self, operand: Operand, expected: torch.Tensor, values: tuple[float, ...]) -> str | None:
        """Compare one output with the reference; return how the first wrong element differs."""
        actual = self._part(operand).float()
        finite = torch.where(expected.isfinite(), expected, 0)
        near = (actual - finite).abs() <= _TOLERANCE * (finite.abs() + finite.square().mean().sqrt())
        right = torch.where(expected.isfinite(), near, actual == expected)
        is_nan = actual.isnan() if operand.dtype != "s8" else torch.ones_like(right)  # NaN is stored as some number
        if values == _NAN:
            right |= is_nan & ~expected.isfinite()
        else:
            right |= expected.isnan() | (is_nan & (expected.isinf() | self._has_products))
        if not bool(right.all()):
            right |= self._is_independent(operand) & (is_nan | expected.isnan())
        if bool(right.all()):
            return None
        at, given = tuple(torch.nonzero(~right)[0].tolist()), "NaN" if values == _NAN else "infinities"
        return f"{operand.name} is {actual[at]:g} instead of {expected[at]:g} at {at} for {given} in the inputs"

    def _is_independent(self, operand: Operand) -> torch.Tensor:
        """Return where an output of the image with the special values depends on none of them."""
        first, other = (self._reference(large)[operand.name] for large in _LARGE)
        same = first == other
        if self._rows:
            same[self._rows[operand.name] :] = False
        return same

    def _outputs(self) -> list[Operand]:
        """Return the outputs that hold numbers, not indices."""
        outputs = [operand for operand in self._problem.operands() if operand.role == "output"]
        return [one for one in outputs if one.dtype in BYTE_FORMATS or TENSOR_DTYPES[one.dtype].is_floating_point]

    def _part(self, operand: Operand) -> torch.Tensor:
        """Return the tensor of an operand as far as it belongs to the images that are compared."""
        tensor = self._tensors[operand.name]
        return tensor[: operand.shape[0]] if operand.shape else tensor


def _makes_integers(problem: Problem) -> bool:
    """Return whether a problem converts numbers to integers: NaN as an index would end the process on a GPU."""
    if not isinstance(problem, TorchCall):
        return False
    constants = [value for call in problem.calls for value in (*call.args, *(value for _, value in call.kwargs))]
    return any(isinstance(one, torch.dtype) and not one.is_floating_point for one in constants)


def _put(tensor: torch.Tensor, places: torch.Tensor, values: tuple[float, ...]) -> None:
    """Write values to some elements of a contiguous tensor, in turn."""
    made = torch.tensor(values, device=tensor.device).repeat(len(places) // len(values)).to(tensor.dtype)
    _bits(tensor)[places] = _bits(made)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of the elements of a contiguous tensor as a flat tensor of integers."""
    return tensor.view(-1).view(_INTEGERS[tensor.element_size()])


def _as_stored(result: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return a result as an output of a dtype can hold it, in float32: 8-bit formats saturate, float16 overflows."""
    form = BYTE_FORMATS.get(dtype)
    return result.clamp(*form.range) if form else result.to(TENSOR_DTYPES[dtype]).float()
