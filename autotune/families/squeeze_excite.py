"""The parts of squeeze-and-excitation families that do not depend on the device: their activations."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Value
from autotune.families.rules import require
from autotune.ir import GATE_ACTIVATIONS, HIDDEN_ACTIVATIONS, SeGates, SqueezeExcite

ACT = Parameter("act", tuple(HIDDEN_ACTIVATIONS), "activation of the hidden values")
GATE = Parameter("gate", tuple(GATE_ACTIVATIONS), "activation of the gates")


def candidate_activations(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SqueezeExcite | SeGates | None
) -> tuple[Value, ...]:
    """Return a parameter's values; of an activation that of the problem, if there is one."""
    if problem and parameter in (ACT, GATE):
        return (getattr(problem, parameter.name),)
    return parameter.values


def require_activations(problem: SqueezeExcite | SeGates, config: Config, arch: Architecture) -> str | None:
    """Return why a kernel's activations are not those of a problem; None if they are."""
    return require(
        (config["act"], config["gate"]) == (problem.act, problem.gate),
        f"it computes {config['act']} and {config['gate']}; the problem needs {problem.act} and {problem.gate}",
    )
