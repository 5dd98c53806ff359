"""FusedResNet among threads, processes and other networks. On the CPU."""

import multiprocessing
import threading
import warnings

import pytest
import torch
from comparison import relative_error
from processes import HANG, in_threads
from seed_network import LIMIT, assert_result, expected, fused, images
from torch import nn
from torch.utils.data import DataLoader, Dataset

from autotune.runtime import ExecutionContext
from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_threads_with_shapes_of_their_own_and_few_plans(tuned_db):
    network = fused(tuned_db)
    network._max_plans = 2  # so that threads take each other's plans away
    inputs = [images(n, seed=n) for n in (1, 2, 3, 4)]
    wanted = [expected(network, x) for x in inputs]
    wrong = []

    def work(start):
        for i in range(6):
            j = (start + i) % len(inputs)
            if relative_error(network(inputs[j]), wanted[j]) > LIMIT:
                wrong.append(j)

    in_threads(work, ((i,) for i in range(len(inputs))))
    assert not wrong and len(network._cache.contexts) <= 2


def test_a_plan_that_others_outrun_while_it_is_made_is_not_the_one_to_go(tuned_db, monkeypatch):
    network, known = fused(tuned_db), images(1)
    network._max_plans = 1
    network(known)

    class Slow(ExecutionContext):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            network(known)  # as another thread may

    monkeypatch.setattr("fused_resnet.planned_module.ExecutionContext", Slow)
    assert_result(network, x := images(2), network(x))
    assert [inputs[0][0][0] for _, _, inputs in network._cache.contexts] == [2]


def test_weights_that_change_while_a_plan_is_bound_are_seen(tuned_db, monkeypatch):
    network, x = fused(tuned_db), images(2)
    bind = network._bind

    def change():
        with torch.no_grad():
            network.stem[1].weight.mul_(1.5)
            network(images(1))  # which sees it first

    other = threading.Thread(target=change)

    def bind_slowly(inputs, arguments):
        plan = bind(inputs, arguments)
        if other.ident is None:
            other.start()
            other.join(0.5)
        return plan

    monkeypatch.setattr(network, "_bind", bind_slowly)
    network(x)
    other.join()
    assert_result(network, x, network(x))


@torch.no_grad()
def test_the_replicas_of_data_parallel_share_what_is_bound(tuned_db):
    network, x = fused(tuned_db), images(2)
    network(x)
    for scale in (1.0, 1.5):
        network.stem[1].weight.mul_(scale)
        replica = network._replicate_for_data_parallel()  # as torch does for each GPU and call
        replica._modules.clear()  # whose copies have plain tensors in the place of parameters
        assert not list(replica.parameters())
        assert_result(network, x, replica(x))
        assert replica._cache.contexts is network._cache.contexts and len(network._cache.contexts) == 1


def test_two_networks_side_by_side(tuned_db):
    one, other = fused(tuned_db, seed=1), fused(tuned_db, seed=2)
    x = images(2)
    for _ in range(3):
        assert_result(one, x, one(x))
        assert_result(other, x, other(x))


class Encoded(Dataset):
    """What a network makes of random images, in whichever process asks."""

    def __init__(self, network):
        self.network = network

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.network(images(1, seed=i))[0].clone()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader_workers(tuned_db, context):
    network = fused(tuned_db)
    network(images(1))  # the workers of a fork inherit the plan
    loader = DataLoader(Encoded(network), batch_size=2, num_workers=2, multiprocessing_context=context, timeout=HANG)
    found = torch.cat(list(loader))
    with torch.no_grad():
        for i, y in enumerate(found):
            assert_result(network, images(1, seed=i), y[None])


def test_a_fork_while_another_thread_runs(tuned_db):
    """The child must not wait for a lock that a thread of the parent held."""
    network, x = fused(tuned_db), images(1)
    network(x)
    ended = threading.Event()

    def work():
        while not ended.is_set():
            network(x)

    def child(queue):
        torch.set_num_threads(1)
        queue.put(network(x).double().sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks among threads
            children = [context.Process(target=child, args=(queue,)) for _ in range(4)]
            for process in children:
                process.start()
        sums = [queue.get(timeout=HANG) for _ in children]
        for process in children:
            process.join(HANG)
    finally:
        ended.set()
        thread.join()
    assert sums == pytest.approx([network(x).double().sum().item()] * 4, rel=1e-5)


def normed(depth):
    blocks = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*blocks).eval()


def test_first_calls_of_several_networks_in_parallel(empty_db):
    x, models = torch.randn(1, 3, 8, 8), [normed(4) for _ in range(4)]
    networks = [FusedResNet.from_model(model, empty_db, compile=False) for model in models]
    barrier, found = threading.Barrier(4), {}

    def work(i):
        barrier.wait(HANG)
        found[i] = networks[i](x)

    in_threads(work, ((i,) for i in range(4)))
    for i, model in enumerate(models):
        torch.testing.assert_close(found[i], model(x).detach())
        assert "forward" not in vars(networks[i]._plain)


def test_a_plan_outlasts_the_capture_of_another_shape_beside_it(empty_db):
    network, x = FusedResNet.from_model(normed(8), empty_db, compile=False), torch.randn(1, 3, 8, 8)
    network(x)
    plan = network._bound(x)[1].plan
    done = threading.Event()

    def calls():
        while not done.is_set():
            network(x)

    caller = threading.Thread(target=calls)
    caller.start()
    try:
        for n in (2, 3, 4):
            network(torch.randn(n, 3, 8, 8))
    finally:
        done.set()
        caller.join(HANG)
    assert network._bound(x)[1].plan is plan
