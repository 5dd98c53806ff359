"""Calls that run without Python between input and launch, and the plans that are kept."""

import gc
import random
import weakref

import pytest
import torch
from comparison import relative_error
from seed_network import LIMIT, assert_result, fused, images, plain, weights

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
    network = FusedResNet(tuned_db, max_plans=1)
    network(images(1))
    network(images(2))
    assert shortly(network, images(1)) is None


def test_a_cache_that_a_thread_still_holds_keeps_no_plan(tuned_db):
    network = fused(tuned_db)
    network(images(1))
    held, plan = network._cache, weakref.ref(network._bound(images(1))[1].plan)
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
    network = FusedResNet(tuned_db, max_plans=3)
    for n in (1, 2, 3, 4, 2, 5):
        network(images(n))
    assert [inputs[0][0][0] for _, inputs in network._cache.plans] == [4, 2, 5]
    assert_result(network, images(1), network(images(1)))


def test_plans_of_one_stream_share_activations_and_weights(tuned_db):
    """For 24 sizes in any order there are the activations of the largest, and each packed weight once."""
    network, sizes = FusedResNet(tuned_db, max_plans=64), [(n, 3, 64, 16 * w) for n in (1, 2, 3) for w in range(2, 10)]
    network.load_state_dict(weights(3, 0))
    random.Random(0).shuffle(sizes)
    inputs = [torch.randn(size) for size in sizes]
    alone = [fused(tuned_db)(x) for x in inputs]
    for x, y in [*zip(inputs, alone, strict=True)] * 2:
        assert torch.equal(network(x), y)
    contexts, plans = network._cache.contexts.values(), network._cache.plans.values()
    assert len(plans) == len(contexts) == len(sizes) and len({id(context.memory) for context in contexts}) == 1
    assert next(iter(contexts)).memory.block.numel() == max(plan.activation_bytes for plan in plans)
    each = [{tensor.data_ptr() for bound in plan.bound for tensor in bound.step.keep} for plan in plans]
    assert len(set().union(*each)) <= 1.2 * max(map(len, each))  # a layer has kernels with several layouts


def test_plans_for_several_states_of_the_weights_share_nothing(tuned_db):
    network, x = fused(tuned_db), images(1)
    before, wanted = network(x), plain(seed=1)(x).detach()
    network.load_state_dict(weights(3, 1))
    assert relative_error(network(x), wanted) < LIMIT and relative_error(network(images(2))[:1], wanted) < LIMIT
    assert not torch.equal(network(x), before)
