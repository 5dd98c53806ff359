"""The tensors of a problem on a device, the expected result, and the checks that a kernel wrote it and nothing else.

Outputs are filled with NaN before a run and fenced by guard bytes. A kernel is run once and compared with the
reference. It is run a second time on outputs that hold other values, and must give the same bits. Checksums of the
inputs and of the reference show whether a kernel wrote there, before the next kernel is blamed for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from autotune.ir import BYTE_FORMATS, S8, TENSOR_DTYPES, Epilogue, Operand, Problem, Step
from autotune.measure import byte_tolerance
from autotune.measure.expected_results import SpecialValues, sliced_reference
from autotune.measure.timers import Runnable, stream_of, synchronize

HALF_SUMS = "f16 sums"
"""Key of the tolerances of kernels that accumulate in float16."""
TOLERANCE = {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, HALF_SUMS: 1e-2}
"""Largest relative error of a right result, in the Frobenius norm: a few times the rounding error of the output dtype.

tf32 rounds the factors. Sums in float16 are rounded at every step of the reduction. Independent roundings add up to an
error that grows with the square root of their number, so a problem of n calls may have sqrt(n) times this error."""
ELEMENT_TOLERANCE = {"f32": 1e-3, "f16": 8e-3, "bf16": 6e-2, "tf32": 1.5e-2, HALF_SUMS: 8e-2}
"""Largest error of one element, relative to the element's magnitude plus the root mean square of all elements."""

_GUARD = 4096
"""Bytes before and after each output that no kernel may write."""
_GUARD_BYTE = 0xA5
_BYTE_RMS = 64.0
"""Root mean square of quantized values that are well spread over the range of either 8-bit format."""
_FAR = 3e4
"""A value that float16 can hold and that no output has. In e4m3 it saturates to the largest one."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the integer dtype of that size."""


class Workload:
    """One problem's tensors on one device: random inputs, the expected result, and guarded outputs.

    corrupted_inputs: Whether a kernel has overwritten an input or the reference. If so, nothing may be measured with
    these tensors any more.

    Args:
        problem: The problem to solve.
        device: Where the tensors are made.
        seed: Seed of the random inputs.
    """

    def __init__(self, problem: Problem, device: torch.device, seed: int = 0) -> None:
        self.problem, self.device = problem, device
        scalars = torch.Generator().manual_seed(seed)
        own = torch.empty(problem.scalars).uniform_(0.25, 1.0, generator=scalars).tolist()
        self.scalars = (*own, *problem.epilogue.random_scalars(scalars))
        # On a GPU the tensors are drawn there: a CPU takes a tenth of a second for the activations of one layer.
        generator = torch.Generator(device).manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        self._guarded: dict[str, torch.Tensor] = {}
        for operand in problem.operands():
            if operand.role == "output":
                self._guarded[operand.name], self.tensors[operand.name] = _guarded(operand, device)
            else:
                self.tensors[operand.name] = random_tensor(operand, generator)
        self._form = BYTE_FORMATS.get(problem.output_dtype)
        if self._form:
            self._spread_bytes()
        self.expected = self._expected()
        self.special = SpecialValues(problem, self.tensors, self.scalars)
        self.corrupted_inputs = False
        self._sums = self._checksums()

    def _spread_bytes(self) -> None:
        """Scale epilogue arguments so that results spread over the range of a byte instead of saturating.

        They are those of the first step that scales, and of the first one after each anchor, in the order of the chain.
        Scales that the problem itself has, as conv2d_skip, come before them.
        """
        chain = self.problem.epilogue
        in_chain = {argument.name for argument in chain.arguments}
        vectors = [operand.name for operand in self.problem.operands() if operand.role == "vector"]
        if own := [name for name in vectors if name not in in_chain]:
            gain = self._gain(Epilogue(), 0)
            for name in own:
                self.tensors[name] *= gain
        for anchors, part in enumerate(chain.parts):
            step = next((step for step in part if step.name in ("scale", "mul_scalar")), None)
            if step:
                self._spread(Epilogue(chain.names[: chain.steps.index(step)]), anchors, step)

    def _spread(self, before: Epilogue, anchors: int, step: Step) -> None:
        """Scale a step's argument so that the values before it spread.

        Args:
            before: The steps before it.
            anchors: Number of anchors among these.
            step: The step.
        """
        gain, own = self._gain(before, anchors), self.problem.scalars
        (argument,) = step.arguments
        if argument.kind == "vector":
            self.tensors[argument.name] *= 2 * gain  # random_tensor halves vectors
        else:
            index = own + argument.index
            self.scalars = tuple(s * (gain if i == index else 1.0) for i, s in enumerate(self.scalars))

    def _gain(self, before: Epilogue, anchors: int) -> float:
        """Return the factor that makes the values after some steps spread over the range of a byte."""
        inputs = {name: tensor.float() for name, tensor in self._given.items()}
        own = self.problem.scalars
        with torch.no_grad():
            functions = self.problem.reference_anchors(inputs)[:anchors]
            values, _ = before.apply(
                self.problem.reference(inputs, self.scalars[:own]), inputs, self.scalars[own:], functions
            )
        return _BYTE_RMS / max(float(values.square().mean().sqrt()), 1e-30)

    @property
    def _given(self) -> dict[str, torch.Tensor]:
        """Return all operands but the outputs."""
        return {name: tensor for name, tensor in self.tensors.items() if name not in self._guarded}

    def _expected(self) -> dict[str, torch.Tensor]:
        # Results in float32 and bytes are checked against float64: torch's float32 algorithms may be less exact.
        exact = self.device.type == "cpu" or {self.problem.dtype, self.problem.output_dtype} & {"f32", *BYTE_FORMATS}
        precise = torch.float64 if exact else torch.float32
        with torch.backends.cudnn.flags(allow_tf32=False), torch.no_grad():
            tf32, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
            try:
                return sliced_reference(self.problem, self._given, self.scalars, precise)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = tf32

    def fill_nan(self, other: bool = False) -> None:
        """Fill every output with values that are not the result, and the guards around it with a known byte.

        Floating point outputs become NaN. int8 outputs have no NaN; they become bytes that are far from the result.

        Args:
            other: Use other values that differ from the first ones in each element: large values of both signs, or
                other bytes.
        """
        for name, whole in self._guarded.items():
            whole.fill_(_GUARD_BYTE)
            output = self.tensors[name]
            far = min(_FAR, torch.finfo(output.dtype).max) if output.is_floating_point() else 0.0
            if not output.is_floating_point():
                output.copy_(_to_bytes(self.expected[name]).bitwise_xor(0x5A if other else -128))
            elif other:
                output.fill_(far)
                output.view(-1)[::2] = -far
            else:
                output.fill_(math.nan)

    def verify(self, step: Runnable, accuracy: str = "", of_sums: float = 0.0) -> tuple[float, str | None]:
        """Run a step on outputs filled with NaN and compare all outputs with the reference.

        Args:
            step: What is verified.
            accuracy: A key of TOLERANCE to use instead of the output's dtype.
            of_sums: What `ir.sum_error` returned for the kernel.

        Returns:
            The largest relative error, and a description of the fault, or None if the result is right.
        """
        self._run(step)
        if fault := self.out_of_bounds_write():
            return math.inf, fault
        return self.check(accuracy, of_sums)

    def _run(self, step: Runnable, other: bool = False) -> None:
        self.fill_nan(other)
        step.run(stream_of(self.device))
        synchronize(self.device)

    def check(self, accuracy: str = "", of_sums: float = 0.0) -> tuple[float, str | None]:
        """Compare all outputs with the reference; arguments and result as for `verify`."""
        worst = 0.0
        for name, expected in self.expected.items():
            error, fault = compare_output(self.problem, name, self.tensors[name], expected, accuracy, of_sums)
            worst = max(worst, error)
            if fault:
                return worst, fault
        return worst, None

    def out_of_bounds_write(self) -> str | None:
        """Return which guard bytes, inputs or reference were overwritten; None if none were."""
        guards = [torch.stack((whole[:_GUARD], whole[-_GUARD:])) for whole in self._guarded.values()]
        guarded = torch.stack([(guard == _GUARD_BYTE).all() for guard in guards])
        intact = torch.cat([guarded, self._checksums() == self._sums]).tolist()  # the only wait for the device
        changed = [name for name, same in zip(self._read_only(), intact[len(guards) :], strict=True) if not same]
        self.corrupted_inputs |= bool(changed)  # also if a write beyond an output went on into another tensor
        for name, same in zip(self._guarded, intact, strict=False):
            if not same:
                return f"bytes around {name} were overwritten"
        return f"{', '.join(changed)} was overwritten" if changed else None

    def copy_outputs(self) -> dict[str, torch.Tensor]:
        """Return a copy of all outputs, for `bit_difference`."""
        return {name: self.tensors[name].clone() for name in self._guarded}

    def bit_difference(self, copies: Mapping[str, torch.Tensor]) -> str | None:
        """Compare the outputs with a copy of them, bit by bit.

        Returns:
            How many elements of the first output that differs do so; None if all bits are the same.
        """
        for name, before in copies.items():
            count = int((_raw(self.tensors[name]) != _raw(before)).sum())
            if count:
                return f"{name} differs in {count} of {before.numel()} elements"
        return None

    def rerun(self, step: Runnable, copies: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
        """Run a step again, on outputs that hold other values, and compare the bits with those of the first run.

        Args:
            step: A step that was verified.
            copies: Its outputs (`copy_outputs`).

        Returns:
            None if the bits are the same. Otherwise a status and a sentence: "unstable" if also a run on outputs filled
            with NaN gives other bits, else "wrong", because the result depends on what the output held before.
        """
        self._run(step, other=True)
        if not (difference := self.bit_difference(copies)):
            return None
        self._run(step)
        if self.bit_difference(copies):
            return "unstable", f"the same input gave other results in another run: {difference}"
        return "wrong", f"the result depends on what the output held before: {difference}"

    def special_fault(self, step: Runnable) -> str | None:
        """Run a verified step with NaN and with infinities among its inputs; return what is wrong with its results."""
        return self.special.fault(lambda: self._run(step))

    def _read_only(self) -> dict[str, torch.Tensor]:
        """Return what no kernel may write: the inputs and the reference."""
        return self._given | {f"the reference of {name}": tensor for name, tensor in self.expected.items()}

    def _checksums(self) -> torch.Tensor:
        return torch.stack([_raw(tensor).sum(dtype=torch.int64) for tensor in self._read_only().values()])


def compare_output(
    problem: Problem,
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    accuracy: str = "",
    of_sums: float = 0.0,
) -> tuple[float, str | None]:
    """Compare an output of a problem with its exact value.

    Args:
        problem: The problem.
        name: The operand of the output.
        actual: What a candidate wrote.
        expected: The exact value, in float32 or float64, not rounded to the dtype of the output.
        accuracy: A key of TOLERANCE to use instead of the output's dtype.
        of_sums: What `ir.sum_error` returned for the kernel.

    Returns:
        The relative error, and a description of the fault, or None if the output is right.
    """
    form, actual = BYTE_FORMATS.get(problem.output_dtype), actual.to(expected.dtype)
    difference = actual - (expected.clamp(*form.range) if form else expected)
    error = float(difference.norm() / expected.norm().clamp_min(1e-30))
    if not math.isfinite(error):
        if not bool(torch.isfinite(actual).all()):
            return math.inf, f"{name} holds values that are not finite, or that were never written"
        error = math.inf
    if form:
        fault = byte_tolerance.fault(form, actual, expected, of_sums)
    else:
        dtype = next(operand.dtype for operand in problem.operands() if operand.name == name)
        less_exact = max(accuracy or problem.output_dtype, dtype, key=lambda key: TOLERANCE.get(key, 0.0))
        fault = _fault(difference, expected, error, less_exact, math.sqrt(problem.roundings))
    return error, f"{name} has {fault}" if fault else None


def random_tensor(operand: Operand, generator: torch.Generator) -> torch.Tensor:
    """Return random values for an operand, on the generator's device.

    int8 values are uniform, all others normal. e4m3 values spread over the range of the format. Other weights are
    divided by the square root of their fan-in, so that sums have a standard deviation of about one (He et al., 2015, up
    to a constant). Vectors are halved. Positive values are at least a half, because networks divide by them. Integers
    that are no quantized values are 0, which is valid as an index.
    """
    dtype = TENSOR_DTYPES[operand.dtype]
    if operand.dtype == "s8":
        return torch.randint(-128, 128, operand.shape, generator=generator, dtype=torch.int8, device=generator.device)
    if not dtype.is_floating_point:
        return torch.zeros(operand.shape, dtype=dtype, device=generator.device)
    values = torch.randn(operand.shape, generator=generator, device=generator.device)
    if form := BYTE_FORMATS.get(operand.dtype):
        return form.stored(values * _BYTE_RMS)
    if operand.role == "weight":
        values /= math.sqrt(math.prod(operand.shape[1:]))
    elif operand.role == "vector":
        values *= 0.5
    if operand.positive:
        values = values.abs() + 0.5
    return values.to(dtype)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of each element as an integer: NaN equals itself, and 0 differs from -0."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _to_bytes(values: torch.Tensor) -> torch.Tensor:
    return S8.stored(values)


def _fault(difference: torch.Tensor, expected: torch.Tensor, error: float, accuracy: str, slack: float) -> str | None:
    """Return what is wrong with an output; None if it is right.

    Args:
        difference: The output minus the reference.
        expected: The reference.
        error: Norm of the difference over the norm of the reference.
        accuracy: A key of TOLERANCE.
        slack: The errors of floating-point results may be this many times the tolerances.
    """
    if not error <= slack * TOLERANCE[accuracy]:  # nothing is right beside a reference with NaN
        return f"a relative error of {error:.2e}"
    rms, most = expected.norm() / math.sqrt(expected.numel()), slack * ELEMENT_TOLERANCE[accuracy]
    if bool(_largest(difference) <= most * rms):  # so it is for a right kernel, and needs one pass over the tensor
        return None
    element = float((difference.abs() / (expected.abs() + rms)).max())
    return None if element <= most else f"an element with a relative error of {element:.2e}"


def _largest(values: torch.Tensor) -> torch.Tensor:
    largest: torch.Tensor = torch.linalg.vector_norm(values, math.inf)
    return largest


def _guarded(operand: Operand, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of an output with its guards, and the output as a view of them."""
    whole = torch.empty(operand.bytes + 2 * _GUARD, dtype=torch.uint8, device=device)
    return whole, whole[_GUARD:-_GUARD].view(TENSOR_DTYPES[operand.dtype]).view(operand.shape)
