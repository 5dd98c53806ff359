"""Compare published networks with torch: one of each family of timm.

Each network has random weights and random statistics of its batch norms. It is
captured by FusedResNet.from_model and by torch.compile(backend="autotune"), and
runs at two batch sizes. The reference is torch in float64. A result is wrong if
its error exceeds a multiple of the error that rounding causes in torch itself:
the dtype is float32 on a CPU and float16 on a GPU. A graph that
torch.compile(backend="autotune") leaves to Inductor is a failure. Without --db
all layers run on torch's operators. The exit code is 1 if a network fails.

Examples:
  python tests/campaigns/timm_networks.py --device cpu
  python tests/campaigns/timm_networks.py --only levit_128s --only "resnet18*"
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import torch
from empty_database import given_or_empty
from random_graphs import allowed_error, exact, relative_error
from torch import nn

from autotune.core import AutotuneError
from autotune_cli import record
from autotune_cli.command_line import add_device, output, positive, torch_device
from autotune_cli.main import run_program
from autotune_cli.record import one_line
from fused_resnet import FusedResNet

BATCHES = (2, 3)
SMALL = 128
"""Side of the image, where a network takes it; otherwise that for which it was published."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one network.

    Attributes:
        name: Its name in timm.
        family: The module of timm that defines it.
        shape: Of one sample.
        layers: Number of layers.
        errors: Relative error of each door and batch size (2-norm, to float64).
        allowed: The error from which a result is wrong, for the first batch size.
        failure: What failed; empty if nothing did.
    """

    name: str
    family: str
    shape: tuple[int, ...] = ()
    layers: int = 0
    errors: tuple[float, ...] = ()
    allowed: float = 0.0
    failure: str = ""

    @property
    def is_right(self) -> bool:
        """Return whether the network was captured by both doors and all results are right."""
        return not self.failure and all(error <= self.allowed for error in self.errors)


@torch.no_grad()
def with_random_statistics(model: nn.Module) -> nn.Module:
    """Return a model in eval mode, the statistics and weights of whose batch norms are random.

    They are near those of a new one: the activations of a deep network would overflow or vanish.
    """
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
            for tensor in (module.running_var, module.weight):
                if tensor is not None:
                    tensor.copy_(0.8 + 0.4 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


def outcome(
    found: Outcome, model: nn.Module, shapes: Sequence[tuple[int, ...]], database: Path, device: torch.device
) -> Outcome:
    """Run a network by both doors, and compare it with torch.

    Args:
        found: Its name and family.
        model: The network, in eval mode.
        shapes: Of one sample; the first one that it takes counts.
        database: The tuning database.
        device: The device.
    """
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = model.to(device, dtype)
    try:
        shape = next(shape for shape in shapes if _takes(model, torch.zeros(1, *shape, device=device, dtype=dtype)))
    except StopIteration:
        return dataclasses.replace(found, failure=f"torch itself does not run it for {' or '.join(map(str, shapes))}")
    found = dataclasses.replace(found, shape=shape)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(n, *shape, generator=generator).to(device, dtype) for n in BATCHES]
    errors: list[float] = []
    try:
        expected = [exact(model, x) for x in inputs]
        allowed = allowed_error(model, inputs[0], expected[0])
        network = FusedResNet.from_model(model, database, compile=False).to(device, dtype)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="autotune", options={"tuning_db": str(database)})
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", "backend='autotune' ")  # a graph that is left to Inductor
            for door in (network, compiled):
                errors += [relative_error(door(x), y) for x, y in zip(inputs, expected, strict=True)]
        layers = len(network._network(inputs[0]).layers)
        return dataclasses.replace(found, layers=layers, errors=tuple(errors), allowed=allowed)
    except Exception as error:  # any exception is a finding
        return dataclasses.replace(found, errors=tuple(errors), failure=f"{type(error).__name__}: {one_line(error)}")


def _takes(model: nn.Module, x: torch.Tensor) -> bool:
    try:
        with torch.no_grad():
            return isinstance(model(x), torch.Tensor)
    except Exception:  # a network may raise anything for a size that is not its own
        return False


def chosen(timm: Any, only: Sequence[str], most: int) -> Iterator[Outcome]:
    """Yield the names and families of networks of timm.

    Args:
        timm: The package.
        only: Patterns of names; without any, the network with the shortest name of each family.
        most: Largest number of parameters.
    """
    names: dict[str, list[str]] = {}
    for name in sorted(timm.list_models(), key=lambda name: (len(name), name)):
        if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only):
            names.setdefault(timm.models.model_entrypoint(name).__module__.rpartition(".")[2], []).append(name)
    for family, known in sorted(names.items()):
        for name in known:
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in timm.create_model(name).parameters())
            if size <= most:
                yield Outcome(name, family)
                if not only:
                    break


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="networks of this name, which may have wildcards"
    )
    parser.add_argument(
        "--most", type=positive, default=60, metavar="N", help="leave out networks of more million parameters (60)"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="the tuning database")
    add_device(parser)
    parser.add_argument("--out", type=output, metavar="FILE.json", help="the outcome of each network")


def main(options: argparse.Namespace) -> int:
    try:
        import timm  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise AutotuneError("timm is not installed: pip install timm") from error
    device, started, outcomes = torch_device(options.device), time.monotonic(), list[Outcome]()
    warnings.filterwarnings("ignore", message=".*is not tuned")
    with given_or_empty(options.db) as database:
        for about in chosen(timm, options.only, options.most * 10**6):
            torch.manual_seed(0)
            model = timm.create_model(about.name)
            own = tuple(model.default_cfg["input_size"])
            shapes = list(dict.fromkeys(((own[0], min(SMALL, own[1]), min(SMALL, own[2])), own)))
            outcomes.append(found := outcome(about, with_random_statistics(model), shapes, database, device))
            print(_line(found), flush=True)
    wrong = [one for one in outcomes if not one.is_right]
    if options.out:
        entries = [dataclasses.asdict(one) for one in outcomes]
        record.write({**record.provenance(device), "networks": entries}, options.out)
    print(f"{len(outcomes)} networks, {len(wrong)} not right, in {time.monotonic() - started:.0f} s")
    return int(bool(wrong))


def _line(found: Outcome) -> str:
    size = "x".join(map(str, found.shape))
    if found.failure:
        return f"{found.name} @{size}: {found.failure}"
    said = f"{found.name} @{size}: {found.layers} layers, relative error {max(found.errors):.1e}"
    return said if found.is_right else f"{said}, allowed {found.allowed:.1e}"


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
