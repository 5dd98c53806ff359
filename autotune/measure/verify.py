"""Operands of a problem on a device, what it should make of them, and whether a kernel did: right, and nothing else.

Outputs are poisoned before a run and fenced by guard bytes. A kernel is run once against the reference and once more on
outputs that held something else, and must give the same bits. Whatever it must not write is summed up, so that a kernel
that wrote there is found out before the next one is blamed for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from autotune.ir import DTYPES, Epilogue, Operand, Problem, compute
from autotune.measure.timers import Runnable, stream_of, synchronize

# Largest relative error (norm) of a right result: a few times what rounding the output to the dtype costs.
# tf32 rounds the factors; half-precision sums are rounded at every step of the reduction.
HALF_SUMS = "f16 sums"
TOLERANCE = {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, HALF_SUMS: 1e-2}
# Largest error of one element, relative to that element and the root mean square of all.
ELEMENT_TOLERANCE = {"f32": 1e-3, "f16": 8e-3, "bf16": 6e-2, "tf32": 1.5e-2, HALF_SUMS: 8e-2}
# s8 is exact but for the float32 epilogue: what it may lose before the result is rounded to a whole number, a few
# roundings of values up to the hundreds.
WHOLE_SLACK = 1e-3

_GUARD = 4096  # bytes before and after each output that must stay untouched
_GUARD_BYTE = 0xA5
_BYTE_RMS = 64.0  # of bytes that are well spread
_FAR = 3e4  # a value no output has that float16 can hold
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Operands:
    """One problem's tensors on one device: random operands, the reference's answer, and guarded outputs.

    spoiled: whether a kernel has overwritten an operand or the answer; nothing is to be measured with them any more.
    """

    def __init__(self, problem: Problem, device: torch.device, seed: int = 0) -> None:
        self.problem, self.device = problem, device
        generator = torch.Generator().manual_seed(seed)
        own = torch.empty(problem.scalars).uniform_(0.25, 1.0, generator=generator).tolist()
        self.scalars = (*own, *problem.epilogue.random_scalars(generator))
        self.tensors: dict[str, torch.Tensor] = {}
        self._guarded: dict[str, torch.Tensor] = {}
        for operand in problem.operands():
            if operand.role == "output":
                self._guarded[operand.name], self.tensors[operand.name] = _guarded(operand, device)
            else:
                self.tensors[operand.name] = random_tensor(operand, generator).to(device)
        if problem.output_dtype == "s8":
            self._spread_bytes()
        self.expected = self._expected()
        self.spoiled = False
        self._sums = self._checksums()

    def _spread_bytes(self) -> None:
        """Scale the first step that scales, so that results spread over a signed byte instead of saturating."""
        before = dataclasses.replace(self.problem, epilogue=Epilogue(self.problem.anchors))
        with torch.no_grad():
            values = compute(before, {name: tensor.float() for name, tensor in self.tensors.items()}, self.scalars)["y"]
        gain = _BYTE_RMS / max(float(values.square().mean().sqrt()), 1e-30)
        first = next((step for step in self.problem.epilogue.steps if step.name in ("scale", "mul_scalar")), None)
        if first and first.name == "scale":
            self.tensors[first.arguments[0].name] *= 2 * gain  # its vector is normal, and halved
        elif first:
            own = self.problem.scalars + first.arguments[0].index
            self.scalars = tuple(s * (gain if i == own else 1.0) for i, s in enumerate(self.scalars))

    def _expected(self) -> dict[str, torch.Tensor]:
        # In float32 torch may choose algorithms that are less exact than what is checked against them.
        exact = self.device.type == "cpu" or {self.problem.dtype, self.problem.output_dtype} & {"f32", "s8"}
        precise = torch.float64 if exact else torch.float32
        operands = {name: tensor.to(precise) for name, tensor in self.tensors.items()}
        with torch.backends.cudnn.flags(allow_tf32=False), torch.no_grad():
            tf32, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
            try:
                return compute(self.problem, operands, self.scalars)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = tf32

    def poison(self, other: bool = False) -> None:
        """Fill every output with what it must not hold, and its surroundings with a known byte.

        Floating point becomes NaN, or with `other` large values of both signs; bytes become what is far from expected.
        """
        for name, whole in self._guarded.items():
            whole.fill_(_GUARD_BYTE)
            output = self.tensors[name]
            if not output.is_floating_point():
                output.copy_(_to_bytes(self.expected[name]).bitwise_xor(0x5A if other else -128))
            elif other:
                output.fill_(_FAR)
                output.view(-1)[::2] = -_FAR
            else:
                output.fill_(math.nan)

    def verify(self, step: Runnable, accuracy: str = "") -> tuple[float, str | None]:
        """Run a step on poisoned outputs: the largest relative error, and what is wrong, if anything."""
        self._run(step)
        if complaint := self.trespass():
            return math.inf, complaint
        return self.check(accuracy)

    def _run(self, step: Runnable, other: bool = False) -> None:
        self.poison(other)
        step.run(stream_of(self.device))
        synchronize(self.device)

    def check(self, accuracy: str = "") -> tuple[float, str | None]:
        """Compare all outputs with the reference: the largest relative error, and what is wrong, if anything.

        accuracy: a key of TOLERANCE instead of the output's dtype.
        """
        worst = 0.0
        accuracy = accuracy or self.problem.output_dtype
        for name, expected in self.expected.items():
            if self.problem.output_dtype == "s8":
                expected = expected.clamp(-128, 127)  # noqa: PLW2901 (what a byte can hold of it)
            actual = self.tensors[name].to(expected.dtype)
            difference = actual - expected
            error = float(difference.norm() / expected.norm().clamp_min(1e-30))
            worst = max(worst, error) if math.isfinite(error) else math.inf
            if not bool(torch.isfinite(actual).all()):
                return math.inf, f"{name} holds values that are not finite, or that were never written"
            if complaint := _complaint(difference, expected, error, accuracy):
                return worst, f"{name} has {complaint}"
        return worst, None

    def trespass(self) -> str | None:
        """What was written that is no output, if anything: guard bytes, operands, the reference's answer."""
        for name, whole in self._guarded.items():
            if not bool((whole[:_GUARD] == _GUARD_BYTE).all() and (whole[-_GUARD:] == _GUARD_BYTE).all()):
                return f"bytes around {name} were overwritten"
        now = self._checksums()
        if torch.equal(now, self._sums):
            return None
        self.spoiled = True
        changed = [name for name, same in zip(self._watched(), (now == self._sums).tolist(), strict=True) if not same]
        return f"{', '.join(changed)} was overwritten"

    def bits(self) -> dict[str, torch.Tensor]:
        """A copy of all outputs."""
        return {name: self.tensors[name].clone() for name in self._guarded}

    def unlike(self, bits: Mapping[str, torch.Tensor]) -> str | None:
        """In what the outputs differ from a copy, bit by bit, if they do."""
        for name, before in bits.items():
            count = int((_raw(self.tensors[name]) != _raw(before)).sum())
            if count:
                return f"{name} differs in {count} of {before.numel()} elements"
        return None

    def repeat(self, step: Runnable, bits: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
        """Run a step that gave `bits` again, on outputs that hold other values: status and sentence if it differs."""
        self._run(step, other=True)
        if not (difference := self.unlike(bits)):
            return None
        self._run(step)
        if self.unlike(bits):
            return "unstable", f"the same input gave other results in another run: {difference}"
        return "wrong", f"the result depends on what the output held before: {difference}"

    def _watched(self) -> dict[str, torch.Tensor]:
        """What no kernel may write: the operands, and what the outputs are compared with."""
        given = {name: tensor for name, tensor in self.tensors.items() if name not in self._guarded}
        return given | {f"the reference of {name}": tensor for name, tensor in self.expected.items()}

    def _checksums(self) -> torch.Tensor:
        return torch.stack([_raw(tensor).sum(dtype=torch.int64) for tensor in self._watched().values()])


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of each element as a whole number: NaN equals itself, and 0 is not -0."""
    return tensor.view(_SAME_SIZE[tensor.element_size()])


def _to_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-128, 127).round().to(torch.int8)


def _complaint(difference: torch.Tensor, expected: torch.Tensor, error: float, accuracy: str) -> str | None:
    """What is wrong with an output, if anything. error: the norm of the difference over that of the expected."""
    if accuracy == "s8":
        worst = float(difference.abs().max())
        return f"an element that is off by {worst:.3f} before rounding" if worst > 0.5 + WHOLE_SLACK else None
    if error > TOLERANCE[accuracy]:
        return f"a relative error of {error:.2e}"
    scale = expected.abs() + expected.square().mean().sqrt()
    element = float((difference.abs() / scale).max())
    return f"an element with a relative error of {element:.2e}" if element > ELEMENT_TOLERANCE[accuracy] else None


def random_tensor(operand: Operand, generator: torch.Generator) -> torch.Tensor:
    """Normal values; weights are scaled by their fan-in, so that sums stay of order one. Bytes are uniform."""
    if operand.dtype == "s8":
        return torch.randint(-128, 128, operand.shape, generator=generator, dtype=torch.int8)
    values = torch.randn(operand.shape, generator=generator)
    if operand.role == "weight":
        values /= math.sqrt(math.prod(operand.shape[1:]))
    elif operand.role == "vector":
        values *= 0.5
    return values.to(DTYPES[operand.dtype])


def _guarded(operand: Operand, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.empty(operand.bytes + 2 * _GUARD, dtype=torch.uint8, device=device)
    return whole, whole[_GUARD:-_GUARD].view(DTYPES[operand.dtype]).view(operand.shape)
