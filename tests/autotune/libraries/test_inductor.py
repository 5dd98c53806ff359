"""Inductor as a candidate: right results, and what runs where it is missing, fails or is not wanted."""

import copy
import multiprocessing
import warnings
from dataclasses import replace

import psutil
import pytest
import torch
import torch._inductor.config  # reads CXX when it is imported, which a test changes
from architectures import Function
from comparison import relative_error
from processes import HANG, in_threads
from random_networks import draw
from torch import nn

from autotune.core import LibraryError
from autotune.ir import parse
from autotune.ir.operators import TorchCall
from autotune.libraries import inductor
from autotune.measure import Worker
from autotune.runtime import Candidate, ExecutionContext, NetworkPlan
from fused_resnet import FusedResNet
from fused_resnet.call import module_state
from fused_resnet.capture import capture
from tuning_db import open_reader

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned", "ignore:.*LeafSpec", "ignore::DeprecationWarning")


class Model(nn.Module):
    """A convolution with batch norm, operators without kernels of ours, and a linear layer."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, 5)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        x = torch.cat([x, x.softmax(1)], 1)[:, ::2]
        return self.linear(x.mean((2, 3)))


def model(seed=0, channels=8):
    torch.manual_seed(seed)
    made = Model(channels).eval()
    nn.init.uniform_(made.norm.running_var, 0.5, 2.0)
    nn.init.normal_(made.norm.running_mean)
    return made


def images(n=2, seed=1, size=12):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def exact(plain, x):
    return copy.deepcopy(plain).double()(x.double())


def kernels(network, x):
    return [row.kernel.split()[0] for row in network.explain(x)]


@pytest.mark.compile
@torch.no_grad()
def test_a_random_network_compiled_as_a_whole(empty_db):
    plain, x = draw(8, blocks=1)
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    assert kernels(network, x) == ["inductor"]
    assert relative_error(network(x), exact(plain, x)) < 1e-5
    if x.dim() == 4:
        assert relative_error(network(x.contiguous(memory_format=torch.channels_last)), exact(plain, x)) < 1e-5
    for module in (plain, network):
        for parameter in module.parameters():
            parameter.mul_(1.1)
    assert relative_error(network(x), exact(plain, x)) < 1e-5


@pytest.mark.compile
@torch.no_grad()
def test_a_region_is_compiled_between_layers_on_other_operators(empty_db):
    plain, x = model(), images()
    network = replace(capture(plain, tuple(x.shape), "f32"), alternatives=())
    with open_reader(empty_db) as store:
        plan = NetworkPlan(network, module_state(plain), store, CPU, graph=False, use_inductor=True)
    made = {item.layer.name: (item.choice.candidate.family, item.choice.source) for item in plan.bound}
    regions = {layer.name for layer in network.layers if isinstance(layer.problem, TorchCall)}
    assert regions and {name for name, (family, _) in made.items() if family == "inductor"} == regions
    assert {made[name][1] for name in regions} == {"Inductor"}
    context = ExecutionContext(plan, graph=False)
    y = torch.full_like(context.template, float("nan"))
    context.run([x], [y], stream=0)
    assert relative_error(y, exact(plain, x)) < 1e-5


def test_without_a_compiler_the_network_runs_as_in_torch_and_says_why(empty_db, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++ -O3")
    plain, x = model(), images()
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    with pytest.warns(UserWarning, match="1 from 'untuned'.*Inductor compiles nothing: .*/nonexistent/c") as caught:
        y = network(x)
    assert len(caught) == 1 and torch.equal(y, plain(x))
    assert [(row.layer, row.kernel.split()[0]) for row in network.explain(x)] == [("the network", "aten")]


@torch.no_grad()
def test_a_failure_of_the_compiler_warns_once(empty_db, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("C++ compile error\n\ncommand: false")

    monkeypatch.setattr(torch._inductor, "compile", fail)
    plain, x = model(), images()
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        y = network(x)
        network(x)
    said = [str(one.message) for one in caught if "not tuned" in str(one.message)]
    assert len(said) == 1 and "Inductor cannot compile: RuntimeError: C++ compile error command: false" in said[0]
    assert torch.equal(y, plain(x)) and kernels(network, x) == ["aten"]


def test_it_is_switched_off_by_the_argument_and_the_environment(empty_db, monkeypatch):
    plain, x = model(), images()
    assert len(kernels(FusedResNet.from_model(plain, empty_db, compile=False), x)) > 1
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    assert len(kernels(FusedResNet.from_model(plain, empty_db), x)) > 1
    assert inductor.is_wanted(True) and not inductor.is_wanted()
    monkeypatch.delenv("AUTOTUNE_INDUCTOR")
    assert inductor.is_wanted() and not inductor.is_wanted(False)


def test_only_calls_of_torch_are_compiled():
    problem = parse("gemm m=2 n=3 k=4 dtype=f32")
    assert inductor.configs(problem, tuple(inductor.MODES)) == []
    with pytest.raises(LibraryError, match="compiles calls of torch's operators, and not 'gemm"):
        inductor.bind(problem, {"mode": "default"}, {}, CPU)
    call = capture(model(), (2, 3, 12, 12), "f32").whole.layers[0].problem
    with pytest.raises(LibraryError, match="no mode 'fast': there are default, max-autotune"):
        inductor.bind(call, {"mode": "fast"}, {}, CPU)


@pytest.mark.compile
@torch.no_grad()
def test_a_module_compiles_a_bounded_number_of_plans(empty_db, monkeypatch):
    monkeypatch.setattr("fused_resnet.planned_module._MAX_COMPILED_PLANS", 1)
    plain = model()
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    assert kernels(network, images()) == ["inductor"]
    with pytest.warns(UserWarning, match="no more than 1 plans"):
        y = network(images(3))
    assert relative_error(y, exact(plain, images(3))) < 1e-5


@pytest.mark.compile
@torch.no_grad()
def test_inside_tracers_and_threads(empty_db):
    plain, x = model(), images()
    expected = exact(plain, x)

    def fresh():
        return FusedResNet.from_model(plain, empty_db, compile=True)

    network = fresh()
    compiled = torch.compile(lambda x: network(x) + 1, backend="eager")
    assert relative_error(compiled(x) - 1, expected) < 1e-5
    network = fresh()
    exported = torch.export.export(network, (x,))
    assert relative_error(exported.module()(x), expected) < 1e-5
    network = fresh()
    traced = torch.jit.trace(network, x)
    assert relative_error(traced(x), expected) < 1e-5
    network = fresh()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert relative_error(network(x), expected) < 1e-5

    def run(n):
        assert relative_error(network(images(n)), exact(plain, images(n))) < 1e-5

    in_threads(run, [(n,) for n in (2, 3, 3)])
    assert set(kernels(network, x)) == {"inductor"}


@pytest.mark.process
@torch.no_grad()
def test_in_a_forked_process(empty_db):
    plain = model()
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    network(images())

    def child(queue):
        torch.set_num_threads(1)  # as a data loader does in its workers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            queue.put([network(images()).numpy(), network(images(3)).numpy(), kernels(network, images(3))])

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forked = context.Process(target=child, args=(queue,))
        forked.start()
    known, new, made = queue.get(timeout=HANG)
    forked.join()
    assert made == ["inductor"]
    assert relative_error(torch.from_numpy(known), exact(plain, images())) < 1e-5
    assert relative_error(torch.from_numpy(new), exact(plain, images(3))) < 1e-5


@pytest.mark.process
def test_the_measuring_process_verifies_and_times_it_and_leaves_no_process():
    network = capture(model(), (2, 3, 12, 12), "f32")
    problem = network.whole.layers[0].problem
    family, good = inductor.FAMILY, '{"mode": "default"}'
    mine = psutil.Process()
    before = set(mine.children(recursive=True))
    with Worker("cpu") as worker:
        worker.send(problem, Candidate(family, good, ""))
        result = worker.receive()
        assert result.status == "ok" and result.median_us and result.relative_error < 1e-5, result
        assert [final.status for final in worker.finals(problem, [Candidate(family, good, "")], 3)] == ["ok"]
        worker.send(parse("gemm m=2 n=3 k=4 dtype=f32"), Candidate(family, good, ""))
        assert worker.receive().status == "refused"
    assert set(mine.children(recursive=True)) <= before


def gated():
    """Return convolutions by one pixel: small, with and without a bias, strided, and too large for a product."""

    def forward(m, x):
        x = m.norm(m.small(m.strided(m.large(x).relu())))
        return x * m.gate(x.mean((2, 3), keepdim=True)).sigmoid()

    large = {"large": nn.Conv2d(3, 16, 1), "strided": nn.Conv2d(16, 16, 1, stride=4)}
    small = {"small": nn.Conv2d(16, 8, 1, bias=False), "gate": nn.Conv2d(8, 8, 1)}
    return Function(forward, **large, **small, norm=nn.BatchNorm2d(8))


@pytest.mark.compile
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@torch.no_grad()
def test_small_convolutions_by_one_pixel_are_products(empty_db, monkeypatch, memory_format):
    written, write = [], inductor._write_small_convolutions_as_products

    def spy(module, examples, device):
        write(module, examples, device)
        written.extend(str(node.target) for node in module.graph.nodes)

    monkeypatch.setattr(inductor, "_write_small_convolutions_as_products", spy)
    torch.manual_seed(0)
    plain, x = gated().eval(), images(1, size=96).contiguous(memory_format=memory_format)
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    assert relative_error(network(x), exact(plain, x)) < 1e-5
    assert (written.count("aten.linear.default"), written.count("aten.conv2d.default")) == (2, 2)
