"""Inductor as a candidate: calls of torch's operators, compiled by torch's own compiler for one shape and device.

The weights are constants of the compiled code (freezing): Inductor folds batch norms into them and stores them in the
layout that its kernels read. The code writes the result to the layer's output, so that nothing is copied behind it.

torch._inductor is imported when something is compiled: importing it takes seconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import fx

from autotune.core import LibraryError
from autotune.ir import DTYPES, Operand, Problem, Tensors
from autotune.ir.operators import TorchCall
from autotune.libraries.aten import cudnn_setting, is_dependent
from autotune.libraries.inductor_timing import device_milliseconds, kernels_timed_in_turns

FAMILY = "inductor"
"""Name of the family in databases."""

DEFAULT, MAX_AUTOTUNE = "default", "max-autotune"
_COMMON = {"freezing": True, "cpp.dynamic_threads": True}
MODES = {
    DEFAULT: _COMMON,
    MAX_AUTOTUNE: {**_COMMON, "max_autotune": True, "coordinate_descent_tuning": True},
}
"""Options of torch._inductor.config by the name of the mode. `layout_optimization` (convolutions channels last) and the
absence of CUDA graphs are Inductor's defaults; the runtime captures the compiled code in a graph of its own.
`dynamic_threads` makes torch.set_num_threads apply to compiled code. A data loader's forked worker calls it, and
libgomp would wait for threads that did not survive the fork."""

_CPP_WRAPPER = {"cpp_wrapper": True}
"""An option for a CPU: C++ calls the operators, not Python, which saves microseconds of each call."""

_CONV2D_DEFAULTS: tuple[Any, ...] = (None, [1, 1], [0, 0], [1, 1], 1)
"""Arguments of aten.conv2d behind the image and the filters: bias, stride, padding, dilation, groups."""

COMPILE_SECONDS = {DEFAULT: 300.0, MAX_AUTOTUNE: 1200.0}
"""Deadline of one compilation, by mode. A network of a hundred layers takes a minute on two cores."""

SWITCH = "AUTOTUNE_INDUCTOR"
"""Environment variable: 0 compiles nothing."""

_REPORTS = ("autotune_num_choices_displayed", "max_autotune_report_choices_stats")
"""Options that print reports, not in all versions of torch."""
_PROCESS = os.getpid()
"""The process that imported this module; a forked one has another number."""
_MIN_CAPABILITY = 7
"""Least major compute capability that triton supports."""


def configs(problem: Problem, modes: tuple[str, ...] = (DEFAULT,)) -> list[dict[str, str]]:
    """Return the configs of a problem's candidates, one for each mode; none if Inductor does not solve the problem."""
    return [{"mode": mode} for mode in modes] if isinstance(problem, TorchCall) and not problem.epilogue.names else []


def compile_seconds(family: str, config: str) -> float:
    """Return the deadline of compiling a candidate; 0 for one of another family."""
    return COMPILE_SECONDS.get(json.loads(config)["mode"], 0.0) if family == FAMILY else 0.0


def compiles(candidate: str) -> bool:
    """Return whether Inductor compiles a candidate, by its text in the details of a plan."""
    return candidate.startswith(FAMILY)


def is_wanted(choice: bool | None = None) -> bool:
    """Return a caller's choice; without one, whether the environment variable SWITCH allows to compile."""
    return os.environ.get(SWITCH) != "0" if choice is None else choice


def why_unavailable(device: torch.device) -> str | None:
    """Return why Inductor cannot compile for a device; None if nothing is known that stands in its way."""
    if device.type == "cpu":
        import shlex  # compiles a regular expression, which a first result need not wait for

        compiler = (shlex.split(os.environ.get("CXX", "")) or ["g++"])[0]
        return None if shutil.which(compiler) else f"there is no C++ compiler ({compiler})"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= _MIN_CAPABILITY else f"triton does not support compute capability {major}.{minor}"


def bind(
    problem: Problem, config: Mapping[str, str], tensors: Tensors, device: torch.device, channels_last: bool = False
) -> Callable[[Tensors], None]:
    """Compile a problem's calls and return a function that runs them and fills the output.

    Args:
        problem: The problem.
        config: One of `configs(problem, MODES)`.
        tensors: The weights by name, and any other operands that are the same in each run.
        device: Where it runs.
        channels_last: Whether inputs in torch's order of axes are channels last in memory.

    Returns:
        run(late): solves the problem; the tensors in `late` replace those of the same name.

    Raises:
        LibraryError: Inductor does not solve the problem, or cannot compile it.
    """
    if not isinstance(problem, TorchCall) or problem.epilogue.names:
        raise LibraryError(f"Inductor compiles calls of torch's operators, and not '{problem}'")
    if config["mode"] not in MODES:
        raise LibraryError(f"Inductor has no mode '{config['mode']}': there are {', '.join(MODES)}")
    if reason := why_unavailable(device):
        raise LibraryError(f"Inductor is not available: {reason}")
    activations = [operand.name for operand in problem.operands() if operand.role in ("input", "output")]
    weights = {name: tensor for name, tensor in tensors.items() if name not in activations}
    images = {} if channels_last or device.type == "cpu" else _channels_last_images(problem, weights, device)
    call = _call(problem, MODES[config["mode"]], weights, device, channels_last or bool(images))

    def run(late: Tensors) -> None:
        operands = {**tensors, **late}
        operands |= {name: image.copy_(operands[name]) for name, image in images.items()}
        call(*(operands[name] for name in activations))

    def run_with_setting(late: Tensors) -> None:
        with cudnn_setting(problem, device):
            run(late)

    return run_with_setting if is_dependent(problem, device) else run


def _call(
    problem: TorchCall, options: Mapping[str, object], weights: Tensors, device: torch.device, channels_last: bool
) -> Callable[..., object]:
    """Return the compiled calls, as `_compiled` does; on a CPU in C++ if that compiles."""
    if device.type == "cpu":
        with suppress(LibraryError):
            return _compiled(problem, {**options, **_CPP_WRAPPER}, weights, device, channels_last)
    return _compiled(problem, options, weights, device, channels_last)


def _compiled(
    problem: TorchCall, options: Mapping[str, object], weights: Tensors, device: torch.device, channels_last: bool
) -> Callable[..., object]:
    """Return the compiled calls: activations and the output in the order of the operands -> nothing.

    The compiler runs in a thread of its own, so that no tracer, autocast, gradient or inference mode of this thread
    applies. This thread holds the lock of torch.compile, whose options are global.
    """
    constants = {name: _plain(tensor) for name, tensor in weights.items()}

    def work() -> Callable[..., object]:
        with torch.no_grad(), _on(device):
            module, examples = _graph(problem, constants, device, channels_last)
            config = torch._inductor.config
            more: dict[str, object] = {name: 0 for name in _REPORTS if hasattr(config, name)}
            if os.getpid() != _PROCESS:
                more["compile_threads"] = 1  # the threads of Inductor's pool do not survive a fork
            if device.type == "cpu":
                more["post_grad_custom_pre_pass"] = KeepNan()
            # On a GPU most of the time goes to triton's kernels, which have a cache of their own.
            with (
                cached_compilation() if device.type == "cpu" else nullcontext(),
                kernels_timed_in_turns(device, benchmark=device_milliseconds),
            ):
                compiled: Callable[..., object] = torch._inductor.compile(module, examples, options={**options, **more})
                compiled(*examples)  # the first run loads and tunes kernels, which must not happen in a capture
            return compiled

    try:
        import torch._inductor.compile_fx
        from torch._dynamo.convert_frame import compile_lock

        from autotune.libraries.inductor_cache import cached_compilation
        from autotune.libraries.inductor_nan import KeepNan

        with compile_lock, ThreadPoolExecutor(1) as thread:
            return thread.submit(work).result()
    except torch.OutOfMemoryError:
        raise  # it may work when there is memory again
    except Exception as error:  # a compiler's errors have no common base
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise LibraryError(f"Inductor cannot compile: {type(error).__name__}: {' '.join(lines[:2])}") from error


def _graph(
    problem: TorchCall, constants: Tensors, device: torch.device, channels_last: bool
) -> tuple[fx.GraphModule, list[Any]]:
    """Return the calls as a graph that writes its last result to its last argument, and examples of its arguments."""
    aten = torch.ops.aten
    root, graph = torch.nn.Module(), fx.Graph()
    values: list[Any] = []
    examples: list[Any] = []
    for operand in problem.inputs:
        if operand.name in constants:
            root.register_parameter(operand.name, torch.nn.Parameter(constants[operand.name], requires_grad=False))
            values.append(graph.get_attr(operand.name))
            continue
        value = graph.placeholder(operand.name)
        examples.append(_example(operand, device, channels_last and operand.name in problem.in_torch_order))
        if problem.is_channels_last(operand):
            n, h, w, c = operand.shape  # as as_nchw views it
            one = (aten.reshape.default, (value, [n, c, h, w]))
            more = (aten.permute.default, (value, [0, 3, 1, 2]))
            value = graph.call_function(*(one if c == 1 else more))
        values.append(value)
    output = graph.placeholder("y")
    examples.append(_example(problem.operands()[-1], device))
    for call in problem.calls:
        function, args, kwargs = call.resolve(values, device)
        values.append(graph.call_function(function, args, kwargs))
    result = values[-1]
    if len(problem.shape) == 4:
        result = graph.call_function(aten.permute.default, (result, [0, 2, 3, 1]))
    graph.call_function(aten.copy_.default, (output, result))
    graph.output(())
    module = fx.GraphModule(root, graph)
    _write_small_convolutions_as_products(module, examples, device)
    if device.type == "cuda":
        _store_filters_channels_last(module)
    return module, examples


def _store_filters_channels_last(module: fx.GraphModule) -> None:
    """Store filters as images are, channels last, so that no run converts them.

    Inductor does so itself, but not in a network with grouped convolutions.
    """
    aten = torch.ops.aten
    for node in module.graph.nodes:
        readers = [user for user in node.users if user.target in (aten.convolution.default, aten.conv2d.default)]
        if node.op == "get_attr" and readers and len(readers) == len(node.users):
            parameter = module.get_parameter(node.target)
            if parameter.dim() == 4 and all(user.args[1] is node for user in readers):
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _write_small_convolutions_as_products(module: fx.GraphModule, examples: list[Any], device: torch.device) -> None:
    """Write small 1x1 convolutions as matrix products.

    On a CPU these are the ones that torch itself does not give to oneDNN: freezing gives it all convolutions, and its
    fixed costs exceed the work of a small one. On a GPU they are the ones of images of one pixel, as in gates of
    channels, for which cuBLAS is faster than cuDNN.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*examples)
    aten, graph = torch.ops.aten, module.graph
    for node in [one for one in graph.nodes if one.target is aten.conv2d.default and _is_product(one, device)]:
        x, filters, bias = (*node.args, None)[:3]
        n, _, height, width = node.meta["val"].shape
        k, c = filters.meta["val"].shape[:2]
        with graph.inserting_before(node):
            pixels = graph.call_function(aten.permute.default, (x, [0, 2, 3, 1]))
            rows = graph.call_function(aten.reshape.default, (pixels, [n * height * width, c]))
            matrix = graph.call_function(aten.reshape.default, (filters, [k, c]))
            product = graph.call_function(aten.linear.default, (rows, matrix, bias))
            image = graph.call_function(aten.reshape.default, (product, [n, height, width, k]))
            node.replace_all_uses_with(graph.call_function(aten.permute.default, (image, [0, 3, 1, 2])))
        graph.erase_node(node)
    module.recompile()


def _is_product(node: Any, device: torch.device) -> bool:
    """Return whether a convolution is a matrix product of its pixels, and small."""
    given: tuple[Any, ...] = node.args
    x, filters, bias, stride, padding, dilation, groups = given + _CONV2D_DEFAULTS[len(given) - 2 :]
    image, kernel = x.meta["val"], filters.meta["val"]
    if node.kwargs or image.dim() != 4 or tuple(kernel.shape[2:]) != (1, 1) or groups != 1:
        return False
    if {*stride} != {1} or {*padding} != {0}:
        return False
    if device.type == "cuda":
        return tuple(image.shape[2:]) == (1, 1)
    empty = [torch.empty(one.shape, dtype=one.dtype) for one in (image, kernel)]
    sizes = [kernel.shape[0]] if bias is not None else None
    torch_c: Any = torch._C  # stubs name its enumeration otherwise
    chosen = torch_c._select_conv_backend(*empty, None, stride, padding, dilation, False, [0, 0], groups, sizes)
    return bool(chosen == torch_c._ConvBackend.Slow2d)


def _channels_last_images(problem: TorchCall, constants: Tensors, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a buffer, channels last, for each image that comes in torch's order.

    Copying an image first is faster than what Inductor compiles for one in torch's order: on an H100 MobileNetV3-large
    at batch 128 takes 2304 us from an image in that order, 2249 us with the copy, and 2200 us from one channels last.
    """
    return {
        operand.name: _example(operand, device, channels_last=True)
        for operand in problem.inputs
        if operand.name in problem.in_torch_order and operand.name not in constants and len(operand.shape) == 4
    }


def _example(operand: Operand, device: torch.device, channels_last: bool = False) -> torch.Tensor:
    example = torch.zeros(operand.shape, dtype=DTYPES[operand.dtype], device=device)
    return example.contiguous(memory_format=torch.channels_last) if channels_last else example


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that compiled code may hold: no inference tensor."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make a GPU current, and wait for it before and after: the threads that compile and run have other streams."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        yield
        torch.cuda.synchronize()
