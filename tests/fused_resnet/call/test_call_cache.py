"""Calls that run without Python between input and launch, and the plans that are kept."""

import gc
import weakref

import pytest
import torch
from seed_network import assert_result, fused, images

from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def shortly(network, x, out=None):
    return network._cache.calls.run(x, out)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="a torch before 2.10")
def test_the_engine_runs_what_it_knows(tuned_db):
    network, x = fused(tuned_db), images(2)
    assert shortly(network, x) is None
    y, other = network(x), images(2, seed=3)
    assert_result(network, other, shortly(network, other))
    out = torch.full_like(y, float("nan"))
    assert shortly(network, x, out) is out and torch.equal(out, y)
    unlike = [images(3), x.double(), x.to(memory_format=torch.channels_last), x.expand(2, 3, 64, 64)[:, :, ::2], x[0]]
    unaligned = torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape)
    assert [shortly(network, given) for given in (*unlike, unaligned, None, "x")] == [None] * 8
    assert [shortly(network, x, given) for given in (y[:1], y.contiguous(), y.double(), "y")] == [None] * 4
    with torch.no_grad():
        network.stem[1].weight *= 2
    assert shortly(network, x) is None and shortly(network, x) is None
    assert_result(network, x, network(x))
    assert_result(network, other, shortly(network, other))


def test_an_older_torch_takes_the_long_way(tuned_db, monkeypatch):
    monkeypatch.setattr("fused_resnet.call.call_cache.EXCHANGE", None)
    network, x = fused(tuned_db), images(2)
    y = network(x)
    assert shortly(network, x) is None and torch.equal(network(x), y)
    assert_result(network, x, y)


def test_the_engine_forgets_what_is_no_longer_kept(tuned_db):
    network = FusedResNet(tuned_db, plans=1)
    network(images(1))
    network(images(2))
    assert shortly(network, images(1)) is None


def test_a_cache_that_a_thread_still_holds_keeps_no_plan(tuned_db):
    network = fused(tuned_db)
    network(images(1))
    held, plan = network._cache, weakref.ref(network.context(images(1))[1].plan)
    network.rebind()
    gc.collect()
    assert plan() is None and held is not network._cache


def test_whoever_changes_what_a_call_does_is_heard(tuned_db):
    network, x = fused(tuned_db), images(2)
    y = network(x)
    hooks = [
        (network.register_forward_hook, lambda module, given, result: result + 1, y + 1),
        (network.register_forward_pre_hook, lambda module, given: (2 * given[0],), network(2 * x)),
        (torch.nn.modules.module.register_module_forward_hook, lambda module, given, result: result + 2, y + 2),
    ]
    for register, hook, wanted in hooks:
        handle = register(hook)
        assert torch.equal(network(x), wanted)
        handle.remove()
    network.forward = lambda given: given
    assert network(x) is x
    del network.forward
    assert torch.equal(network(x), y)

    class Doubled(FusedResNet):
        def forward(self, x):
            return 2 * super().forward(x)

    doubled = Doubled(tuned_db)
    doubled.load_state_dict(network.state_dict())
    assert [torch.equal(doubled(x), 2 * y) for _ in range(2)] == [True, True]


def test_only_so_many_plans_are_kept(tuned_db):
    network = FusedResNet(tuned_db, plans=3)
    for n in (1, 2, 3, 4, 2, 5):
        network(images(n))
    assert sorted(inputs[0][0][0] for _, _, inputs in network._cache.contexts) == [2, 4, 5]
    assert_result(network, images(1), network(images(1)))
