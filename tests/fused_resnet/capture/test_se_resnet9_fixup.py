"""The layers of SE-ResNet9-Fixup, and each alternative to some of them, against the plain network."""

import pytest
import torch
from comparison import relative_error
from reference import solve
from seed_network import KEYS, network

from autotune.core import ProblemError
from autotune.ir import INPUT, OUTPUT, evaluate
from autotune.ir.operators import Conv2d
from fused_resnet.networks import se_resnet9_fixup


def layers_of(n=2, in_channels=3, dtype="f32"):
    return network(n, in_channels, dtype).layers


@pytest.mark.parametrize(("n", "channels"), [(1, 3), (3, 1), (8, 4)])
def test_every_tensor_is_made_before_it_is_read_and_fits(n, channels):
    shapes = {INPUT: (n, channels, 64, 64)}
    for layer in layers_of(n, channels):
        operands = layer.problem.operands()
        assert {operand.name for operand in operands} == set(layer.buffers) | set(layer.weights)
        for operand in operands:
            if operand.role == "output":
                assert layer.buffers[operand.name] not in shapes, "written twice"
                shapes[layer.buffers[operand.name]] = operand.shape
            elif operand.name in layer.buffers:
                assert shapes[layer.buffers[operand.name]] == operand.shape
    assert shapes[OUTPUT] == (n, 2, 2, 512)


def test_every_parameter_is_used_and_fits():
    state = se_resnet9_fixup.build().state_dict()
    used = set()
    for layer in layers_of():
        for operand in layer.problem.operands():
            if key := layer.weights.get(operand.name):
                matrix = operand.shape[:2] if layer.problem.operator == "se_tail" else operand.shape
                assert tuple(state[key].shape) == tuple(matrix)
                used.add(key)
        assert len(layer.scalars) == layer.problem.epilogue.scalars
        used |= set(layer.scalars)
    assert used == KEYS == set(state)


def test_the_work_is_what_the_network_takes():
    """15.6 GFLOP in eight 3x3 convolutions and 0.6 in four 1x1, at a batch of 128."""
    convs = [layer.problem for layer in layers_of(128) if isinstance(layer.problem, Conv2d)]
    large, small = ([conv.flops / 1e9 for conv in convs if conv.r == size] for size in (3, 1))
    assert (len(large), len(small)) == (8, 4)
    assert sum(large) == pytest.approx(15.6, rel=0.15) and sum(small) == pytest.approx(0.6, rel=0.1)
    assert sorted({round(flops, 2) for flops in large}) == [1.21, 2.42]


@pytest.mark.parametrize("channels", [1, 3])
def test_layers_solved_one_by_one_are_the_network(channels):
    plain = se_resnet9_fixup.randomize(se_resnet9_fixup.build(in_channels=channels), seed=5).double()
    state = plain.state_dict()
    x = torch.randn(3, channels, 64, 64, dtype=torch.float64)
    tensors = {INPUT: x}
    for layer in layers_of(3, channels):
        given = {operand: tensors[name] for operand, name in layer.buffers.items() if name in tensors}
        given |= {operand: state[key] for operand, key in layer.weights.items()}
        solved = solve(layer.problem, given, [float(state[key]) for key in layer.scalars])
        tensors |= {layer.buffers[name]: value for name, value in solved.items()}
    assert relative_error(tensors[OUTPUT].permute(0, 3, 1, 2), plain(x)) < 1e-12


ALTERNATIVES = network(3).alternatives


@pytest.mark.parametrize("alternative", ALTERNATIVES, ids=lambda alternative: alternative.name)
def test_an_alternative_is_what_it_replaces(alternative):
    plain = se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed=5).double()
    state, x = plain.state_dict(), torch.randn(3, 3, 64, 64, dtype=torch.float64)
    tensors = {INPUT: x}
    for layer in network(3).layers_with([alternative.name]):
        shapes = {operand.name: operand.shape for operand in layer.problem.operands()}
        given = {key: tensors[name].reshape(shapes[key]) for key, name in layer.buffers.items() if name in tensors}
        given |= {operand: evaluate(state, source) for operand, source in layer.weights.items()}
        solved = solve(layer.problem, given, [float(evaluate(state, source)) for source in layer.scalars])
        tensors |= {layer.buffers[name]: value for name, value in solved.items()}
    wanted = plain(x).permute(0, 2, 3, 1)
    assert relative_error(tensors[OUTPUT].reshape(wanted.shape), wanted) < 1e-12


def test_a_block_is_one_alternative_while_its_image_has_more_than_a_few_pixels():
    names = [alternative.name for alternative in ALTERNATIVES if alternative.name.endswith("block")]
    assert names == ["layers.0.0.block", "layers.1.0.block", "layers.2.0.block", "stem.block"]


def test_stem_and_block_in_one_kernel_come_behind_what_they_exclude():
    net = network(3)
    assert [alternative.name for alternative in ALTERNATIVES[-2:]] == ["stem.block", "stem.block.pool"]
    assert [layer.name for layer in net.layers_with(["stem.block", "layers.1.0.block"])][:2] == [
        "stem.block",
        "layers.1.0.block",
    ]
    for other in ("stem", "layers.0.0.block", "layers.0.0.se.se.folded"):
        with pytest.raises(ProblemError, match="replace a layer twice"):
            net.layers_with([other, "stem.block"])


def test_a_pool_that_a_block_has_comes_before_who_reads_it():
    layers = network(3).layers_with(["stem.block.pool", "layers.1.0.conv2.se_skip"])
    assert [layer.name for layer in layers][:3] == ["stem.block.pool", "layers.1.0.conv1", "layers.1.0.conv2.se_skip"]
    assert layers[0].buffers["pooled"] == layers[2].buffers["skip"]


def test_layers_keep_to_an_order_where_they_do_not_wait_for_each_other():
    net = network(3)
    plain = [layer.name for layer in net.layers_with([])]
    names = [f"layers.1.0.{name}" for name in ("conv1", "conv2", "downsample.0", "downsample.1")]
    conv, second, pool, project = names
    first = plain.index(conv)
    assert plain[first : first + 4] == names
    # The projection reads the pool, so it stays behind it.
    for asked, given in (
        ([pool, conv, second, project], [pool, conv, second, project]),
        ([project, pool, conv, second], [pool, project, conv, second]),
    ):
        order = [*plain[:first], *asked, *plain[first + 4 :]]
        assert [layer.name for layer in net.layers_with([], order)] == [*plain[:first], *given, *plain[first + 4 :]]
    # What the order does not name stays behind what it was behind.
    order = [name for name in plain if name not in (conv, pool, project)]
    assert [layer.name for layer in net.layers_with([], order)] == plain
    found = [layer.name for layer in net.layers_with(["layers.1.0.downsample.1.pooled"], [*plain[:first], pool, conv])]
    assert found[first : first + 3] == [conv, second, "layers.1.0.downsample.1.pooled"]


@pytest.mark.parametrize(("n", "other"), [(1, 128), (128, 1), (8, 5)])
def test_the_same_network_at_another_batch_size(n, other):
    assert network(n, dtype="f16").with_batch(other) == network(other, dtype="f16")
