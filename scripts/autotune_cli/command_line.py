"""Options that several subcommands share, and the types of their values.

What imports torch, which takes seconds, is imported where it is needed: --help answers at once.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fused_resnet.precisions import PRECISIONS

if TYPE_CHECKING:
    import torch

Group = argparse._ActionsContainer
"""A parser or one of its groups."""

DEFAULT_MODEL = "se_resnet9_fixup"
MODEL = "se_resnet9_fixup, unet, torchvision:NAME, FILE.onnx, or FILE.py:FUNCTION, which returns an nn.Module"
PRECISION = "; ".join(f"{name}: {meaning}" for name, meaning in PRECISIONS.items()) + " (docs/guide/precision.md)"
GPU_BATCH, CPU_BATCH = 128, 8
BATCHES = f"{GPU_BATCH}, on a CPU {CPU_BATCH}"

# -- shared options ----------------------------------------------------------------------------------------------------


def add_model(group: Group, default: str | None, *, in_channels: bool = True) -> None:
    """Add --model and --input.

    Args:
        group: Where the options go.
        default: The default model, or None.
        in_channels: Whether to add --in-channels too, an option of se_resnet9_fixup alone.
    """
    about = f"{MODEL} (default {default})" if default else MODEL
    group.add_argument("--model", metavar="MODEL", default=default, help=about)
    group.add_argument(
        "--input", type=shape, metavar="C,H,W", help="shape of one sample, for a model whose usual shape is not known"
    )
    if in_channels:
        group.add_argument("--in-channels", type=positive, metavar="N", help="input channels of se_resnet9_fixup")


def add_batches(group: Group, about: str = "") -> None:
    """Add --batch, which takes several batch sizes; `default_batch` returns its default."""
    about = f"batch sizes (default {BATCHES}{'; ' if about else ''}{about})"
    group.add_argument("--batch", type=sizes, action="extend", metavar="N[,N]", help=about)


def add_batch(group: Group) -> None:
    """Add --batch, which takes one batch size; `default_batch` returns its default."""
    group.add_argument("--batch", type=positive, metavar="N", help=f"batch size (default {BATCHES})")


def default_batch(is_gpu: bool) -> int:
    """Return the batch size of all commands that time or tune a network, where --batch gives none."""
    return GPU_BATCH if is_gpu else CPU_BATCH


def add_device(group: Group) -> None:
    """Add --device; `torch_device` reads it."""
    group.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: the GPU if there is one (the default)"
    )


def add_dtype(group: Group) -> None:
    """Add --dtype, the dtype of a network's tensors; `models.default_dtype` returns its default."""
    group.add_argument("--dtype", choices=["f16", "bf16", "f32"], help="default f16; f32 on a CPU or for tf32")


def add_precision(group: Group) -> None:
    """Add --precision, the precision of FusedResNet."""
    group.add_argument("--precision", choices=list(PRECISIONS), help=f"precision of FusedResNet: {PRECISION}")


def add_record(group: Group, name: str) -> None:
    """Add --out, the file of a record; `name` describes its default name, in the current folder."""
    group.add_argument("--out", type=output, metavar="FILE.json", help=f"the record (default {name}.json)")


def add_show(group: Group, about: str = "only print and draw a record") -> None:
    """Add --show, a record that an earlier run has written."""
    group.add_argument("--show", type=Path, metavar="FILE.json", help=about)


def add_jobs(group: Group) -> None:
    """Add --jobs."""
    cores = len(os.sched_getaffinity(0))
    group.add_argument(
        "--jobs", type=positive, metavar="N", default=cores, help="compilers that run at a time (default: all cores)"
    )


def torch_device(name: str) -> torch.device:
    """Return the device that --device names; raises AutotuneError for cuda without a GPU."""
    import torch

    from autotune.core import AutotuneError

    if name == "cuda" and not torch.cuda.is_available():
        raise AutotuneError("torch sees no NVIDIA GPU: give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


# -- types of values ---------------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """Read "90s", "5m", "1h" or a bare number of seconds."""
    from autotune.core import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def image_sizes(text: str) -> list[tuple[int, int]]:
    """Read heights and widths such as "224x224,320x256"."""
    try:
        read = [(positive(h), positive(w)) for h, w in (size.split("x") for size in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of sizes such as 224x224,320x256") from None
    return list(dict.fromkeys(read))


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def at_least_0(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 0")
    return int(text)


def cpu_threads(text: str) -> int:
    """Read a number of threads that this machine has processors for; OpenMP ends a process that asks for too many."""
    count = positive(text)
    if count > (most := os.cpu_count() or 1):
        raise argparse.ArgumentTypeError(f"{count} threads are more than the {most} processors of this machine")
    return count


def names(text: str) -> list[str]:
    """Read words joined by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def sizes(text: str) -> list[int]:
    """Read whole numbers of at least 1, joined by commas."""
    return [positive(part) for part in names(text)]


def gpu_numbers(text: str) -> list[int]:
    """Read the numbers of GPUs, such as 0,1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of different numbers such as 0,1,2")
    return numbers


def require_gpus(numbers: Sequence[int], count: int) -> None:
    """Check the numbers that --devices gives; raises AutotuneError if a GPU is absent.

    Args:
        numbers: The numbers.
        count: The number of GPUs that torch sees.
    """
    from autotune.core import AutotuneError

    if absent := [number for number in numbers if number >= count]:
        raise AutotuneError(f"--devices {absent[0]}: torch sees {count} GPUs, which are numbered from 0")


def percent(text: str) -> float:
    """Read "1%" or "0.5%" as a fraction: 0.01 or 0.005."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", text)
    if not found or float(found[1]) > 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage: write 1% or 0.5%")
    return float(found[1]) / 100


def shape(text: str) -> tuple[int, ...]:
    """Read "3,224,224"."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape: write C,H,W, such as 3,224,224")
    return tuple(map(int, text.split(",")))


def database(text: str) -> Path | str:
    """Read the place of a database: a file, or the URL of a server, postgresql+psycopg://user@host/name."""
    return text if "://" in text else Path(text)


def output(text: str) -> Path:
    """Read the name of a file to write; refuses a file that cannot be written before anything is measured."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder: name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written: name a file in a folder of yours")
    return path


def size(text: str) -> int:
    """Read "64M", "1G", "512K" or a bare number of bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write 512K, 64M or 1G")
    return int(float(found[1]) * 1024 ** " KMG".index(found[2] or " "))
