"""Runs `autotune accuracy`, whose options and description are in arguments/accuracy.py."""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.core import AutotuneError, require_one_of
from autotune.ir import BYTE_PRECISIONS, DTYPES
from autotune.libraries.aten import full_float32
from autotune_cli import models, synthetic_dataset
from autotune_cli.arguments.accuracy import CORRECTIONS
from autotune_cli.command_line import torch_device
from autotune_cli.record import provenance, slug, write
from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.quantization import DEFAULT_METHOD, compare
from fused_resnet.quantization.calibrate import calibrate
from fused_resnet.quantization.scales import CalibratedScales
from tuning_db import Store, open_reader

PRECISIONS = {
    "f32": ("f32", None),
    "tf32": ("f32", "tf32"),
    "f16": ("f16", None),
    "bf16": ("bf16", None),
    **{name: ("", name) for name in BYTE_PRECISIONS},
}
"""Name -> dtype of the module's tensors ("" for the default of the device), and FusedResNet's `precision`."""
METHOD = {
    "reference": "the same module in eager torch, float32, TF32 off, on the same device and images",
    "top1": "share of images whose largest output is their class",
    "agreement": "share of images with the same largest output as the reference",
    "error": "norm of all differences of outputs / norm of all outputs",
    "worst": "largest difference of an output / root mean square of all outputs",
}


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        row: Its name.
        precision: A key of PRECISIONS.
        method: The calibration method of an 8-bit format; None for another precision.
        bias_correction: Whether the biases of layers in bytes are corrected.
    """

    row: str
    precision: str
    method: str | None = None
    bias_correction: bool = False


@dataclass(frozen=True)
class Comparison:
    """A module in float32 on its device, and images to run it on.

    Attributes:
        batches: The images.
        classes: Their classes, or None for random images.
        calibration: Other images, for 8-bit formats.
        facts: Further entries of the record.
    """

    module: nn.Module
    batches: list[Tensor]
    classes: Tensor | None
    calibration: list[Tensor]
    facts: dict[str, Any]


def main(arguments: argparse.Namespace) -> None:
    device = torch_device(arguments.device)
    names = arguments.precision or usual_precisions(device)
    wanted = [require_one_of("precision", name, list(PRECISIONS)) for name in names]
    if arguments.db:
        with open_reader(arguments.db):
            pass  # a database that cannot be read is reported now, not after minutes of training
    case = random_case(arguments, device) if arguments.model else trained_case(arguments, device)
    expected = outputs(case.module, case.batches)
    record = {
        **provenance(device, arguments.out),
        "method": METHOD,
        "model": arguments.model or "ResNet-18 of scripts/autotune_cli/synthetic_dataset.py",
        "database": Path(arguments.db).name if arguments.db else None,
        "images": len(expected),
        "max_loss": arguments.max_loss,
        **case.facts,
        "reference_top1": top1(expected, case.classes),
        "precisions": {},
    }
    path = arguments.out or Path(f"{default_name(arguments.model, device)}.json")
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.db or f"{folder}/empty.db"
        if not arguments.db:
            Store.create(database).close()
        for one in variants(wanted, arguments.method or [DEFAULT_METHOD], CORRECTIONS[arguments.bias_correction]):
            calibration = calibrated(case, one, arguments.max_loss)
            record["precisions"][one.row] = measure(case, expected, database, one.precision, device, calibration)
            write(record, path)
    show(record)
    print(f"wrote {path}")


def usual_precisions(device: torch.device) -> list[str]:
    """Return the precisions that a device has, of those that are measured by default."""
    if device.type != "cuda":
        return ["f32", *BYTE_PRECISIONS]
    major, minor = torch.cuda.get_device_capability(device)
    in_bytes = [name for name, form in BYTE_PRECISIONS.items() if form.capability <= 10 * major + minor]
    return ["f16", "bf16", "tf32", *in_bytes]


# -- modules and images ------------------------------------------------------------------------------------------------


def trained_case(arguments: argparse.Namespace, device: torch.device) -> Comparison:
    """Return a trained ResNet-18, and images that it was not trained on."""
    torch.manual_seed(arguments.seed)
    module = synthetic_dataset.ResNet18(arguments.width).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    facts: dict[str, Any] = {"width": arguments.width, "size": arguments.size}
    if arguments.save and arguments.save.is_file():
        module.load_state_dict(torch.load(arguments.save, map_location=device, weights_only=True))
    else:
        started = time.perf_counter()
        generator = torch.Generator(device).manual_seed(arguments.seed)
        losses = synthetic_dataset.train(module, arguments.steps, arguments.train_batch, arguments.size, generator)
        loss = float(losses[-max(1, len(losses) // 10) :].mean())
        seconds = round(time.perf_counter() - started, 1)
        facts["training"] = {"steps": arguments.steps, "batch": arguments.train_batch, "loss": loss, "seconds": seconds}
        if arguments.save:
            torch.save(module.state_dict(), arguments.save)

    def drawn(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator(device).manual_seed(seed)
        return [synthetic_dataset.images(part, arguments.size, generator) for part in parts(count, arguments.batch)]

    shown = drawn(arguments.images or 10000, arguments.seed + 1)
    calibration = [x for x, _ in drawn(arguments.calibration, arguments.seed + 2)]
    return Comparison(
        module.eval(), [x for x, _ in shown], torch.cat([classes for _, classes in shown]), calibration, facts
    )


def random_case(arguments: argparse.Namespace, device: torch.device) -> Comparison:
    """Return the model of --model with random parameters and statistics, and random images."""
    model = models.load(arguments.model, arguments.input, None)
    generator = torch.Generator().manual_seed(arguments.seed)

    def images(count: int) -> list[Tensor]:
        return [torch.randn(part, *model.shape, generator=generator) for part in parts(count, arguments.batch)]

    se_resnet9_fixup.randomize(model.module, arguments.seed)
    se_resnet9_fixup.calibrate(model.module, images(8)[0])
    shown, calibration = images(arguments.images or 1000), images(arguments.calibration)
    return Comparison(
        model.module.to(device),
        [x.to(device) for x in shown],
        None,
        [x.to(device) for x in calibration],
        {"input": list(model.shape)},
    )


def parts(count: int, most: int) -> list[int]:
    """Return the sizes of batches of at most `most` that add up to `count`."""
    return [min(most, count - begin) for begin in range(0, count, most)]


# -- comparing ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def outputs(call: Callable[[Tensor], object], batches: Iterable[Tensor]) -> Tensor:
    """Return all outputs (n, values) on the CPU in float32, those of several results side by side.

    Eager torch runs without TF32.
    """
    with full_float32():
        return torch.cat([_in_rows(call(x)) for x in batches])


def _in_rows(results: object) -> Tensor:
    found = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([tensor.float().flatten(1).cpu() for tensor in found], 1)


def top1(found: Tensor, classes: Tensor | None) -> float | None:
    return None if classes is None else float((found.argmax(1) == classes.cpu()).double().mean())


def variants(precisions: Iterable[str], methods: Sequence[str], corrections: Sequence[bool]) -> Iterator[Variant]:
    """Yield everything that is measured; 8-bit formats by each method, with bias correction as `corrections` say."""
    for name in precisions:
        if name not in BYTE_PRECISIONS:
            yield Variant(name, name)
            continue
        for method in methods:
            for corrected in corrections:
                parts = (name, "" if method == DEFAULT_METHOD else method, "" if corrected else "uncorrected")
                yield Variant(" ".join(filter(None, parts)), name, method, corrected)


def calibrated(case: Comparison, variant: Variant, max_loss: float | None) -> CalibratedScales | None:
    """Return the scales of a variant in an 8-bit format; None for another precision."""
    if variant.method is None:
        return None
    return calibrate(
        case.module, case.calibration, variant.method, max_loss, variant.bias_correction, precision=variant.precision
    )


def measure(
    case: Comparison,
    expected: Tensor,
    database: str,
    name: str,
    device: torch.device,
    calibration: CalibratedScales | None,
) -> dict[str, Any]:
    """Return the entry of a precision in the record: FusedResNet against the expected outputs.

    Args:
        case: The module and the images.
        expected: The outputs of the module in float32.
        database: The tuning database.
        name: A key of PRECISIONS.
        device: The device.
        calibration: The scales of an 8-bit format; None for another precision.
    """
    dtype, precision = PRECISIONS[name]
    kind = DTYPES[dtype or ("f16" if device.type == "cuda" else "f32")]
    network = FusedResNet.from_model(
        copy.deepcopy(case.module), database, precision=precision, calibration=calibration
    ).to(device, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record has the layers that are not tuned
        found = outputs(lambda x: network(x.to(kind)), case.batches)
    loss = compare(expected, found)
    if not loss.error < float("inf"):
        raise AutotuneError(f"{name}: the outputs are not finite")
    layers = network.explain(case.batches[0].to(kind))
    return {
        "tensors": str(kind).removeprefix("torch."),
        "top1": top1(found, case.classes),
        **asdict(loss),
        "layers": dict(Counter(row.dtype for row in layers)),
        "kernels_from": dict(Counter(row.source for row in layers)),
        "on_our_kernels": sum(not row.kernel.startswith("aten") for row in layers),
        "not_in_bytes": dict(layers.kept),
        "corrected_biases": len(calibration.corrections) if calibration else 0,
    }


def default_name(model: str | None, device: torch.device) -> str:
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"accuracy-{model.rpartition(':')[2] if model else 'resnet18-pictures'}-{slug(place)}"


def show(record: dict[str, Any]) -> None:
    """Print the table, the reference first."""
    table = Table(box=None, pad_edge=False, title=f"{record['model']}, {record['images']} images", title_justify="left")
    table.add_column("precision")
    for heading in ("top-1", "agrees", "error", "worst", "our kernels"):
        table.add_column(heading, justify="right")
    table.add_row("torch f32", share(record["reference_top1"]))
    for name, row in record["precisions"].items():
        layers = sum(row["layers"].values())
        numbers = (share(row["top1"]), share(row["agreement"]), f"{row['error']:.1e}", f"{row['worst']:.1e}")
        table.add_row(name, *numbers, f"{row['on_our_kernels']} of {layers}")
    Console(highlight=False).print(table)


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
