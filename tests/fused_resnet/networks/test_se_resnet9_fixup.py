"""The plain network against its description, implemented a second time from the words alone."""

import pytest
import torch
import torch.nn.functional as F
from comparison import relative_error
from seed_network import KEYS

from fused_resnet.networks import se_resnet9_fixup


def described(w, x):
    """The network as its description has it; w is a state_dict."""
    n, c, height, width = x.shape
    patches = torch.empty(n, 16 * c, height // 4, width // 4, dtype=x.dtype)
    for dy in range(4):
        for dx in range(4):
            for channel in range(c):
                patches[:, (dy * 4 + dx) * c + channel] = x[:, channel, dy::4, dx::4]
    x = F.conv2d(patches, w["stem.1.weight"]).clamp_min(0)
    for i, stride in enumerate((1, 2, 2, 2)):
        p = {key.removeprefix(f"layers.{i}.0."): value for key, value in w.items() if key.startswith(f"layers.{i}.0.")}
        a = F.conv2d(x + p["fixup_bias1a"], p["conv1.weight"], stride=stride, padding=1)
        b = (a + p["fixup_bias1b"]).clamp_min(0)
        c = F.conv2d(b + p["fixup_bias2a"], p["conv2.weight"], padding=1)
        d = c * p["fixup_scale"] + p["fixup_bias2b"]
        if stride == 1:
            identity = x
        else:
            padded = F.pad(x + p["fixup_bias1a"], (1, 1, 1, 1))
            pooled = padded.unfold(2, 3, stride).unfold(3, 3, stride).sum((-1, -2)) / 9
            identity = torch.einsum("nchw,kc->nkhw", pooled, p["downsample.1.weight"][:, :, 0, 0])
        mean = d.mean((2, 3))
        hidden = (mean @ p["se.excite.0.weight"].T + p["se.excite.0.bias"]).clamp_min(0)
        e = torch.sigmoid(hidden @ p["se.excite.2.weight"].T + p["se.excite.2.bias"])
        x = (d * e[:, :, None, None] + identity).clamp_min(0)
    return x


@pytest.mark.parametrize("channels", [1, 3])
def test_matches_its_description(channels):
    network = se_resnet9_fixup.randomize(se_resnet9_fixup.build(in_channels=channels), seed=channels).double()
    x = torch.randn(3, channels, 64, 64, dtype=torch.float64)
    expected = described(network.state_dict(), x)
    assert expected.shape == (3, 512, 2, 2) and expected.norm() > 1
    assert relative_error(network(x), expected) < 1e-13


def test_every_parameter_matters():
    """No parameter of a randomized network may be hidden by another: changing it changes the output."""
    network = se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed=1).double()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        expected = network(x)
        for name, parameter in network.named_parameters():
            kept = parameter.clone()
            parameter.add_(0.3 * parameter.abs().mean())
            assert relative_error(network(x), expected) > 1e-6, name
            parameter.copy_(kept)


def test_keys_are_to_the_letter():
    state = se_resnet9_fixup.build().state_dict()
    assert set(state) == KEYS
    assert tuple(state["stem.1.weight"].shape) == (64, 48, 1, 1)
    assert tuple(state["layers.3.0.conv1.weight"].shape) == (512, 256, 3, 3)
    assert tuple(state["layers.2.0.se.excite.0.weight"].shape) == (16, 256)
    assert tuple(state["layers.2.0.se.excite.2.weight"].shape) == (256, 16)
    assert all(tuple(state[f"layers.0.0.{name}"].shape) == (1,) for name in ("fixup_scale", "fixup_bias1a"))


def test_default_initialisation_is_fixup():
    state = se_resnet9_fixup.build().state_dict()
    for i in range(4):
        assert not state[f"layers.{i}.0.conv2.weight"].any()
        assert state[f"layers.{i}.0.fixup_scale"].item() == 1.0
        assert not any(state[f"layers.{i}.0.fixup_bias{name}"].any() for name in ("1a", "1b", "2a", "2b"))


def test_randomize_is_by_seed_and_leaves_nothing_at_its_default():
    first, same, other = (se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], same[key]) for key in KEYS)
    assert all(not torch.equal(first[key], other[key]) for key in KEYS)
    assert all((value != 0).double().mean() > 0.99 for value in first.values())


def test_trains():
    network = se_resnet9_fixup.randomize(se_resnet9_fixup.build()).train()
    network(torch.randn(2, 3, 64, 64)).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.norm() > 0 for parameter in network.parameters())


def test_a_calibrated_network_does_not_amplify_what_a_dead_channel_lets_through():
    """The first channel is 0 for the images of the calibration; other images may pass its ReLU by a little."""
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm2d(4))
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    x[:, 0] = -x[:, 0].abs()
    se_resnet9_fixup.calibrate(module, x)
    variances = x.clamp_min(0).transpose(0, 1).flatten(1).var(1)
    torch.testing.assert_close(module[1].running_var[1:], variances[1:])
    least = 0.01 * float(torch.tensor([0.0, *variances[1:]]).mean())
    assert float(module[1].running_var[0]) == pytest.approx(least, rel=1e-5)
