"""Profiles on the CPU: the module of each operator, the sums, and the counted work."""

import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from autotune.core import AutotuneError, UnknownNameError
from autotune.profiling import attribution, match_modules, record, summary
from autotune.profiling.tree import tree

CALLS = 2
LIMITS = {"flops_per_us": 1e5, "bytes_per_us": 1e4}


class Block(nn.Module):
    def __init__(self, planes, groups):
        super().__init__()
        self.conv = nn.Conv2d(planes, planes, 3, padding=2, dilation=2, groups=groups)
        self.norm = nn.BatchNorm2d(planes)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)) + x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 5, 2, 2, bias=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 1), Block(8, 4))
        self.down = nn.AvgPool2d(2)
        self.gate = nn.Sigmoid()
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.blocks(self.pool(self.stem(x)))
        x = self.down(x)
        x = x * self.gate(x.mean((2, 3), keepdim=True))
        return self.head(x.mean((2, 3))) * 0.5


@pytest.fixture(scope="module")
def net():
    return Net().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def x():
    return torch.randn(3, 3, 33, 29, generator=torch.Generator().manual_seed(0))


def recorded(module, x):
    about = {"model": "test", "variant": "eager", "limits": LIMITS}
    return record.record(record.of_module(module, x), x.device, CALLS, about)


@pytest.fixture(scope="module")
def trace(net, x):
    return recorded(net, x)


@pytest.fixture(scope="module")
def profile(trace):
    return attribution.read(trace)


class Seen(TorchDispatchMode):
    """Every operator that a network calls: the module that it is called in, and the bytes that it touches."""

    def __init__(self, root):
        super().__init__()
        self.tracker, self.root = ModuleTracker(), root
        self.calls, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        parents = [name for name in self.tracker.parents if name != "Global"]
        path = max(parents, key=len).removeprefix(self.root).removeprefix(".")
        key = (path, function._schema.name)
        self.calls[key] += 1
        outputs = result if isinstance(result, tuple) else (result,)
        tensors = [value for value in (*args, *outputs[:1]) if isinstance(value, torch.Tensor)]
        self.bytes[key] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


@pytest.fixture(scope="module")
def seen(net, x):
    seen = Seen("Net")
    with torch.inference_mode(), seen.tracker, seen:
        net(x)
    return seen


# -- attribution on a CPU ----------------------------------------------------------------------------------------------


def test_every_operator_belongs_to_the_module_that_called_it(profile, seen):
    found = Counter()
    for module in profile.modules.values():
        for operator in module.operators.values():
            found[module.path, operator.name] += operator.calls
    assert found == seen.calls
    assert {("blocks.0.conv", "aten::conv2d"), ("blocks.1", "aten::add"), ("", "aten::mul")} <= found.keys()
    assert not profile.unattributed


def test_modules_have_their_paths_classes_and_calls(profile, net):
    assert {path: module.kind for path, module in profile.modules.items()} == {
        path: type(module).__name__ for path, module in net.named_modules()
    }
    assert all(module.calls == 1 for module in profile.modules.values())


def test_times_add_up_to_the_recorded_calls(trace, profile):
    calls = [event for event in trace["traceEvents"] if re.fullmatch(r"module:", event["name"])]
    assert len(calls) == CALLS
    whole = sum(event["dur"] for event in calls) / CALLS
    assert profile.total_us == pytest.approx(whole, rel=1e-6)
    assert profile.total_us <= profile.about["profiled_us"]
    root = tree(profile)
    assert root.us + root.wait_us == pytest.approx(whole, rel=1e-6)
    assert root.host_us == pytest.approx(whole, rel=1e-6)
    assert sum(library.us for library in summary.libraries(root)) == pytest.approx(root.us)


def test_a_shared_module_goes_by_its_first_path():
    shared = nn.Linear(4, 4)
    module = nn.Sequential(shared, nn.ReLU(), shared).eval()
    profile = attribution.read(recorded(module, torch.randn(2, 4)))
    assert {path: found.calls for path, found in profile.modules.items()} == {"": 1, "0": 2, "1": 1}
    assert [operator.calls for operator in profile.modules["0"].operators.values()] == [2]


def test_no_hook_is_left(net, trace):
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_module_that_raises_leaves_no_hook_and_no_open_range(net, x):
    with pytest.raises(RuntimeError, match="channels"):
        recorded(net, x[:, :2])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert attribution.read(recorded(net, x)).modules.keys() == dict(net.named_modules()).keys()


# -- work --------------------------------------------------------------------------------------------------------------


def test_products_are_counted_as_torch_counts_them(profile, net, x):
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        net(x)
    products = ("aten::conv2d", "aten::linear")
    counted = {
        path: sum(operator.flops for operator in module.operators.values() if operator.name in products)
        for path, module in profile.modules.items()
    }
    assert sum(counted.values()) == counter.get_total_flops()
    modules = counter.get_flop_counts()
    for path in ("stem", "blocks.0.conv", "blocks.1.conv", "head"):
        assert counted[path] == sum(modules[f"Net.{path}"].values()) > 0


def test_bytes_are_those_of_the_tensors_that_are_read_and_written(profile, seen):
    compared = set()
    for module in profile.modules.values():
        by_name = Counter()
        for operator in module.operators.values():
            by_name[operator.name] += operator.bytes
        for name, moved in by_name.items():
            assert moved == seen.bytes[module.path, name], (module.path, name)
            compared.add(name.removeprefix("aten::"))
    assert compared >= {"conv2d", "batch_norm", "relu", "add", "mul", "max_pool2d", "avg_pool2d", "mean", "linear"}


def test_the_limit_is_that_of_products_or_of_memory(profile):
    assert profile.limit_us(2e5, 1e4) == 2
    assert profile.limit_us(2e5, 5e4) == 5


# -- attribution on a GPU ----------------------------------------------------------------------------------------------


def test_a_gpus_time_is_divided_among_kernels_and_waits_without_remainder():
    """One call: a kernel within an operator, one that overlaps it in no operator, a gap, and one of no module."""

    def event(category, name, start, us, **args):
        tid = 7 if category == "kernel" else 1
        return {"ph": "X", "cat": category, "name": name, "pid": tid, "tid": tid, "ts": start, "dur": us, "args": args}

    events = [
        event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=9),  # before the call
        event("user_annotation", "call:0", 10, 80),
        event("user_annotation", "module:", 11, 60),
        event("user_annotation", "module:a", 12, 30),
        event("cpu_op", "aten::relu", 13, 20),
        event("cpu_op", "aten::clamp_min", 14, 10),
        event("cuda_runtime", "cudaLaunchKernel", 15, 2, correlation=1),
        event("cuda_driver", "cuLaunchKernelEx", 40, 1, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 80, 2, correlation=3),
        event("kernel", "spin_kernel", 6, 94, correlation=9),
        event("kernel", "first", 100, 10, correlation=1),
        event("kernel", "second", 108, 6, correlation=2),
        event("kernel", "third", 120, 5, correlation=3),
    ]
    about = {"device_type": "cuda", "calls": 1, "modules": {}, "layers": {}, "limits": LIMITS}
    profile = attribution.read({"traceEvents": events, record.ABOUT: about})
    kernels = {kernel.name: kernel for kernel in profile.kernels()}
    assert {name: (kernel.us, kernel.wait_us) for name, kernel in kernels.items()} == {
        "first": (10, 0), "second": (6, -2), "third": (5, 6),
    }  # fmt: skip
    assert profile.total_us == 25  # from 100 to 125
    assert list(profile.unattributed) == ["third"]
    operators = profile.modules["a"].operators
    assert [operator.name for operator in operators.values()] == ["aten::relu", "no operator"]
    assert kernels["first"].chain == ("aten::clamp_min",)


# -- trees -------------------------------------------------------------------------------------------------------------


def test_layers_are_found_by_patterns(profile):
    root = tree(profile)
    assert [node.path for node in match_modules(root, "blocks.*")] == ["blocks.0", "blocks.1"]
    assert [node.path for node in match_modules(root, "blocks*")] == ["blocks"]
    with pytest.raises(UnknownNameError, match=r"no layer matches 'layer9.*stem"):
        match_modules(root, "layer9")


def test_traces_of_others_are_refused():
    with pytest.raises(AutotuneError, match="not recorded by"):
        attribution.read({"traceEvents": []})
