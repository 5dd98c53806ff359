"""Steps: what epilogues are made of.

A step is described once for every place that needs it: the kernels call `at::<name>` of templates/epilogue.h, and the
torch operators and the reference call the function given here. So a new step is one row in `STEPS` and one function
in epilogue.h. A user's own step is two texts, one for the kernels and one for torch: see `define_step`.
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
class Definition:
    """A custom step as its user wrote it. params: (name, "scalar" or "channel") in order."""

    name: str
    cuda: str
    torch: str
    params: tuple[tuple[str, str], ...]

    @property
    def full_name(self) -> str:
        """The name in problems' texts and in the database: with a digest, so that no two definitions share it."""
        texts = json.dumps([self.cuda, self.torch, self.params])
        return f"{self.name}@{hashlib.sha256(texts.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class StepKind:
    """What one kind of step needs.

    operands: what it takes beside the value, in order: "vector" (float32, one value a channel); "tensor" (shape and
        dtype of the output, read); "output" (the same, written); "scalar" (a float known when a kernel is prepared).
    torch: (value, *operands) -> value, in the dtype of `value`, channels last; vectors come in that dtype.
    ranges: (least, most) of each scalar where a kernel is verified on random ones; if empty, 0.25 to 1.
    custom: the definition, if it is a user's.
    """

    operands: tuple[str, ...]
    torch: Callable[..., torch.Tensor]
    ranges: tuple[tuple[float, float], ...] = ()
    custom: Definition | None = None

    def __post_init__(self) -> None:
        if not self.ranges:
            object.__setattr__(self, "ranges", ((0.25, 1.0),) * self.operands.count("scalar"))


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
}
"""Every step by name: those of templates/epilogue.h, and custom steps by their full names."""

PLACES = ("conv", "gate", "project", "keep", "add_kept")
"""Steps that only mark a place in a chain: what happens there is the problem's, such as Conv2dSe or SeBlock."""

_BUILT_IN = tuple(STEPS)
_newest: dict[str, str] = {}  # of each custom step's definitions: name -> full name


def define_step(name: str, *, cuda: str, torch: str, params: Mapping[str, str] | None = None) -> str:
    """Define a step by two expressions of `x`, the value; from then on chains may name it, as "bias,swish_b".

    cuda: CUDA C++ in float that is also valid C++ for CPUs, such as "x / (1.f + expf(-beta * x))".
    torch: the same in Python, on a whole tensor (n, h, w, channels), such as "x * torch.sigmoid(beta * x)".
    params: name -> "scalar" (a float) or "channel" (float32, one value a channel), as both expressions name them; their
        values are given at run time, the scalars and vectors in this order among the chain's others.
    Returns the full name, which holds a digest of the definition. Of several definitions under one name the newest is
    meant by the short name. Raises ProblemError for a name that is taken or for a torch expression that fails.
    """
    definition = Definition(name, cuda.strip(), torch.strip(), tuple((params or {}).items()))
    _check_names(definition)
    register(definition)
    _newest[name] = definition.full_name
    return definition.full_name


def register(definition: Definition) -> None:
    """Make a definition known by its full name alone."""
    if definition.full_name not in STEPS:
        operands = tuple("vector" if kind == "channel" else kind for _, kind in definition.params)
        function = _function(definition)
        _probe(definition, function)
        STEPS[definition.full_name] = StepKind(operands, function, custom=definition)


def full_name(name: str) -> str:
    """The name under which STEPS holds a step; raises ProblemError if there is no such step."""
    name = _newest.get(name, name)
    if name in STEPS:
        return name
    short, digest, _ = name.partition("@")
    if digest:
        here = f" as it was then: here it is {_newest[short]}" if short in _newest else ""
        raise ProblemError(
            f"the custom step '{name}' is not defined: call autotune.ir.epilogue_steps.define_step for it first{here}"
        )
    raise ProblemError(f"unknown epilogue step '{name}': choose from {', '.join([*_BUILT_IN, *_newest])}")


def _check_names(definition: Definition) -> None:
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


def _function(definition: Definition) -> Callable[..., torch.Tensor]:
    """The torch text as a function of the value and the parameters."""
    try:
        code = compile(definition.torch, f"<step {definition.name}>", "eval")
    except (SyntaxError, ValueError) as error:
        raise _wrong(definition, f"is no Python expression: {error}") from error
    names = [param for param, _ in definition.params]
    return lambda x, *values: eval(code, {"torch": torch, "x": x, **dict(zip(names, values, strict=True))})


def _probe(definition: Definition, function: Callable[..., torch.Tensor]) -> None:
    """Evaluate a torch text once; raise ProblemError unless it makes a tensor like x of x, and leaves x alone."""
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


def _wrong(definition: Definition, what: str) -> ProblemError:
    return ProblemError(f"step '{definition.name}': its torch text '{definition.torch}' {what}")
