"""Networks as layers: their keys, other batch sizes, alternatives, and the order of layers."""

import pytest
from crossed_network import crossed_network

from autotune.core import ProblemError
from autotune.ir import INPUT, OUTPUT, Alternative, CallerTensor, Layer, Network, NetworkKey, digest, parse

CONV = "conv2d n={n} h=4 w=4 c=8 k=8 dtype=f32"


def layer(name, x, y, n=2):
    return Layer(name, parse(CONV.format(n=n)), {"x": x, "y": y}, {"weight": f"{name}.weight"})


def network(n=2, key=None):
    """Two branches, a and b, behind a first layer; c adds nothing but its place behind b."""
    layers = (
        layer("first", INPUT, "shared", n),
        layer("a", "shared", "left", n),
        layer("b", "shared", "right", n),
        layer("c", "right", OUTPUT, n),
    )
    key = key or NetworkKey("net", n, (("dtype", "f32"),), digest(layers))
    both = Alternative("both", ("b", "c"), (layer("b+c", "shared", OUTPUT, n),))
    early = Alternative("early", ("first", "b"), (layer("f", INPUT, "shared", n), layer("b2", "shared", "right", n)))
    return Network(
        key, layers, (CallerTensor((n, 8, 4, 4), "f32"),), (CallerTensor((n, 8, 4, 4), "f32"),), (both, early)
    )


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("se_resnet9_fixup n=1 in_channels=3 dtype=f16", 1),
        ("ResNet n=32 input=3x224x224 dtype=f16 1ba3d518a22f", 32),
        ("ResNet n=128 input=3x32x32 dtype=f32+int8 a3c51e1e2bfa", 128),
        ("net", None),
        ("net dtype=f32", None),
    ],
)
def test_a_keys_text_is_read_back_to_the_letter(text, batch):
    key = NetworkKey.parse(text)
    assert (str(key), key.batch) == (text, batch)
    assert str(key.with_batch(7)).replace("n=7", f"n={batch}") == text or batch is None


@pytest.mark.parametrize("text", ["net 12 34", "net 12 n=4", "net  n=4", "net n=04"])
def test_another_text_is_no_key(text):
    with pytest.raises(ProblemError, match="is not the key of a network: write it as 'MODEL n=BATCH"):
        NetworkKey.parse(text)


def test_another_batch_size_changes_problems_shape_and_digest():
    changed = network(2).with_batch(6)
    assert changed == network(6) and changed.key != network(2).key
    assert {one.problem.batch for one in changed.all_layers} == {6} and changed.results[0].shape == (6, 8, 4, 4)
    plain = network(2, NetworkKey("net", 2)).with_batch(6)
    assert plain.key == "net n=6"


def names(layers):
    return [one.name for one in layers]


def test_an_alternatives_layers_run_where_the_last_of_the_replaced_ran():
    assert names(network().layers_with([])) == ["first", "a", "b", "c"]
    assert names(network().layers_with(["both"])) == ["first", "a", "b+c"]
    assert names(network().layers_with(["early"])) == ["f", "a", "b2", "c"]  # a waits for what f writes


def test_no_layer_is_replaced_twice():
    with pytest.raises(ProblemError, match="both and early replace a layer twice"):
        network().layers_with(["both", "early"])


def test_alternatives_that_wait_for_each_other_are_not_taken_together():
    made = crossed_network()
    assert all(made.can_take([name]) for name in ("a1+b2", "b1+a2")) and not made.can_take(["a1+b2", "b1+a2"])
    with pytest.raises(ProblemError, match=r"crossed.*: a1\+b2 and b1\+a2 wait for each other's results"):
        made.layers_with(["a1+b2", "b1+a2"])
    assert network().can_take(["both"]) and not network().can_take(["both", "early"])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["b", "a"], ["first", "b", "c", "a"]),  # c follows b, the layer before it
        (["c", "b", "a", "first"], ["first", "b", "c", "a"]),  # as far as the inputs allow
        (["first", "b", "a", "c"], ["first", "b", "a", "c"]),
        (["unknown"], ["first", "a", "b", "c"]),
    ],
)
def test_layers_keep_an_order_as_far_as_their_inputs_allow(order, expected):
    assert names(network().layers_with([], order)) == expected
