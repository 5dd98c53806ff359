"""When the memory of a plan is freed that is dropped while others are bound. tests/gpu has the streams themselves."""

import random
import weakref

import pytest
import torch
from processes import in_threads

from autotune.runtime import binding_stream
from autotune.runtime.binding_stream import free_with, holding_dropped

GPU, OTHER = torch.device("cuda", 98), torch.device("cuda", 99)


class Plan:
    """Owns its memory as a plan does; `freed` becomes None when the memory is freed."""

    def __init__(self, device):
        self.memory = {"weights"}
        self.freed = weakref.ref(self.memory)
        free_with(self, device, self.memory)


def drop(device):
    """Return whether the memory of a plan stays when it is dropped, as a function."""
    freed = Plan(device).freed
    return lambda: freed() is not None


def test_without_a_binding_memory_goes_with_its_plan():
    plan = Plan(GPU)
    assert plan.freed() is not None
    assert not drop(GPU)() and not drop(torch.device("cpu"))()


def test_memory_stays_until_all_bindings_on_its_gpu_have_ended():
    with holding_dropped(GPU.index):
        first = drop(GPU)
        with holding_dropped(GPU.index):
            second, elsewhere = drop(GPU), drop(OTHER)
            assert first() and second() and not elsewhere()
        assert first() and second() and drop(GPU)()
    assert not first() and not second() and not drop(GPU)()


def test_a_binding_that_fails_keeps_nothing():
    with pytest.raises(MemoryError), holding_dropped(GPU.index):
        stays = drop(GPU)
        assert stays()
        raise MemoryError
    assert not stays() and not drop(GPU)()


def test_nothing_is_left_when_many_threads_bind_and_drop():
    def work(seed):
        rng = random.Random(seed)
        for _ in range(300):
            with holding_dropped(GPU.index):
                assert all(drop(GPU)() for _ in range(rng.randint(0, 3)))

    in_threads(work, ((seed,) for seed in range(8)))
    assert not binding_stream._dropped.get(GPU.index) and not binding_stream._binding[GPU.index]
