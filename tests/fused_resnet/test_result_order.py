"""Results in the memory format of the plain network: layers of the plan convert them, and nothing behind it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from comparison import relative_error
from processes import process
from torch import nn

from autotune.ir.operators import ToChannelsLast
from fused_resnet import FusedResNet
from fused_resnet.call import ONE_TENSOR

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:.*is not tuned")]

LIMIT = 1e-5


class Heads(nn.Module):
    """Returns tensors of several shapes, one of which is read again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3, 2), nn.Conv2d(5, 1, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        return {
            "read again": a,
            "last": self.b(a),
            "one channel": self.c(a),
            "one pixel": a.mean((2, 3), keepdim=True),
            "three dimensions": a.flatten(2),
            "integers": a.argmax(1, keepdim=True).expand(-1, 2, -1, -1).contiguous(),
        }


def images(order=torch.contiguous_format, n=2):
    x = torch.randn(n, 3, 11, 12, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=order)


@pytest.fixture(scope="module")
def with_kernels(tmp_path_factory):
    """A database with kernels that convert the results of `Heads` and of a convolution for images of these sizes."""
    path = tmp_path_factory.mktemp("conversions") / "a.db"
    problems = [
        f"to_channels_last n={n} h=1 w={w} c={c} to={c} dtype=f32"
        for n, w, c in ((2, 5, 90), (2, 7, 16), (3, 5, 90), (3, 7, 16))
    ]
    given = [word for text in problems for word in ("--problem", text)]
    done = process("tune", "--arch", "cpu", "--trials", "1", *given, "--db", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(params=["empty_db", "with_kernels"])
def db(request):
    return request.getfixturevalue(request.param)


def heads(db, memory_format=torch.preserve_format):
    return FusedResNet.from_model(Heads().eval(), db, memory_format=memory_format, compile=False)


def conversions(network, x):
    _, context, _ = network._bound(x)
    own = context.plan.bound[len(context.plan.of_network) :]
    assert all(type(item.layer.problem) is ToChannelsLast for item in own)
    return [item.layer.name for item in own]


def assert_same(found, expected, order=None):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape and found[name].dtype == value.dtype, name
        if value.is_floating_point():
            assert relative_error(found[name], value) < LIMIT, name
        wanted = order if order and value.dim() == 4 else torch.contiguous_format
        assert found[name].is_contiguous(memory_format=wanted), name


@torch.no_grad()
def test_layers_with_kernels_write_the_results_that_are_contiguous(empty_db, with_kernels):
    assert conversions(heads(empty_db), images()) == []
    network, x = heads(with_kernels), images()
    assert_same(network(x), Heads().eval()(x))
    assert conversions(network, x) == ["output in torch's order", "output1 in torch's order"]
    first, second = (network(images(n=3))["last"] for _ in range(2))
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, second)


@torch.no_grad()
def test_channels_last_inputs_and_modules_need_no_such_layers(with_kernels):
    x, last = images(), images(torch.channels_last)
    assert_same(heads(with_kernels)(last), Heads().eval()(last), torch.channels_last)
    assert conversions(heads(with_kernels), last) == []
    network = heads(with_kernels, torch.channels_last)
    assert_same(network(x), Heads().eval()(x), torch.channels_last)
    assert conversions(network, x) == []


@torch.no_grad()
@pytest.mark.parametrize("module", [torch.preserve_format, torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("call", [torch.channels_last, torch.contiguous_format])
def test_a_call_may_ask_for_another_memory_format(db, module, call):
    network, x = heads(db, module), images()
    for _ in range(3):
        assert_same(network(x, memory_format=call), Heads().eval()(x), call)


@torch.no_grad()
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_out_is_written_directly_if_it_is_in_the_order_of_the_plan(with_kernels, order):
    plain, x = nn.Conv2d(3, 5, 3).eval(), images()
    network = FusedResNet.from_model(plain, with_kernels, memory_format=torch.preserve_format, compile=False)
    expected = network(x)
    for _ in range(3):  # the engine's fast path knows the input from the second call on
        out = torch.full((2, 5, 9, 10), torch.nan).contiguous(memory_format=order)
        address = out.data_ptr()
        assert network(x, out=out) is out and out.data_ptr() == address
        assert torch.equal(out, expected) and out.is_contiguous(memory_format=order)
        (written,) = network._run([x], ONE_TENSOR, out)
        assert (written is out) == (order is torch.contiguous_format)


@torch.no_grad()
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_tracers_learn_the_strides_of_the_results(db, order):
    network, x = heads(db), images(order)
    expected = network(x)
    fake = network._like_results([x], ONE_TENSOR)
    assert [one.stride() for one in fake] == [one.stride() for one in network._run_traced([x], ONE_TENSOR)]
    traced = torch.compile(lambda x: {name: value * 2 for name, value in network(x).items()}, backend="aot_eager")
    for name, value in traced(x).items():
        assert torch.equal(value, expected[name] * 2) and value.stride() == (expected[name] * 2).stride(), name


@torch.no_grad()
def test_calls_get_memory_of_their_own(db):
    plain = nn.Conv2d(3, 5, 3).eval()
    network = FusedResNet.from_model(plain, db, memory_format=torch.preserve_format, compile=False)
    inputs = [torch.randn(2, 3, 11, 12) for _ in range(6)]
    results = [network(x) for x in inputs]
    assert not any(one.data_ptr() == other.data_ptr() for one, other in itertools.pairwise(results))
    assert all(relative_error(y, plain(x)) < LIMIT for x, y in zip(inputs, results, strict=True))
