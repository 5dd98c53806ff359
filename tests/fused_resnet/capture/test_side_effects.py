"""Side effects of a capture: no container of the user holds a tensor without values afterwards."""

import functools
from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
import torch
from architectures import Function
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from autotune.core import CaptureError
from fused_resnet.capture import capture

KEPT = {}
LAST = None


class Recorder:
    """Keeps features in attributes, as a callable and by a method."""

    def __init__(self):
        self.features, self.last = {}, None

    def __call__(self, module, inputs, output):
        self.features["y"], self.last = output, output

    def record(self, module, inputs, output):
        self(module, inputs, output)


def in_a_dictionary():
    kept = {"y": 1, "all": []}

    def hook(module, inputs, output):
        kept["y"] = output.detach()
        kept["all"].append(output)
        kept.setdefault("new", []).append((output,))

    return hook, lambda: kept, {"y": 1, "all": []}


def in_a_defaultdict():
    kept = defaultdict(list)
    return lambda module, inputs, output: kept["y"].append(output), lambda: dict(kept), {}


def in_a_deque():
    kept = deque([1, 2], maxlen=2)
    return lambda module, inputs, output: kept.append(output), lambda: list(kept), [1, 2]


def in_a_variable():
    last = None

    def hook(module, inputs, output):
        nonlocal last
        last = output

    return hook, lambda: last, None


def in_globals():
    def hook(module, inputs, output):
        global LAST  # noqa: PLW0603
        LAST = KEPT["y"] = output

    return hook, lambda: (LAST, KEPT), (None, {})


def in_a_default(kept={"n": 0}):  # noqa: B006
    def hook(module, inputs, output, kept=kept):
        kept["y"] = output

    return hook, lambda: kept, {"n": 0}


def in_a_namespace():
    kept = SimpleNamespace(y=None)
    return lambda module, inputs, output: setattr(kept, "y", output), lambda: kept.y, None


def in_an_object():
    recorder = Recorder()
    return recorder, lambda: vars(recorder), {"features": {}, "last": None}


def by_a_partial_function():
    recorder = Recorder()
    return functools.partial(Recorder.record, recorder), lambda: vars(recorder), {"features": {}, "last": None}


def counted():
    kept = {"calls": 0}

    def hook(module, inputs, output):
        kept["calls"] += 1

    return hook, lambda: kept, {"calls": 1}


PLACES = (
    in_a_dictionary, in_a_defaultdict, in_a_deque, in_a_variable, in_globals, in_a_default, in_a_namespace,
    in_an_object, by_a_partial_function, counted,
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_what_a_hook_keeps_at_a_capture_is_removed_again(place):
    hook, kept, expected = place()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval()
    model[0].register_forward_hook(hook)
    capture(model, (2, 3, 8, 8), "f32")
    assert kept() == expected


def test_what_forward_keeps_is_removed_if_it_is_refused():
    kept = []

    def keeps(m, x):
        kept.append(x)
        return x.relu() if x.sum() > 0 else x

    with pytest.raises(CaptureError):
        capture(Function(keeps).eval(), (2, 3, 8, 8), "f32")
    assert not kept


def test_tensors_with_values_stay():
    kept = {}
    model = Function(lambda m, x: m.conv(x), conv=nn.Conv2d(3, 4, 1)).eval()
    model.conv.register_forward_hook(lambda module, inputs, output: kept.update(y=output))
    x = torch.randn(2, 3, 8, 8)
    model(x)
    before = kept["y"]
    capture(model, (2, 3, 8, 8), "f32")
    assert kept["y"] is before and not is_fake(kept["y"])
