"""FusedResNet as a part of torch: layouts, memory, tracers, autocast. On the CPU."""

import copy

import pytest
import torch
from architectures import Function
from seed_network import fused, images

from fused_resnet import FusedResNet, InputError
from fused_resnet.call import ONE_TENSOR
from fused_resnet.torch_op import is_traced
from tuning_db import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture(scope="module")
def net(tuned_db):
    """A network for tests that leave it as it is."""
    return fused(tuned_db)


# -- tracers -------------------------------------------------------------------


class Holder(torch.nn.Module):
    """A model with the network inside."""

    def __init__(self, network):
        super().__init__()
        self.encoder = network
        self.head = torch.nn.Linear(512, 5)

    def forward(self, x):
        return self.head(self.encoder(2 * x).mean((2, 3)))


@pytest.fixture
def holder(net):
    torch.manual_seed(0)
    return Holder(net).eval()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_graph_break(holder, backend):
    compiled = torch.compile(holder, fullgraph=True, backend=backend, dynamic=True)
    for n in (2, 3):
        x = images(n, seed=n)
        torch.testing.assert_close(compiled(x), holder(x))


def test_exported(holder):
    batch = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    program = torch.export.export(holder, (images(2),), dynamic_shapes=batch)
    assert any("fused_resnet.run" in str(node.target) for node in program.graph.nodes)
    for n in (2, 5):
        torch.testing.assert_close(program.module()(images(n)), holder(images(n)))


def test_traced_by_jit_and_fx(holder):
    traced = torch.jit.trace(holder, images(2), check_trace=False)
    recorded = torch.fx.experimental.proxy_tensor.make_fx(holder)(images(2))
    x = images(2, seed=1)
    assert torch.equal(traced(x), holder(x)) and torch.equal(recorded(x), holder(x))


def test_the_operator_keeps_torchs_rules(net):
    assert not is_traced(images(1))
    torch.library.opcheck(torch.ops.fused_resnet.run.default, ([images(2)], net._number, ONE_TENSOR))


def test_a_traced_program_whose_network_is_gone_says_so():
    with pytest.raises(InputError, match="number 987654"):
        torch.ops.fused_resnet.run([images(1)], 987654, ONE_TENSOR)


def test_any_module_compiles_though_it_was_never_called(tmp_path):
    """While torch.compile traces it, it is captured for the first time."""
    Store.create(tmp_path / "empty.db").close()
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    network, x = FusedResNet.from_model(module, tmp_path / "empty.db"), torch.randn(2, 3, 7, 6)
    y = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(y, module(x), atol=1e-5)


def test_what_cannot_be_captured_ends_a_compilation_in_an_error(tmp_path):
    """torch.cond compiles its branches, while the compilation that looks for the network's shape holds the lock."""
    Store.create(tmp_path / "empty.db").close()
    either = Function(lambda m, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))).eval()
    network = FusedResNet.from_model(either, tmp_path / "empty.db")
    with pytest.raises(Exception, match="the model calls torch's cond"):
        torch.compile(network, fullgraph=True, backend="aot_eager")(torch.randn(2, 3, 4, 4))


# -- modes -------------------------------------------------------------------


def test_autocast_changes_what_is_taken_and_not_what_is_computed(net):
    x = images(2)
    rounded = x.bfloat16()
    y, of_rounded = net(x), net(rounded.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(net(x), y)
        assert torch.equal(net(rounded), of_rounded)
        assert torch.equal(torch.compile(net, fullgraph=True, backend="aot_eager")(rounded), of_rounded)
    with pytest.raises(InputError, match="bfloat16"):
        net(rounded)


def test_an_input_that_requires_a_gradient_is_refused(net):
    x = images(1).requires_grad_()
    with pytest.raises(InputError, match=r"detach\(\).*no_grad\(\).*train\(\)"):
        net(x)
    with pytest.raises(InputError, match="gradient"):
        torch.ops.fused_resnet.run([x], net._number, ONE_TENSOR)
    with torch.no_grad():
        assert torch.equal(net(x), net(x.detach()))
    assert copy.deepcopy(net).train()(x).requires_grad


class Averaged(torch.nn.Conv2d):
    def forward(self, x):
        return super().forward(x).mean(0)


def test_a_result_without_the_batch_has_its_own_shape_in_traced_code(empty_db):
    network = FusedResNet.from_model(Averaged(3, 8, 1).eval(), empty_db, compile=False)

    def sizes(x):
        y = network(x)
        return y.sum() + y.shape[0]

    compiled = torch.compile(sizes, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (2, 3, 5):
        x = torch.randn(n, 3, 4, 4)
        torch.testing.assert_close(compiled(x), sizes(x))
