"""Compare FusedResNet with torch on random networks.

Each network is drawn from a seed, captured, and run on inputs of several memory
layouts, with changed weights, and with each alternative to its layers. The
reference is torch in float64. A result is wrong if its error exceeds a multiple
of the error that rounding causes in torch itself: the dtype is float32 on a
CPU and float16 on a GPU. Without --db all layers run on torch's operators.
--problems writes the layers to a file for autotune tune and compares nothing.
The exit code is 1 if a result is wrong, or if a network cannot be captured.

Examples:
  python tests/campaigns/random_graphs.py --graphs 1000 --seed 7
  python tests/campaigns/random_graphs.py --graphs 20 --problems graphs.txt
  autotune tune --arch cpu --problems graphs.txt --db graphs.db --trials 1
  python tests/campaigns/random_graphs.py --graphs 20 --db graphs.db
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import torch
from empty_database import given_or_empty
from random_networks import BLOCKS, draw
from torch import nn

from autotune.core import AutotuneError
from autotune.ir.operators import TorchCall
from autotune.measure import stream_of
from autotune.runtime import ExecutionContext, NetworkPlan
from autotune_cli import record
from autotune_cli.command_line import add_device, output, positive, torch_device
from autotune_cli.main import run_program
from fused_resnet import FusedResNet
from fused_resnet.call import module_state
from tuning_db import open_reader

FACTOR = 8.0
"""A result is wrong if its error exceeds FACTOR x the rounding error of torch, plus FLOORS."""

FLOORS = {torch.float32: 1e-6, torch.float16: 2e-3}
"""Relative error that is always allowed: where few roundings happen in torch, as many happen here in other places."""

OTHER_BATCH = 16
"""Every OTHER_BATCH-th network also runs with another batch size, which is captured anew."""


@dataclass(frozen=True)
class Deviation:
    """The relative error of one result (2-norm, to float64), and the error that is allowed.

    The latter is infinite where torch's own result overflows in the dtype.
    """

    case: str
    error: float
    allowed: float

    @property
    def is_wrong(self) -> bool:
        """Return whether the error is too large; true also for NaN."""
        return not self.error <= self.allowed


@dataclass
class Outcome:
    """The outcome of one network.

    Attributes:
        seed: Draws the network.
        deviations: Of all cases.
        failure: The exception that ended it, empty if there was none.
        layers, native: Number of layers, and of those that ran on our kernels.
    """

    seed: int
    deviations: list[Deviation] = field(default_factory=list)
    failure: str = ""
    layers: int = 0
    native: int = 0

    @property
    def wrong(self) -> list[Deviation]:
        """Return the deviations that are too large."""
        return [deviation for deviation in self.deviations if deviation.is_wrong]


# -- errors ------------------------------------------------------------------------------------------------------------


def relative_error(y: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |y - expected| / |expected| (2-norms, float64); infinity if other elements are not finite."""
    y, expected = y.detach().cpu().double(), expected.detach().cpu().double()
    if y.shape != expected.shape or not torch.equal(torch.isfinite(y), torch.isfinite(expected)):
        return math.inf
    y, expected = (torch.where(torch.isfinite(expected), value, 0) for value in (y, expected))
    difference, norm = float((y - expected).norm()), float(expected.norm())
    return difference / norm if norm else (math.inf if difference else 0.0)


@torch.no_grad()
def exact(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the model's result in float64 on the CPU, from the weights and the input as they are."""
    y: torch.Tensor = copy.deepcopy(model).cpu().double()(x.cpu().double())
    return y


@torch.no_grad()
def rounding_error(model: nn.Module, x: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error that rounding to the model's dtype causes in torch.

    The largest of three: torch's own result, its result for an input that is channels last (the sums have another
    order), and the exact result for weights and input that are changed by half a unit in the last place. The third is
    large wherever terms cancel, also where the first two are exact by chance.
    """
    results = [model(x)]
    if x.dim() == 4:
        results.append(model(x.contiguous(memory_format=torch.channels_last)))
    generator = torch.Generator().manual_seed(0)
    unit = torch.finfo(x.dtype).eps / 2

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.cpu().double()
        return tensor * (1 + unit * (2 * torch.randint(2, tensor.shape, generator=generator) - 1))

    other = copy.deepcopy(model).cpu().double()
    for tensor in (*other.parameters(), *other.buffers()):
        if tensor.is_floating_point():
            tensor.copy_(rounded(tensor))
    results.append(other(rounded(x)))
    return max(relative_error(result, expected) for result in results)


# -- one network -------------------------------------------------------------------------------------------------------


def layouts(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield copies of an input in all kinds of memory layouts."""
    yield "contiguous", x
    if x.dim() == 4:
        yield "channels last", x.contiguous(memory_format=torch.channels_last)
        yield "transposed image", x.transpose(2, 3).contiguous().transpose(2, 3)
    yield "every second element", torch.stack([x, x], -1)[..., 0]
    yield "every second sample", torch.stack([x, x], 1)[:, 0]
    shifted = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape)
    yield "address of no multiple of 16", shifted.copy_(x)


@torch.no_grad()
def compare(model: nn.Module, network: FusedResNet, x: torch.Tensor, *, other_batch: bool = False) -> list[Deviation]:
    """Return the deviations of a network from the model that it is to compute, both on the device of `x`.

    Args:
        model: The plain network.
        network: The network, made from `model`. The weights of both are changed.
        x: The input.
        other_batch: Also call the network with one more sample.
    """
    expected = exact(model, x)
    allowed = allowed_error(model, x, expected)
    found = [Deviation(name, relative_error(network(given), expected), allowed) for name, given in layouts(x)]
    y = torch.empty_like(expected, dtype=x.dtype, device=x.device)
    network(x, out=y)
    found.append(Deviation("out=", relative_error(y, expected), allowed))
    for name, result in _alternatives(network, x):
        found.append(Deviation(f"alternative {name}", relative_error(result, expected), allowed))
    for module in (model, network):
        for parameter in module.parameters():
            parameter.mul_(1.1)
    changed = exact(model, x)
    found.append(Deviation("changed weights", relative_error(network(x), changed), allowed_error(model, x, changed)))
    if other_batch:
        more = torch.cat([x, x.flip(0)[:1]])
        try:
            wider = exact(model, more)
        except RuntimeError:  # a parameter has the shape of the first input
            return found
        found.append(
            Deviation("another batch", relative_error(network(more), wider), allowed_error(model, more, wider))
        )
    return found


def allowed_error(model: nn.Module, x: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error from which a result is wrong; `rounding_error` has the arguments."""
    return FACTOR * rounding_error(model, x, expected) + FLOORS[x.dtype]


def _alternatives(network: FusedResNet, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the result with each alternative in the place of the layers that it replaces."""
    captured = network.network(x)
    for alternative in captured.alternatives:
        taken = dataclasses.replace(captured, layers=captured.layers_with([alternative.name]), alternatives=())
        with open_reader(network.tuning_db) as store:
            plan = NetworkPlan(taken, module_state(network), store, x.device, graph=False)
        context = ExecutionContext(plan, graph=False)
        y = torch.full_like(context.template, float("nan"))
        context.run([x], [y], stream_of(x.device))
        yield alternative.name, y


def outcome(seed: int, database: Path, device: torch.device, blocks: int = BLOCKS) -> Outcome:
    """Draw a network, run it on a database's kernels, and compare it with torch."""
    result = Outcome(seed)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model, x = draw(seed, blocks)
    model, x = model.to(device, dtype), x.to(device, dtype)
    try:
        network = FusedResNet.from_model(model, database, inductor=False).to(device, dtype)
        _, context, _ = network.context(x)
        result.layers, result.native = (
            len(context.plan.bound),
            sum(b.step.kernel is not None for b in context.plan.bound),
        )
        result.deviations = compare(model, network, x, other_batch=seed % OTHER_BATCH == 0)
    except AutotuneError as error:
        result.failure = f"{type(error).__name__}: {error}"
    except Exception as error:  # any exception is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        result.failure = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    return result


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graphs", type=positive, default=300, metavar="N", help="number of networks (default 300)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first network (default 0)")
    parser.add_argument(
        "--blocks", type=positive, default=BLOCKS, metavar="N", help=f"most blocks of a network (default {BLOCKS})"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="the tuning database")
    add_device(parser)
    parser.add_argument("--out", type=output, metavar="FILE.json", help="the outcome of each network")
    parser.add_argument("--problems", type=output, metavar="FILE", help="write the layers' problems to this file")


def main(options: argparse.Namespace) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are too small to be shared
    try:
        return _compare(options)
    finally:
        torch.set_num_threads(threads)


def _compare(options: argparse.Namespace) -> int:
    device = torch_device(options.device)
    warnings.filterwarnings("ignore", message=".*is not tuned")
    seeds = range(options.seed, options.seed + options.graphs)
    if options.problems:
        return _write_problems(seeds, device, options)
    started, outcomes = time.monotonic(), []
    with given_or_empty(options.db) as database:
        for seed in seeds:
            outcomes.append(result := outcome(seed, database, device, options.blocks))
            for deviation in result.wrong:
                sizes = f"relative error {deviation.error:.1e}, allowed {deviation.allowed:.1e}"
                print(f"seed {seed}, {deviation.case}: {sizes}", flush=True)
            if result.failure:
                print(f"seed {seed}: {result.failure}", flush=True)
    if options.out:
        entries = [dataclasses.asdict(result) for result in outcomes]
        record.write({**record.provenance(device), "graphs": entries}, options.out)
    wrong, failed = sum(bool(result.wrong) for result in outcomes), sum(bool(result.failure) for result in outcomes)
    compared = [deviation for result in outcomes for deviation in result.deviations]
    native, layers = sum(result.native for result in outcomes), sum(result.layers for result in outcomes)
    print(f"{len(outcomes)} networks, {wrong} wrong, {failed} failed, in {time.monotonic() - started:.0f} s")
    print(f"{len(compared)} results, {layers} layers, {native} of them on our kernels")
    if overflows := sum(math.isinf(deviation.allowed) for deviation in compared):
        print(f"{overflows} results were not compared: torch itself overflows")
    if ratios := [d.error / d.allowed for d in compared if d.allowed < math.inf]:
        print(f"largest error {max(ratios):.2f} of the allowed one")
    return int(bool(wrong or failed))


def _write_problems(seeds: range, device: torch.device, options: argparse.Namespace) -> int:
    """Write the problems of all layers and alternatives, one a line."""
    texts: dict[str, None] = {}
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    with given_or_empty(None) as database:
        for seed in seeds:
            model, x = draw(seed, options.blocks)
            network = FusedResNet.from_model(model.to(dtype), database).network(x.to(dtype))
            problems = [layer.problem for layer in network.all_layers if not isinstance(layer.problem, TorchCall)]
            texts |= {str(problem): None for problem in problems if "@" not in str(problem)}
    options.problems.write_text("\n".join(texts) + "\n")
    print(f"{options.problems}: {len(texts)} problems")
    return 0


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
