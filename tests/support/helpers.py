"""What several test files use: an independent reference, built kernels as candidates, scripts and threads."""

from __future__ import annotations

import io
import math
import random
import re
import runpy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autotune import families
from autotune.codegen import ninja_build, rendering, toolchain
from autotune.core import ToolchainError, architecture
from autotune.families import family
from autotune.families.base import Config, Kernel
from autotune.ir import (
    DTYPES,
    AvgPool2d,
    Cast,
    Conv2d,
    Conv2dDgrad,
    Conv2dSe,
    Conv2dSeSkip,
    Conv2dWgrad,
    Elementwise,
    Epilogue,
    FoldedSe,
    Gemm,
    GlobalAvgPool2d,
    MaxPool2d,
    PatchConv2d,
    Problem,
    SeBlock,
    SeDownBlock,
    SeTail,
    SpaceToDepth,
    Stem,
    StemBlock,
    StemSeBlockPool,
    ToChannelsLast,
)
from autotune.ir.epilogue_steps import define_step
from autotune.measure import CandidateBench, Result, Worker
from autotune.measure.verify import random_tensor
from autotune.runtime import BoundStep, Candidate

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
DATA = ROOT / "tests" / "data"
KERNELS = ROOT / "tests" / "kernels"
LIMIT = {"f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, "f32": 4e-6}
"""Of a result's error (norm of the whole): what rounding factors, sums and output costs, doubled. Bytes are exact."""
TUNED_BATCH = 3
TUNE = ("--arch", "cpu", "--batch", TUNED_BATCH, "--trials", 1, "--budget", "20m")
"""Arguments of the run of tune.py that makes the fixture `tuned_db`."""
HANG = 600
"""Seconds that no process takes, however busy the machine is."""


# -- the meaning of a problem, written a second time -------------------------------------------------------------------


def solve(  # noqa: PLR0912 -- a table
    problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float]
) -> dict[str, torch.Tensor]:
    """Every output of a problem, in float64 on the CPU; shares no code with autotune.ir.reference."""
    given = {name: tensor.cpu().double() for name, tensor in tensors.items()}
    match problem:
        case Conv2d() | Conv2dSe() | FoldedSe():
            window = (problem.stride, problem.pad, problem.dilation, problem.groups)
            x = given["x"].movedim(-1, 1)
            value = F.conv2d(x, given["weight"], None, *window).movedim(1, -1)
            if isinstance(problem, FoldedSe):
                if isinstance(problem, Conv2dSeSkip):
                    parts = given["skip"].unflatten(-1, (problem.skip_groups, -1))
                    rows = given["projection"].flatten(1).unflatten(0, (problem.skip_groups, -1))
                    given["projected"] = torch.einsum("nhwgc,gkc->nhwgk", parts, rows).flatten(3)
                given["squeezed"] = F.conv2d(x, given["w1"], None, *window).sum((2, 3)) / (problem.p * problem.q)
        case PatchConv2d() | StemBlock():
            n, p, q, k = problem.output_shape
            patches = F.unfold(given["x"], problem.block, stride=problem.block)
            value = torch.einsum("nci,kc->nik", patches, given["weight"].flatten(1)).reshape(n, p, q, k)
        case Conv2dDgrad():
            x = torch.zeros(problem.n, problem.c, problem.h, problem.w, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, x, given["weight"], given["dy"], x)
        case Conv2dWgrad():
            shape = (problem.k, problem.c // problem.groups, problem.r, problem.s)
            weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, given["x"].movedim(-1, 1), weight, given["dy"], weight)
        case Gemm():
            value = torch.einsum("mk,nk->mn", given["x"], given["weight"])
        case Stem():
            value = F.conv2d(given["x"], given["weight"], None, problem.stride, problem.pad).movedim(1, -1)
            pool, stride, pad = ((size, size) for size in (problem.pool, problem.pool_stride, problem.pool_pad))
            value = _largest(value, pool, stride, pad, problem.output_shape)
        case SeTail():
            value = _gated(given["x"], given)
        case SeBlock():
            value = _convolved(given["x"], given["weight1"])
        case SeDownBlock():
            value = _convolved(given["x"], given["weight1"], 2)
        case _:
            value = _without_weights(problem, given["x"])
    outputs = run_chain(problem.epilogue.names, value, given, scalars)
    if isinstance(problem, StemSeBlockPool):
        outputs["pooled"] = _without_weights(problem.pool, outputs["y"])
    return outputs


def _without_weights(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """Pools, and what only moves data."""
    match problem:
        case AvgPool2d():
            padded = F.pad(x, (0, 0, problem.pad[1], problem.pad[1], problem.pad[0], problem.pad[0]))
            windows = padded.unfold(1, problem.r, problem.stride[0]).unfold(2, problem.s, problem.stride[1])
            value = windows.mean((-1, -2))
        case MaxPool2d():
            value = _largest(x, (problem.r, problem.s), problem.stride, problem.pad, problem.output_shape)
        case GlobalAvgPool2d():
            value = x.sum((1, 2), keepdim=True) / (problem.h * problem.w)
        case Elementwise() | Cast():
            value = x
        case ToChannelsLast():
            value = torch.zeros(problem.output_shape, dtype=torch.float64)
            value[..., : problem.c] = x.movedim(1, -1)
        case SpaceToDepth():
            value = F.pixel_unshuffle(x, problem.block)  # channels come (c, dy, dx)
            n, _, p, q = value.shape
            value = value.reshape(n, problem.c, -1, p, q).permute(0, 3, 4, 2, 1).reshape(n, p, q, -1)
    return value


def _gated(x: torch.Tensor, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Squeeze-and-excitation."""
    folded = "squeezed" in given
    squeezed = given["squeezed"] if folded else x.sum((1, 2)) / (x.shape[1] * x.shape[2]) @ given["w1"].T
    hidden = (squeezed + given["b1"]).clamp_min(0)
    return x * sigmoid(hidden @ given["w2"].T + given["b2"])[:, None, None, :]


def _projected_pool(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The identity of a block that halves its image."""
    return _windows(given["x"], 2).mean((-1, -2)) @ given["projection"].flatten(1).T


def _windows(x: torch.Tensor, stride: int) -> torch.Tensor:
    """The pixels of 3x3 windows, padding 1: (n, p, q, c, 3, 3)."""
    return F.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 3, stride).unfold(2, 3, stride)


def _convolved(x: torch.Tensor, weight: torch.Tensor, stride: int = 1) -> torch.Tensor:
    """A 3x3 convolution, padding 1, of pixels gathered by hand."""
    return _windows(x, stride).flatten(3) @ weight.flatten(1).T


def run_chain(
    names: Sequence[str], value: torch.Tensor, given: Mapping[str, torch.Tensor], scalars: Sequence[float]
) -> dict[str, torch.Tensor]:
    """An epilogue by its steps' names: `y`, and what each `store` kept."""
    stored, kept = {}, None
    pointer = scalar = 0
    filters = iter(("weight1", "weight2") if names.count("conv") == 2 else ("weight2",))
    for name in names:
        if name == "store":
            stored[f"store{pointer}"] = value
            pointer += 1
            continue
        if name == "gate":
            value = _gated(value, given)
            continue
        if name == "conv":
            value = _convolved(value, given[next(filters)])
            continue
        if name == "keep":
            kept = value
            continue
        if name == "add_kept":
            value = value + kept
            continue
        if name == "project":
            value = value + (given["projected"] if "projected" in given else _projected_pool(given))
            continue
        wanted, function = MEANINGS[name.partition("@")[0]]
        arguments = []
        for operand in wanted:
            arguments.append(scalars[scalar] if operand == SCALAR else given[f"{operand}{pointer}"])
            scalar += operand == SCALAR
            pointer += operand != SCALAR
        value = function(value, *arguments)
    return {"y": value, **stored}


def _largest(
    x: torch.Tensor, window: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], shape: tuple[int, ...]
) -> torch.Tensor:
    """Max pooling by its definition: x (n, h, w, c), each window clipped to the image."""
    _, h, w, _ = x.shape
    y = torch.empty(shape, dtype=x.dtype)
    for i in range(shape[1]):
        for j in range(shape[2]):
            top, left = i * stride[0] - pad[0], j * stride[1] - pad[1]
            rows, columns = slice(max(0, top), min(h, top + window[0])), slice(max(0, left), min(w, left + window[1]))
            y[:, i, j] = x[:, rows, columns].amax((1, 2))
    return y


def _gradient(
    problem: Conv2dDgrad | Conv2dWgrad, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, of: torch.Tensor
) -> torch.Tensor:
    """The gradient of sum(dy * conv(x, weight)) by `of`, channels last, from autograd on the forward pass."""
    y = F.conv2d(x, weight, None, problem.stride, problem.pad, problem.dilation, problem.groups)
    (gradient,) = torch.autograd.grad((y * dy.movedim(-1, 1)).sum(), of)
    return gradient.movedim(1, -1)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected, in float64; infinite where a value is missing."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert actual.shape == expected.shape
    error = float((actual - expected).norm() / expected.norm())
    return error if math.isfinite(error) else math.inf


def assert_bytes_are_right(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Every byte is the expected real value rounded; where that lies near the middle of two, either will do."""
    expected = expected.clamp(-128, 127)
    exact = expected.round()
    near = (expected - expected.floor() - 0.5).abs() < 1e-3
    wrong = (actual.cpu().double() != exact) & ~near
    assert not wrong.any(), f"{name}: {int(wrong.sum())} of {wrong.numel()} bytes"
    assert (actual.cpu().double() - exact).abs().max() <= 1
    assert exact.std() > 5, "a test of saturated bytes would prove little"


SCALAR = "a scalar"


def sigmoid(v: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-v))


def normal_cdf(v: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-v / math.sqrt(2))


def cubic(v: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)


# Step -> its operands' names without their number, and what it computes.
MEANINGS: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "bias": (("bias",), lambda v, b: v + b),
    "scale": (("scale",), lambda v, s: v * s),
    "add": (("add",), lambda v, t: v + t),
    "add_scalar": ((SCALAR,), lambda v, s: v + s),
    "mul_scalar": ((SCALAR,), lambda v, s: v * s),
    "clamp": ((SCALAR, SCALAR), lambda v, low, high: v.clamp_min(low).clamp_max(high)),
    "relu": ((), lambda v: v.clamp_min(0)),
    "relu6": ((), lambda v: v.clamp_min(0).clamp_max(6)),
    "leaky_relu": ((SCALAR,), lambda v, slope: torch.where(v > 0, v, slope * v)),
    "sigmoid": ((), sigmoid),
    "hardsigmoid": ((), lambda v: (v / 6 + 0.5).clamp(0, 1)),
    "silu": ((), lambda v: v * sigmoid(v)),
    "hardswish": ((), lambda v: v * (v / 6 + 0.5).clamp(0, 1)),
    "tanh": ((), lambda v: 2 * sigmoid(2 * v) - 1),
    "gelu": ((), lambda v: v * normal_cdf(v)),
    "gelu_tanh": ((), lambda v: v * sigmoid(2 * cubic(v))),
    # custom steps, defined below
    "swish_b": ((SCALAR,), lambda v, beta: v * sigmoid(beta * v)),
    "bent": (
        (SCALAR, "slope.", "shift.", SCALAR),
        lambda v, up, m, b, c: torch.where(v > b, v - b, 0) * up + (v - b).clamp_max(0) * m + c,
    ),
}
STEPS = (*MEANINGS, "store")

define_step(
    "swish_b",
    cuda="x / (1.f + expf(-beta * x))",
    torch="x * torch.sigmoid(beta * x)",
    params={"beta": "scalar"},
)
define_step(
    "bent",
    cuda="fmaf(x > shift ? up : slope, x - shift, jump)",
    torch="torch.where(x > shift, up, slope) * (x - shift) + jump",
    params={"up": "scalar", "slope": "channel", "shift": "channel", "jump": "scalar"},
)


def random_epilogue(rng: random.Random) -> Epilogue:
    return Epilogue(tuple(rng.choices(STEPS, k=rng.randint(0, 4))))


# Values at which formulas break; the middle one is none.
SPECIAL = [
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        3e-7,
        0.3,
        -0.3,
        0.624,
        -0.626,
        1.0,
        -1.0,
        6.0,
    ),
    2.0,
    *(3.0, -3.0, -6.0, 20.0, -20.0, 88.5, -88.5, 104.5, -104.5, 1e4, -1e4, 1e30, -1e30, 3e38, -3e38),
]
ELEMENTWISE = [name for name in STEPS if name not in ("add", "store")]


def special_case(
    problem: Problem, values: torch.Tensor
) -> tuple[dict[str, torch.Tensor], tuple[float, ...], torch.Tensor]:
    """(tensors, scalars, expected y in float64) for "scale" and one other step: the step meets `values`, exactly.

    All inputs and weights are 1, so the problem's sum must be 1: one pixel, one input channel.
    """
    epilogue = problem.epilogue
    tensors = {operand.name: torch.ones(operand.shape, dtype=DTYPES[operand.dtype]) for operand in problem.operands()}
    tensors |= {a.name: torch.full(values.shape, 0.75) for a in epilogue.arguments if a.kind == "vector"}
    tensors["scale0"] = values
    scalars = (-0.5, 0.7) if "clamp" in epilogue.names else (0.25,) * epilogue.scalars
    precise = {key: tensor.double() for key, tensor in tensors.items()}
    expected, _ = epilogue.apply(torch.ones_like(precise["y"]), precise, scalars)
    tensors["y"].fill_(123.0)
    return tensors, scalars, expected


# -- kernels -------------------------------------------------------------------


def some_kernel(name, epilogue=""):
    """A legal kernel of a family: its first config on its newest architecture."""
    found = families.families()[name]
    arch = architecture(found.architectures[-1])
    target = f"sm_{arch.capability}" if arch.is_cuda else "x86-64"
    chain = Epilogue((*Epilogue.parse(epilogue).names, *found.operators[0].anchors))
    return Kernel.of(name, next(iter(found.configs(arch, arch.dtypes[0], chain))), arch.dtypes[0], chain, target)


def built_paths(kernels: Iterable[Kernel], jobs: int = 2) -> dict[Kernel, Path]:
    """Build kernels, all of which must compile."""
    paths: dict[Kernel, Path] = {}
    for built in ninja_build.build(list(dict.fromkeys(kernels)), jobs):
        assert built.path, built.error
        paths |= dict.fromkeys(built.unit.kernels, built.path)
    return paths


def candidate_of(kernel: Kernel, path: Path, launch: Config) -> Candidate:
    """A built kernel's candidate for one set of launch values."""
    chosen = family(kernel.family)
    values = {parameter.name: int(launch[parameter.name]) for parameter in chosen.launch_parameters}
    layouts = chosen.weight_layouts(kernel.values)
    return Candidate(
        kernel.family, kernel.config, rendering.symbol(kernel), chosen.kind, path, layouts, values, tuple(values)
    )


def random_inputs(problem: Problem, seed: int = 1) -> tuple[dict[str, torch.Tensor], tuple[float, ...]]:
    """(every input by its operand's name, the epilogue's scalars)"""
    generator = torch.Generator().manual_seed(seed)
    inputs = [operand for operand in problem.operands() if operand.role != "output"]
    tensors = {operand.name: random_tensor(operand, generator) for operand in inputs}
    return tensors, problem.epilogue.random_scalars(generator)


def assert_same_bits(case: CandidateBench, step: BoundStep, said: str) -> None:
    """A right result with the same bits in each of many runs on a GPU."""
    stream = torch.cuda.current_stream().cuda_stream
    results = []
    for _ in range(20):
        case.fill_nan()
        step.run(stream)
        torch.cuda.synchronize()
        assert case.check()[1] is None
        results.append(case.tensors["y"].clone())
    assert all(torch.equal(results[0], other) for other in results[1:]), said


def need_compiler(target: str, *, nvcc: bool = False) -> toolchain.Toolchain:
    """The compiler for a target, or skip the test; nvcc: where another does not say enough, or not the same."""
    try:
        found = toolchain.for_target(target)
    except ToolchainError as error:
        pytest.skip(str(error))
    if nvcc and not found.compiler.startswith("nvcc"):
        pytest.skip("no nvcc")
    return found


def assert_exported(kernels: Iterable[Kernel]) -> None:
    """Build device images, and find every kernel in its own with what prepares it. They share headers, so one core."""
    for kernel, path in built_paths(kernels, jobs=1).items():
        binary = path.read_bytes()
        symbol = rendering.symbol(kernel).encode()
        assert binary[:4] == b"\x7fELF"
        assert b"\0" + symbol + b"\0" in binary and b"\0" + symbol + b"_prepare\0" in binary, kernel


def assert_not_serialized(compiler, kernel, folder):
    """Compile a kernel and find no warning of ptxas that it serializes wgmma."""
    source = folder / f"unit{compiler.source_suffix}"
    source.write_text(rendering.unit([kernel]))
    [command] = compiler.commands(source, folder / "unit.cubin", rendering.folders(kernel))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serialized" not in done.stdout + done.stderr


def tried(worker: Worker, problem: Problem, candidates: Sequence[Candidate]) -> list[Result]:
    """What comes of candidates that are all sent before the first answer is read."""
    for chosen in candidates:
        worker.send(problem, chosen)
    return [worker.receive() for _ in candidates]


def documented_family(folder: Path) -> str:
    """Write the files of docs/guide/add-a-family.md to a folder; returns the command that tunes them."""
    page = (ROOT / "docs" / "guide" / "add-a-family.md").read_text()
    folder.mkdir()
    for before, text in re.findall(r"(.*?)\n```(?:python|jinja)\n(.*?)```", page, re.DOTALL):
        file = re.findall(r"`(\w+(?:\.\w+)?\.(?:py|j2))`", before)[-1]  # the last that is named
        folder.joinpath(file).write_text(text)
    return re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0]


# -- scripts, processes and threads -----------------------------------------------------------


def script(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one of scripts/ to its end in this process, which has imported torch already. variables: of its environment.

    What scripts change for their whole process is put back.
    """
    words, code = [f"{name}.py", *map(str, arguments)], 0
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        patch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        patch.chdir(ROOT)
        for variable, value in {"COLUMNS": "80", "AUTOTUNE_FAMILIES": "", **variables}.items():
            patch.setenv(variable, value)
        with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()) as complained:
            try:
                runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
            except SystemExit as end:
                code = int(end.code or 0)
    families.use([])
    return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())


def process(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one of scripts/ to its end in a process of its own."""
    return _run([sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)], **options)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own to its end."""
    return _run([sys.executable, "-c", code], **options)


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "timeout": HANG, "cwd": ROOT, **options}
    return subprocess.run(command, check=False, **settings)


def in_threads(work: Callable[..., object], jobs: Iterable[tuple[object, ...]]) -> None:
    """Runs work(*job) for each job in a thread of its own, all at once; raises what one of them raised."""
    failed: list[BaseException] = []

    def run(job: tuple[object, ...]) -> None:
        try:
            work(*job)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
