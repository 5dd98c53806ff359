"""The steps of epilogues.

Kernels call `at::<name>` of templates/epilogue.h for a step, or contain the step's expression; torch's candidates and
the reference call the function in `STEPS`. A new step is one row in `STEPS` with its expression: a new function in
epilogue.h would change the source digests of all kernels. A user's own step is two expressions, one for kernels and one
for torch: see `define_step`.

Both expressions are code and run with the rights of the process: the torch expression is passed to `eval`, also where a
pickled epilogue is loaded. Only load step definitions that you trust, as with any Python file.
"""

from __future__ import annotations

import hashlib
import json
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from autotune.core import ProblemError


@dataclass(frozen=True)
class StepDefinition:
    """A custom step.

    Attributes:
        name: Short name, as chains write it.
        cuda: The expression for kernels.
        torch: The expression for torch.
        params: Name and kind ("scalar" or "channel") of each parameter, in order.
    """

    name: str
    cuda: str
    torch: str
    params: tuple[tuple[str, str], ...]

    @property
    def full_name(self) -> str:
        """Return the name with a digest of the definition, as problems' texts and the database hold it."""
        texts = json.dumps([self.cuda, self.torch, self.params])
        return f"{self.name}@{hashlib.sha256(texts.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Inline:
    """A step whose expression is written into the kernel.

    Attributes:
        cuda: The expression for kernels, of `x` and the parameters.
        params: Name of each parameter, in the order of the step's operands.
    """

    cuda: str
    params: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepKind:
    """The arguments and the arithmetic of one kind of step.

    Attributes:
        operands: Arguments beside the value, in order: "vector" (float32, one value per channel), "tensor" (read, with
            shape and dtype of the output), "output" (written, likewise), "scalar" (a float, known when a kernel is
            prepared), or one of BROADCAST.
        torch: (value, *operands) -> value, channels last and in the dtype of the value; vectors have that dtype too.
        ranges: (least, most) of each scalar for verifying kernels; 0.25 to 1 if empty.
        inline: The expression of a step that is no function of templates/epilogue.h.
        custom: The definition of a user's step.
    """

    operands: tuple[str, ...]
    torch: Callable[..., torch.Tensor]
    ranges: tuple[tuple[float, float], ...] = ()
    inline: Inline | None = None
    custom: StepDefinition | None = None

    def __post_init__(self) -> None:
        if not self.ranges:
            object.__setattr__(self, "ranges", ((0.25, 1.0),) * self.operands.count("scalar"))


BROADCAST = ("image", "pixel")
"""Kinds of operands that are broadcast to the output (n, h, w, c), in its dtype: "image" has shape (n, 1, 1, c), one
value per channel of an image; "pixel" has shape (n, h, w, 1)."""
READ = ("tensor", *BROADCAST)
"""Kinds of operands that are activations which the step reads."""


def _elu(v: torch.Tensor, alpha: float, rate: float) -> torch.Tensor:
    return torch.where(v > 0, v, alpha * torch.expm1(v * rate))


def _softplus(v: torch.Tensor, beta: float, threshold: float) -> torch.Tensor:
    return F.softplus(v, beta, threshold)


# exp(u) - 1 = 2 t / (1 - t) with t = tanh(u / 2): no cancellation near 0.
_ELU = "x > 0.f ? x : alpha * (2.f * tanhf(0.5f * rate * x) / (1.f - tanhf(0.5f * rate * x)))"
# x tanh(log(1 + e)) with e = exp(x), as x q / (q + 2) with q = e (e + 2); from 20 on it is x in float.
_MISH = "x > 20.f ? x : x * (expf(x) * (expf(x) + 2.f)) / (expf(x) * (expf(x) + 2.f) + 2.f)"
_SOFTPLUS = "x * beta > threshold ? x : log1pf(expf(x * beta)) / beta"

STEPS: dict[str, StepKind] = {
    "bias": StepKind(("vector",), torch.add),
    "scale": StepKind(("vector",), torch.mul),
    "add": StepKind(("tensor",), torch.add),
    "store": StepKind(("output",), lambda v, _: v),
    "conv": StepKind((), lambda v: v),
    "gate": StepKind((), lambda v: v),
    "project": StepKind((), lambda v: v),
    "keep": StepKind((), lambda v: v),
    "add_kept": StepKind((), lambda v: v),
    "add_scalar": StepKind(("scalar",), torch.add),
    "mul_scalar": StepKind(("scalar",), torch.mul),
    "clamp": StepKind(("scalar", "scalar"), torch.clamp, ((-1.0, -0.25), (0.25, 1.0))),
    "relu": StepKind((), torch.relu),
    "relu6": StepKind((), F.relu6),
    "leaky_relu": StepKind(("scalar",), F.leaky_relu),
    "sigmoid": StepKind((), torch.sigmoid),
    "hardsigmoid": StepKind((), F.hardsigmoid),
    "silu": StepKind((), F.silu),
    "hardswish": StepKind((), F.hardswish),
    "tanh": StepKind((), torch.tanh),
    "gelu": StepKind((), F.gelu),
    "gelu_tanh": StepKind((), lambda v: F.gelu(v, approximate="tanh")),
    "sub": StepKind(("tensor",), torch.sub, inline=Inline("x - t", ("t",))),
    "mul": StepKind(("tensor",), torch.mul, inline=Inline("x * t", ("t",))),
    "relu_mask": StepKind(
        ("tensor",), lambda v, t: v.masked_fill(t <= 0, 0.0), inline=Inline("t <= 0.f ? 0.f : x", ("t",))
    ),
    "add_scaled": StepKind(
        ("tensor", "vector"), lambda v, t, scale: v + t * scale, inline=Inline("x + t * scale", ("t", "scale"))
    ),
    "add_image": StepKind(("image",), torch.add, inline=Inline("x + t", ("t",))),
    "mul_image": StepKind(("image",), torch.mul, inline=Inline("x * t", ("t",))),
    "add_pixel": StepKind(("pixel",), torch.add, inline=Inline("x + t", ("t",))),
    "mul_pixel": StepKind(("pixel",), torch.mul, inline=Inline("x * t", ("t",))),
    "prelu": StepKind(
        ("vector",),
        lambda v, slope: torch.where(v > 0, v, v * slope),
        inline=Inline("x > 0.f ? x : x * slope", ("slope",)),
    ),
    "elu": StepKind(("scalar", "scalar"), _elu, inline=Inline(_ELU, ("alpha", "rate"))),
    "softplus": StepKind(
        ("scalar", "scalar"), _softplus, ((0.5, 2.0), (10.0, 20.0)), Inline(_SOFTPLUS, ("beta", "threshold"))
    ),
    "mish": StepKind((), F.mish, inline=Inline(_MISH)),
    "exp": StepKind((), torch.exp, inline=Inline("expf(x)")),
    "abs": StepKind((), torch.abs, inline=Inline("fabsf(x)")),
}
"""Step name -> step: the built-in ones, and custom steps by their full names."""

ANCHORS = ("conv", "gate", "project", "keep", "add_kept")
"""Steps that mark where in the chain the operator computes something, such as the gate of Conv2dSe."""

_BUILT_IN = tuple(STEPS)
_newest: dict[str, str] = {}  # short name of a custom step -> full name of its newest definition


def define_step(name: str, *, cuda: str, torch: str, params: Mapping[str, str] | None = None) -> str:
    """Define a step by two expressions of `x`, the value; from then on chains may contain it, as "bias,swish_b".

    If several definitions have one name, the short name means the newest.

    Args:
        name: Short name of the step, an identifier.
        cuda: CUDA C++ in float that is also valid C++ for CPUs, such as "x / (1.f + expf(-beta * x))".
        torch: The same in Python, on a whole tensor (n, h, w, channels), such as "x * torch.sigmoid(beta * x)". It is
            evaluated by `eval`, with `torch`, `x` and the parameters as names.
        params: Name -> "scalar" (a float) or "channel" (float32, one value per channel), as both expressions use them.
            Their values are given at run time, in this order among the chain's other scalars and vectors.

    Returns:
        The full name, which contains a digest of the definition.

    Raises:
        ProblemError: The name is taken, or the torch expression fails on a random tensor.
    """
    definition = StepDefinition(name, cuda.strip(), torch.strip(), tuple((params or {}).items()))
    _check_names(definition)
    register_step(definition)
    _newest[name] = definition.full_name
    return definition.full_name


def register_step(definition: StepDefinition) -> None:
    """Make a definition known by its full name."""
    if definition.full_name not in STEPS:
        operands = tuple("vector" if kind == "channel" else kind for _, kind in definition.params)
        function = _function(definition)
        _probe(definition, function)
        inline = Inline(definition.cuda, tuple(name for name, _ in definition.params))
        STEPS[definition.full_name] = StepKind(operands, function, inline=inline, custom=definition)


def full_name(name: str) -> str:
    """Return the name of a step in STEPS.

    Raises:
        ProblemError: There is no such step.
    """
    name = _newest.get(name, name)
    if name in STEPS:
        return name
    short, digest, _ = name.partition("@")
    if digest:
        other = f" with the same texts; here '{short}' means {_newest[short]}" if short in _newest else ""
        raise ProblemError(
            f"the custom step '{name}' is not defined: call autotune.ir.epilogue_steps.define_step for it first{other}"
        )
    raise ProblemError(f"unknown epilogue step '{name}': choose from {', '.join([*_BUILT_IN, *_newest])}")


def _check_names(definition: StepDefinition) -> None:
    name = definition.name
    if name in _BUILT_IN or name == "none" or not _is_identifier(name):
        raise ProblemError(f"a custom step cannot be called '{name}': it must be an identifier, and no built-in step's")
    for param, kind in definition.params:
        if not _is_identifier(param) or param in ("x", "torch"):
            raise ProblemError(f"step '{name}': a parameter must be an identifier, not x or torch: '{param}'")
        if kind not in ("scalar", "channel"):
            raise ProblemError(f"step '{name}': parameter {param} must be 'scalar' or 'channel', not '{kind}'")
    if not definition.cuda:
        raise ProblemError(f"step '{name}': its cuda text is empty")


def _is_identifier(name: str) -> bool:
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def _function(definition: StepDefinition) -> Callable[..., torch.Tensor]:
    """Return the torch expression as a function of the value and the parameters."""
    try:
        code = compile(definition.torch, f"<step {definition.name}>", "eval")
    except (SyntaxError, ValueError) as error:
        raise _wrong(definition, f"is no Python expression: {error}") from error
    names = [param for param, _ in definition.params]
    # The expression is code that the user gave to define_step, as trusted as the program that calls it.
    return lambda x, *values: eval(code, {"torch": torch, "x": x, **dict(zip(names, values, strict=True))})


def _probe(definition: StepDefinition, function: Callable[..., torch.Tensor]) -> None:
    """Evaluate a torch expression once; raise ProblemError unless it returns a tensor like x and leaves x unchanged."""
    x = torch.rand(2, 3, 4, 5)
    before = x.clone()
    try:
        y = function(x, *(torch.rand(5) if kind == "channel" else 0.5 for _, kind in definition.params))
    except Exception as error:
        raise _wrong(definition, f"does not evaluate: {type(error).__name__}: {error}") from error
    if not isinstance(y, torch.Tensor):
        raise _wrong(definition, f"yields {type(y).__name__}, not a tensor")
    if y.shape != x.shape or not y.is_floating_point():
        raise _wrong(definition, f"makes {y.dtype} of shape {tuple(y.shape)} of {x.dtype} of shape {tuple(x.shape)}")
    if not torch.equal(x, before):
        raise _wrong(definition, "changes x in place")


def _wrong(definition: StepDefinition, fault: str) -> ProblemError:
    return ProblemError(f"step '{definition.name}': its torch text '{definition.torch}' {fault}")
