"""Checks of a whole plan: its result against a reference in float32 or float64, its layers alone, and its time.

A tune verifies each kernel alone. A plan can be wrong all the same: after an upgrade of the driver or of a library, by
its memory plan, or by the order of its kernels. Failures are data here: they are in the returned record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from autotune.core import LayerError, in_one_line
from autotune.ir import (
    BYTE_FORMATS,
    TENSOR_DTYPES,
    ConstantExpr,
    ConstantSource,
    Layer,
    Network,
    Operand,
    Problem,
    State,
    is_output,
    output_name,
    sum_error,
)
from autotune.ir.operators import TorchCall
from autotune.ir.problem.base import as_nchw
from autotune.ir.reference_run import LayerRun, Operands, inputs_of
from autotune.libraries.aten import full_float32
from autotune.measure.candidate_bench import accuracy_of
from autotune.measure.network_bench import NetworkBench
from autotune.measure.protocol import LayerAssignment, Result
from autotune.measure.resources import Monitor
from autotune.measure.timers import THROTTLED, stream_of, synchronize
from autotune.measure.verify import TOLERANCE, compare_output, random_tensor
from autotune.runtime import BoundLayer, ExecutionContext, NetworkPlan, bind_layer
from tuning_db.evidence import FAILED, RIGHT, WRONG

NOT_CHECKED = "not checked"
"""State of a plan that could not be checked. The other states are those of tuning_db/evidence.py."""

ERROR_FACTOR = 2.0
"""A plan is wrong if its error exceeds ERROR_FACTOR x that of torch in the same dtype, plus a floor. Recorded networks
have 0.80 to 1.34 times torch's error (docs/results.md)."""

_BYTE_FLOOR = 2e-2
"""Floor of a network with 8-bit layers: a value near the middle of two numbers may be rounded to either one, and the
numbers of e4m3 are 6 to 12 % apart. Other floors are TOLERANCE, the error that one kernel may have, because torch may
round only a few times in a shallow network."""

MAX_DRIFT = {"cuda": 1.05, "cpu": 1.5}
"""Type of device -> a right plan that takes more than this x its recorded time has drifted.

Times of one plan in two runs on an idle GPU differ by less than 2 %. On virtual CPUs they differed by up to 30 %: their
hosts share cores and caches, and the guest cannot see it.
"""

_NAN_BYTE = 0xFF
"""A floating-point number of such bytes is NaN."""
_RELUS = frozenset(("relu", "relu6", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"))
"""Steps that halve the mean square of their input, as a ReLU does (He et al., 2015)."""
_SUMS = frozenset(("add", "add_scaled"))
"""Steps that add another tensor, such as a residual, whose mean square theirs is added to."""
_BIAS_SCALE = 0.2
"""Factor of the random biases: with large ones the deeper layers would depend little on what the first ones compute."""


@dataclass(frozen=True)
class Reference:
    """The results of a model, with which those of a plan are compared.

    Attributes:
        results: They are in float32 or float64, in the order of the network's results.
        eager_error: Relative error of the model in the dtype of the plan; None for one in an 8-bit precision, of which
            the references of the layers give it.
    """

    results: Sequence[torch.Tensor]
    eager_error: float | None


@dataclass(frozen=True)
class LayerFault:
    """A layer that is wrong alone.

    Attributes:
        bound: The layer and its candidate.
        reason: What is wrong with its outputs.
    """

    bound: BoundLayer
    reason: str

    def __str__(self) -> str:
        return f"{self.bound.layer.name}, {self.bound.choice.candidate}: {self.reason}"


@dataclass(frozen=True)
class PlanCheck:
    """The outcome of a check.

    Attributes:
        status: RIGHT, WRONG, FAILED or NOT_CHECKED.
        reason: A sentence; empty if the plan is right.
        error: Relative error of the results (2-norm), the largest one.
        eager_error: That of torch, or of the layers' references, in the dtype of the plan.
        faults: The layers that are wrong alone, those with the first results first.
    """

    status: str
    reason: str = ""
    error: float | None = None
    eager_error: float | None = None
    faults: tuple[LayerFault, ...] = ()


def seeded_state(network: Network, device: torch.device, seed: int) -> dict[ConstantSource, torch.Tensor]:
    """Return random values of all constants of a network, which keep the variance of activations near one.

    Weights are divided by the square root of their fan-in, and multiplied by that of 2 before a ReLU. Before the
    addition of a residual they are divided by the square root of the number of such layers, so that a deep network
    stays finite in float16 (Zhang et al., arXiv 1901.09321). Factors of a step `scale` are near 1. Constants that
    depend on no parameter keep their values. Each other one has a value of its own, also where it is computed from
    parameters that others use. So the layers of an alternative do not compute what those compute that it replaces: only
    a model can tell that.
    """
    generator, of_scalars = torch.Generator(device).manual_seed(seed), torch.Generator().manual_seed(seed)
    state: dict[ConstantSource, torch.Tensor] = {}
    num_sums = sum(bool(_SUMS.intersection(layer.problem.epilogue.names)) for layer in network.without_whole.layers)
    for layer in network.without_whole.all_layers:
        chain = layer.problem.epilogue
        factors = {step.arguments[0].name for step in chain.steps if step.name == "scale"}
        gain = math.sqrt(2.0) if _RELUS.intersection(chain.names) else 1.0
        if _SUMS.intersection(chain.names):
            gain /= math.sqrt(max(num_sums, 1))
        for operand in layer.problem.operands():
            source = layer.weights.get(operand.name)
            if source is None or source in state or _is_literal(source):
                continue
            value = random_tensor(operand, generator)
            if operand.role == "weight" and value.is_floating_point():
                value = value * gain
            elif operand.role == "vector" and not operand.positive:
                value = value * _BIAS_SCALE + (operand.name in factors)
            state[source] = value
        own = torch.empty(layer.problem.scalars).uniform_(0.25, 1.0, generator=of_scalars).tolist()
        drawn = zip(layer.scalars, (*own, *chain.random_scalars(of_scalars)), strict=True)
        known = {source: torch.tensor(value) for source, value in drawn if not _is_literal(source)}
        state = known | state
    return state


def _is_literal(source: ConstantSource) -> bool:
    """Return whether a constant depends on no parameter."""
    return isinstance(source, ConstantExpr) and all(map(_is_literal, source.sources))


def seeded_inputs(network: Network, device: torch.device, seed: int) -> list[torch.Tensor]:
    """Return random inputs of a network; zeros for integers, which are valid as indices."""
    generator = torch.Generator(device).manual_seed(seed)
    return [random_tensor(Operand("x", "input", one.shape, one.dtype), generator) for one in network.inputs]


def check_plan(
    plan: NetworkPlan, state: State, inputs: Sequence[torch.Tensor], given: Reference | None = None
) -> PlanCheck:
    """Run a plan twice from memory filled with NaN, as it runs in a module, and compare its results.

    Without a reference the layers' own references are run one after the other, exactly and rounded to the layers'
    dtypes, and each layer runs alone on the rounded values. With one this is done only to name the layer at fault.

    Args:
        plan: The plan.
        state: The constants that it was bound with.
        inputs: The inputs, contiguous.
        given: What the model computes.
    """
    try:
        with torch.no_grad():
            results, repeats = _run_twice(plan, inputs)
            with full_float32():
                return _compared(plan, state, inputs, given, results, repeats)
    except LayerError as error:
        return PlanCheck(FAILED, str(error))
    except Exception as error:  # a kernel may end a run by any error of torch or of the driver
        return PlanCheck(FAILED, in_one_line(error))


class _Walk(NamedTuple):
    """A run of the layers' references, one after the other.

    Attributes:
        exact: The results.
        rounded: The results if each layer rounds its own to its dtype.
        faults: The layers that are wrong alone on the rounded values.
    """

    exact: list[torch.Tensor]
    rounded: list[torch.Tensor]
    faults: tuple[LayerFault, ...]


def _compared(
    plan: NetworkPlan,
    state: State,
    inputs: Sequence[torch.Tensor],
    given: Reference | None,
    results: Sequence[torch.Tensor],
    repeats: bool,
) -> PlanCheck:
    """Do `check_plan` with the results of the plan; repeats: whether both runs gave the same bits."""
    eager = given.eager_error if given else None
    walk = _walk(plan, state, inputs) if eager is None else None
    expected = given.results if given else walk.exact if walk else []
    eager = relative_error(walk.rounded, expected) if walk else eager or 0.0
    if not (math.isfinite(eager) and all(bool(torch.isfinite(one).all()) for one in expected)):
        wanted = "a model with trained weights" if given else "--model, or another --seed"
        return PlanCheck(NOT_CHECKED, f"the values of the reference are not finite in this dtype: give {wanted}")
    error, allowed = relative_error(results, expected), ERROR_FACTOR * eager + _floor(plan.bound)
    if error <= allowed and repeats and not (walk and walk.faults):
        return PlanCheck(RIGHT, "", error, eager)
    walk = walk or _walk(plan, state, inputs)
    if walk.faults:
        more = f", and {len(walk.faults) - 1} more layers" if len(walk.faults) > 1 else ""
        reason = f"{walk.faults[0]}{more}"
    elif relative_error(walk.rounded, expected) > allowed:
        reason = "the layers of the plan compute something else than the model: a fusion or the capture is at fault"
    else:
        first = "the result is wrong" if repeats else "two runs give different results"
        reason = f"{first}, and each layer alone is right: order or memory plan"
    return PlanCheck(WRONG, reason, error, eager, walk.faults)


def _run_twice(plan: NetworkPlan, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """Return the results of a plan, and whether two runs gave the same bits; libraries may add in any order."""
    context, runs = ExecutionContext(plan, plan.graph), list[list[torch.Tensor]]()
    for _ in range(2):
        context.poison()
        results = [torch.empty_like(template) for template in context.templates]
        for result in results:
            result.fill_(math.nan if result.is_floating_point() else -1)
        context.run(inputs, results, stream_of(plan.device))
        synchronize(plan.device)
        runs.append(results)
    same = all(torch.equal(_bytes(one), _bytes(other)) for one, other in zip(*runs, strict=True))
    return runs[0], same or not plan.native


def _walk(plan: NetworkPlan, state: State, inputs: Sequence[torch.Tensor]) -> _Walk:
    """Run the references of the layers one after the other, exactly and rounded, and each layer alone."""
    layers, precise, faults = [item.layer for item in plan.bound], _precision(plan.bound), list[LayerFault]()
    exact, rounded = LayerRun(layers, state, *inputs), LayerRun(layers, state, *inputs)
    results, rounded_results = Operands(), Operands()
    for item in plan.bound:
        layer, problem, values = item.layer, item.layer.problem, Operands()
        exact.finish(layer, _in(precise, problem, exact.operands(layer)))
        given = rounded.operands(layer)
        rounded.finish(layer, _in(precise, problem, _factors(problem, given)), _storing(problem, values))
        if not isinstance(problem, TorchCall) and (fault := _fault_alone(item, state, plan.device, given, values)):
            faults.append(LayerFault(item, fault))
        for run, found in ((exact, results), (rounded, rounded_results)):
            # Kept here, because a run drops a result that a later layer reads.
            found |= {name: value for name, value in run.values.items() if is_output(name)}
    first, second = (_in_torch_order(plan.network, found) for found in (results, rounded_results))
    return _Walk(first, second, tuple(faults))


def _storing(problem: Problem, exact: Operands) -> Callable[[Layer, str, torch.Tensor], torch.Tensor]:
    """Return a function that puts an exact output of a problem into `exact`, and returns it in the operand's dtype."""
    dtypes = {operand.name: operand.dtype for operand in problem.operands()}

    def stored(_: Layer, name: str, value: torch.Tensor) -> torch.Tensor:
        exact[name] = value
        form = BYTE_FORMATS.get(dtypes[name])
        return form.stored(value) if form else value.to(TENSOR_DTYPES[dtypes[name]])

    return stored


def _fault_alone(
    item: BoundLayer, state: State, device: torch.device, given: Operands, expected: Operands
) -> str | None:
    """Run a layer alone on outputs filled with NaN; return what is wrong with them.

    Args:
        item: The layer.
        state: The constants that it was bound with.
        device: The device.
        given: Its inputs and weights.
        expected: Its outputs, exact.
    """
    layer, problem, candidate = item.layer, item.layer.problem, item.choice.candidate
    buffers = {layer.buffers[name]: given[name].contiguous() for name in inputs_of(layer)}
    for operand in problem.operands():
        if operand.role == "output":
            made = torch.empty(operand.shape, dtype=TENSOR_DTYPES[operand.dtype], device=device)
            _bytes(made).fill_(_NAN_BYTE)
            buffers[layer.buffers[operand.name]] = made
    bind_layer(layer, item.choice, buffers, state, device).step.run(stream_of(device))
    synchronize(device)
    of_sums = sum_error(problem, json.loads(candidate.config))
    for name, value in expected.items():
        actual = buffers[layer.buffers[name]].view(value.shape)
        if fault := compare_output(problem, name, actual, value, accuracy_of(problem, candidate), of_sums)[1]:
            return fault
    return None


def _precision(bound: Sequence[BoundLayer]) -> torch.dtype:
    """Return the dtype of the reference: more exact than that of the plan, of sums of bytes, and of torch on a CPU."""
    exact = {"f32", "tf32", *BYTE_FORMATS}
    dtypes = {dtype for item in bound for dtype in (item.layer.problem.dtype, item.layer.problem.output_dtype)}
    return torch.float64 if dtypes & exact else torch.float32


def _in(dtype: torch.dtype, problem: Problem, operands: Operands) -> Operands:
    """Return operands in the dtype of the reference; those of torch's operators keep theirs, which calls may name."""
    if isinstance(problem, TorchCall):
        dtypes = {operand.name: TENSOR_DTYPES[operand.dtype] for operand in problem.operands()}
        return {name: value.to(dtypes[name]) for name, value in operands.items()}
    return {name: value.to(dtype) for name, value in operands.items()}


def _factors(problem: Problem, operands: Operands) -> Operands:
    """Return the operands of a problem in TF32 with the factors rounded to its 10 bits, others as they are."""
    if problem.dtype != "tf32":
        return operands
    factors = {operand.name for operand in problem.operands() if operand.role in ("input", "weight")}
    return {name: _to_tf32(value) if name in factors else value for name, value in operands.items()}


def _to_tf32(value: torch.Tensor) -> torch.Tensor:
    return ((value.float().contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def _in_torch_order(network: Network, values: Operands) -> list[torch.Tensor]:
    """Return the results of a network, by buffer name as the layers write them, in torch's order of axes."""
    found = []
    for i, result in enumerate(network.results):
        value, shape = values[output_name(i)], result.shape
        if len(shape) == 4:
            n, k, p, q = shape
            value = as_nchw(value.reshape(n, p, q, k))
        found.append(value.reshape(shape))
    return found


def relative_error(values: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest relative error of some tensors (2-norm); infinite if one holds NaN."""
    errors = []
    for value, exact in zip(values, expected, strict=True):
        error = float((value.to(exact.dtype) - exact).norm() / exact.norm().clamp_min(1e-30))
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors, default=0.0)


def _floor(bound: Sequence[BoundLayer]) -> float:
    accuracies = (accuracy_of(item.layer.problem, item.choice.candidate) for item in bound)
    return max(_BYTE_FLOOR if one in BYTE_FORMATS else TOLERANCE.get(one, 0.0) for one in accuracies)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def time_plan(plan: NetworkPlan, rounds: int) -> Result:
    """Time a plan as a tune does, with random tensors; the result is "wrong" if its kernels disturb each other."""
    layers = tuple(item.layer for item in plan.bound)
    bench = NetworkBench(replace(plan.network, layers=layers, alternatives=()), plan.device)
    return bench.compare([[_assignment(item) for item in plan.bound]], rounds)[0]


def _assignment(item: BoundLayer) -> LayerAssignment:
    return LayerAssignment(item.layer.name, item.choice.candidate, item.choice.overlap)


def why_not_comparable(result: Result, recorded: Mapping[str, object], device: torch.device) -> str:
    """Return why a plan's time cannot be compared with the recorded one; empty if it can.

    Args:
        result: The time.
        recorded: Details of the plan in the database.
        device: The device.
    """
    monitor = Monitor(device)
    if slow := result.details.get(THROTTLED):
        reasons = ", ".join(monitor.slowed()) or "other processes or heat"
        return f"the device was slowed down in {slow} of {len(result.samples_us)} rounds ({reasons})"
    if recorded.get(THROTTLED):
        return "the device was slowed down when the plan was recorded"
    if device.type == "cuda" and (count := monitor.sharers()):
        return f"{count} other processes use this GPU"
    return ""
