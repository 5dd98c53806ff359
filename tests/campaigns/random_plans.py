"""Run random plans of a network and compare them with torch.

A tune verifies each kernel alone and runs few of all possible plans. Each plan
here takes random alternatives and, for each layer, one of the fastest kernels
that the database has for it. The plan runs several times, on a GPU as a CUDA
graph, with or without overlap of its kernels. The reference is torch in
float64. A result is wrong if its error exceeds a multiple of the error that
rounding causes in torch itself: the dtype is float32 on a CPU and float16 on a
GPU. For a wrong plan the layers with the largest errors are listed, each run
alone. If these errors are small, each kernel is right, and the fault lies in
the memory plan or in the order of the kernels. The exit code is 1 if a plan is
wrong.

Examples:
  python tests/campaigns/random_plans.py --db a.db --model torchvision:resnet50
  python tests/campaigns/random_plans.py --db a.db --plans 1 --seed 17
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from random_graphs import allowed_error, exact, relative_error

from autotune.ir import TENSOR_DTYPES, Network, Problem, compute, evaluate
from autotune.ir.operators import TorchCall
from autotune.measure import stream_of
from autotune.runtime import BoundLayer, ExecutionContext, NetworkPlan, bind_layer, make_buffers
from autotune_cli.command_line import add_device, add_model, positive, torch_device
from autotune_cli.main import run_program
from autotune_cli.models import load
from fused_resnet.call import module_state
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import open_reader
from tuning_db.protocols import Database, Device, Measurement

FASTEST = 6
"""Number of the fastest kernels of a problem from which one is drawn."""

TAKEN, OVERLAPPED = 0.7, 0.8
"""Share of the possible alternatives that a plan takes, and of the plans whose kernels overlap."""

RUNS = 3
"""Number of runs of each plan: an error of timing may not show in the first."""

LISTED = 3
"""Number of layers that are listed of a wrong plan."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one plan.

    Attributes:
        error: Largest relative error of its runs (2-norm, to float64).
        layers, native: Number of layers, and of those on kernels of the database.
        worst: Of a wrong plan, the error of each layer alone and the layer with its candidate; the largest ones first.
    """

    error: float
    layers: int
    native: int
    worst: tuple[tuple[float, BoundLayer], ...] = ()


class ShuffledDatabase:
    """A database without plans whose rankings start with one of the fastest kernels, drawn at random.

    It implements `tuning_db.protocols.Database`.
    """

    def __init__(self, store: Database, draw: random.Random) -> None:
        self._store, self._draw = store, draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def plan(self, device: Device, network: str) -> None:
        """Return None: the layers are selected one by one."""

    def planned(self, device: Device) -> Sequence[str]:
        """Return no networks."""
        return ()

    def ranking(self, device: Device, problem: str) -> Sequence[Measurement]:
        """Return the ranking with one of the fastest kernels in front."""
        rows = list(self._store.ranking(device, problem))
        kernels = [row for row in rows if row.kernel.library is not None][:FASTEST]
        if kernels:
            drawn = self._draw.choice(kernels)
            rows.remove(drawn)
            rows.insert(0, drawn)
        return rows


def random_alternatives(network: Network, draw: random.Random) -> list[str]:
    """Return names of alternatives that replace different layers; none of them replaces the whole network."""
    replaced: set[str] = set()
    names: list[str] = []
    alternatives = network.without_whole.alternatives
    for alternative in draw.sample(alternatives, len(alternatives)):
        wanted = draw.random() < TAKEN and replaced.isdisjoint(alternative.replaces)
        if wanted and network.can_take([*names, alternative.name]):
            replaced.update(alternative.replaces)
            names.append(alternative.name)
    return names


def outcome(
    seed: int,
    network: Network,
    state: dict[str, torch.Tensor],
    store: Database,
    x: torch.Tensor,
    expected: torch.Tensor,
    allowed: float,
) -> Outcome:
    """Draw a plan of a network from a seed, run it, and compare its result.

    Args:
        seed: The seed.
        network: The network for the shape of `x`; one input and one result.
        state: The module's tensors by name.
        store: The tuning database.
        x: The input; its device runs the plan.
        expected: The result in float64.
        allowed: The relative error from which the plan is wrong.
    """
    draw = random.Random(seed)
    names = random_alternatives(network, draw)
    drawn = dataclasses.replace(network, layers=network.layers_with(names), alternatives=())
    plan = NetworkPlan(drawn, state, cast(Database, ShuffledDatabase(store, draw)), x.device, graph=x.is_cuda)
    overlap = draw.random() < OVERLAPPED
    plan.bound = [dataclasses.replace(b, choice=dataclasses.replace(b.choice, overlap=overlap)) for b in plan.bound]
    context = ExecutionContext(plan, graph=x.is_cuda)
    y = torch.empty_like(context.template)
    errors = []
    for _ in range(RUNS):
        y.fill_(math.nan)
        context.run([x], [y], stream_of(x.device))
        errors.append(relative_error(y, expected))
    error = max(errors, key=lambda one: math.inf if math.isnan(one) else one)
    native = sum(item.step.kernel is not None for item in plan.bound)
    worst = () if error <= allowed else tuple(layer_errors(plan, state, x)[:LISTED])
    return Outcome(error, len(plan.bound), native, worst)


def layer_errors(plan: NetworkPlan, state: dict[str, torch.Tensor], x: torch.Tensor) -> list[tuple[float, BoundLayer]]:
    """Run the layers of a plan one after the other in memory of their own; return their errors, the largest first.

    The reference of a layer is its problem in float64 for the inputs that it reads. torch's operators are left out.
    """
    (given, result), (like,) = plan.network.callers, plan.network.results
    buffers = make_buffers(plan.network, x.device)
    buffers |= {given: x, result: torch.empty(like.shape, dtype=TENSOR_DTYPES[like.dtype], device=x.device)}
    errors = []
    for item in plan.bound:
        for name in item.layer.writes:
            buffers[name].fill_(math.nan)
        bind_layer(item.layer, item.choice, buffers, state, x.device).step.run(stream_of(x.device))
        if not isinstance(item.layer.problem, TorchCall):
            errors.append((_layer_error(item.layer.problem, item, state, buffers), item))
    return sorted(errors, key=lambda one: -math.inf if math.isnan(one[0]) else -one[0])


def _layer_error(
    problem: Problem, item: BoundLayer, state: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> float:
    """Return the largest relative error of the tensors that a layer has written."""
    tensors, layer = {}, item.layer
    operands = problem.operands()
    for operand in operands:
        if operand.role in ("weight", "vector"):
            value = evaluate(state, layer.weights[operand.name]).to(TENSOR_DTYPES[operand.dtype])
        else:
            value = buffers[layer.buffers[operand.name]]
        tensors[operand.name] = value.reshape(operand.shape).double()
    results = {operand.name: tensors.pop(operand.name) for operand in operands if operand.role == "output"}
    expected = compute(problem, tensors, tuple(float(evaluate(state, source)) for source in layer.scalars))
    return max(relative_error(results[name], expected[name]) for name in results)


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    add_model(parser, "se_resnet9_fixup", in_channels=False)
    parser.add_argument("--batch", type=positive, default=32, metavar="N", help="batch size (default 32)")
    parser.add_argument("--plans", type=positive, default=100, metavar="N", help="number of plans (default 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first plan (default 0)")
    add_device(parser)


@torch.inference_mode()
def main(options: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore", message=".*is not tuned")
    started = time.monotonic()
    device = torch_device(options.device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = load(options.model, options.input, None)
    generator = torch.Generator().manual_seed(1)
    se_resnet9_fixup.randomize(model.module)
    se_resnet9_fixup.calibrate(model.module, torch.randn(8, *model.shape, generator=generator))
    x = torch.randn(options.batch, *model.shape, generator=generator).to(device, dtype)
    fused = model.fused(str(options.db)).to(device, dtype)
    network, state, module = fused.network(x), module_state(fused), model.module.to(device, dtype)
    expected = exact(module, x)
    allowed = allowed_error(module, x, expected)
    wrong, ratio, layers, native = 0, 0.0, 0, 0
    with open_reader(options.db) as store:
        for seed in range(options.seed, options.seed + options.plans):
            found = outcome(seed, network, state, store, x, expected, allowed)
            layers, native, ratio = layers + found.layers, native + found.native, max(ratio, found.error / allowed)
            if not found.error <= allowed:
                wrong += 1
                print(
                    f"seed {seed}: relative error {found.error:.1e}, allowed {allowed:.1e}; layers alone:", flush=True
                )
                for error, item in found.worst:
                    candidate = item.choice.candidate
                    print(f"  {error:.1e} {item.layer.name}: {candidate.family} {candidate.config} {candidate.launch}")
                    print(f"    {item.layer.problem}")
    print(f"{options.plans} plans of {model.name}, {wrong} wrong, in {time.monotonic() - started:.0f} s")
    print(f"{layers} layers, {native} of them on kernels of the database")
    print(f"largest error {ratio:.2f} of the allowed one")
    return int(bool(wrong))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
