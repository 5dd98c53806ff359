"""Which layers stay out of bytes for a limit of the loss: measured on the network that runs."""

import pickle

import pytest
import torch
from architectures import ResNet, images, random_model
from torch import nn

from autotune.core import ProblemError
from autotune.ir import BYTE_FORMATS
from fused_resnet import FusedResNet
from fused_resnet.quantization import compare
from fused_resnet.quantization.calibrate import calibrate
from tuning_db import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "empty.db"
    Store.create(path).close()
    return path


def loss_of(model, database, scales, x):
    network = FusedResNet.from_model(model, database, precision=scales.precision, calibration=scales, compile=False)
    with torch.no_grad():
        return compare(model(x), network(x)).error, network.explain(x)


@pytest.mark.process
@pytest.mark.parametrize("form", BYTE_FORMATS.values(), ids=BYTE_FORMATS)
def test_the_loss_of_the_network_is_within_the_limit(form, generator, database):
    model, x = random_model(ResNet("basic")).eval(), images(4)
    free = calibrate(model, [x], precision=form.precision)
    unlimited, explained = loss_of(model, database, free, x)
    assert free.sensitive == {} and unlimited > 0.002
    limit = 0.8 * unlimited
    scales = calibrate(model, [x], max_loss=limit, precision=form.precision)
    limited, shorter = loss_of(model, database, scales, x)
    assert 0 < limited < 1.01 * limit, "sums of the simulation differ by rounding in float32 only"
    in_bytes = [sum(row.dtype == form.dtype for row in rows) for rows in (explained, shorter)]
    assert 0 < in_bytes[1] < in_bytes[0]
    assert all("alone changes the results" in shorter.kept[name] for name in scales.sensitive)
    assert scales == free and pickle.loads(pickle.dumps(scales)).sensitive == scales.sensitive


def test_the_layers_beside_an_outlier_are_kept(generator):
    """One channel is a thousand times larger than the others, so that these round to few bytes."""
    convs = [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1, bias=False) for i in range(6)]
    model = nn.Sequential(*[part for conv in convs for part in (conv, nn.ReLU())]).eval()
    with torch.no_grad():
        for conv in convs:
            conv.weight.normal_(0, (2 / conv.weight[0].numel()) ** 0.5, generator=generator)
        convs[2].weight[5] *= 1000
        convs[3].weight[:, 5] /= 1000
    x = torch.randn(2, 3, 12, 12, generator=generator)
    assert calibrate(model, [x], max_loss=10.0).sensitive == {}
    kept = calibrate(model, [x], max_loss=0.05).sensitive
    assert kept.keys() == {"4", "6"}, "the layer that writes the channel, and the one that reads it"


def test_a_limit_that_nothing_meets_keeps_all_layers(generator):
    model, x = random_model(ResNet("basic")).eval(), images(1)
    kept = calibrate(model, [x], max_loss=1e-9).sensitive
    assert {"layer1.0.conv1", "layer1.1.conv2"} <= kept.keys()


@pytest.mark.parametrize("limit", [0.0, "1%"])
def test_a_limit_must_be_positive(limit):
    with pytest.raises(ProblemError, match=f"max_loss must be a positive number.* it is {limit!r}"):
        calibrate(nn.Conv2d(3, 16, 3), [torch.zeros(1, 3, 8, 8)], max_loss=limit)
