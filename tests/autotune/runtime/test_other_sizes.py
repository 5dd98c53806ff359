"""Plans and problems of other image sizes that serve a network."""

from dataclasses import replace

import pytest
from databases import put_cpu, put_time, put_torch_kernel
from two_layer_network import LAYERS, NETWORK

from autotune.ir import CallerTensor, Layer, Network, NetworkKey, network_text, parse, size_class
from autotune.runtime.other_sizes import batches, plan_for_other_size, size_source, tuned_sizes

CONV = "conv2d n={} h={} w={} c=8 k=8 r={} s=3 pad=1 dtype=f32 epilogue={}"


def sized(n, h, w=4, layers=NETWORK.layers, model="net"):
    """The network for n images of h x w pixels, with a key that tells it."""
    made = [replace(layer, problem=replace(layer.problem, n=n, h=h, w=w)) for layer in layers]
    key = NetworkKey(model, n, (("input", f"8x{h}x{w}"), ("dtype", "f32")), f"d{n}x{h}x{w}")
    return Network(key, tuple(made), (CallerTensor((n, 8, h, w), "f32"),), (CallerTensor((n, 8, h, w), "f32"),))


def put_plan(store, device, network, us, *, with_text=True, **details):
    choices = [{"layer": layer.name, "kernel": 1, "launch": {}, "us": us / 2} for layer in network.layers]
    plan = {"network": network.key, "median_us": us, "spread_us": 0.1, "choices": choices, "details": details}
    if with_text:
        store.put_network(network.key, network_text.write(network))
    return store.put_plan(device_id=device.id, **plan)


@pytest.mark.parametrize(
    ("n", "h", "expected"),
    [
        (1, 5, "size 8x4x4"),  # 1.25 x 10 us
        (1, 8, "size 8x4x4"),  # 2 x 10 us, less than the 30 us of a larger image
        (1, 15, "size 8x16x4"),  # 3.75 x 10 us, more than 30
        (1, 40, "size 8x16x4"),  # 2.5 x 30 us
        (8, 15, "batch 1, size 8x16x4"),  # 8 x 30 us; batch 4 of 8x4x4 takes 2 x 3.75 x 35
    ],
)
def test_the_plan_is_taken_from_which_the_shortest_time_is_expected(store, kernels, n, h, expected):
    device, _ = kernels
    for network, us in ((sized(1, 4), 10.0), (sized(1, 16), 30.0), (sized(4, 4), 35.0)):
        put_plan(store, device, network, us)
    found = plan_for_other_size(store, device, sized(n, h))
    assert found and found.is_resized and found.source == expected
    assert {name: problem.h for name, problem in found.problems.items()} == dict.fromkeys(
        LAYERS, int(expected.rpartition("size 8x")[2].partition("x")[0])
    )


def test_the_same_size_at_another_batch_is_no_other_image_size(store, kernels):
    device, _ = kernels
    other = replace(sized(2, 4), identity=sized(2, 4).identity.with_batch(2))
    put_plan(store, device, other, 10.0)
    wanted = replace(sized(6, 4), identity=replace(other.identity, batch=6))
    found = plan_for_other_size(store, device, wanted)
    assert found and (found.source, found.is_resized) == ("batch 2", False)


@pytest.mark.parametrize("difference", ["model", "text", "channels", "names"])
def test_the_plan_of_another_network_is_not_taken(store, kernels, difference):
    device, _ = kernels
    planned = sized(1, 4, model="other" if difference == "model" else "net")
    put_plan(store, device, planned, 10.0, with_text=difference != "text")
    layers = NETWORK.layers
    if difference == "channels":
        layers = [replace(one, problem=replace(one.problem, k=16)) for one in layers]
    if difference == "names":
        layers = [replace(one, name=f"{one.name}_of_another") for one in layers]
    assert plan_for_other_size(store, device, sized(1, 8, layers=layers)) is None


def test_a_few_further_layers_do_not_matter(store, kernels):
    """Code that depends on the size may resize or pad once more."""
    device, _ = kernels
    put_plan(store, device, sized(1, 4), 10.0)
    small = Layer("new", parse("conv2d n=1 h=4 w=4 c=8 k=1 dtype=f32"), {"x": "output", "y": "output1"})
    found = plan_for_other_size(store, device, sized(1, 8, layers=[*NETWORK.layers, small]))
    assert found and found.problems.keys() == LAYERS.keys()
    large = replace(small, problem=replace(small.problem, k=64))
    assert plan_for_other_size(store, device, sized(1, 8, layers=[*NETWORK.layers, large])) is None


def test_a_plan_on_torch_as_a_whole_is_for_its_own_size(store, kernels):
    device, _ = kernels
    put_plan(store, device, sized(1, 4), 10.0, alternatives=["torch"])
    assert plan_for_other_size(store, device, sized(1, 8)) is None


def test_problems_of_a_class_are_found_nearest_first(store):
    device, kernel = put_cpu(store), put_torch_kernel(store, "{}")
    alike = [(1, 64, 64), (4, 32, 32), (1, 20, 20), (16, 8, 8), (2, 64, 64)]
    for n, h, w in alike:
        put_time(store, device, parse(CONV.format(n, h, w, 3, "relu")), kernel)
    for other in (CONV.format(1, 64, 64, 5, "relu"), CONV.format(1, 64, 64, 3, "bias,relu")):
        put_time(store, device, parse(other), kernel)
    problem = parse(CONV.format(1, 64, 60, 3, "relu"))
    found = [(one.n, one.h, one.w) for one in tuned_sizes(store, problem)]
    assert found == [(1, 64, 64), (4, 32, 32), (2, 64, 64), (1, 20, 20), (16, 8, 8)]
    assert batches(store, parse(CONV.format(1, 64, 64, 3, "relu"))) == [1, 2]


def test_a_source_says_what_differs():
    problem = parse(CONV.format(2, 8, 6, 3, "none"))
    told = [size_source(replace(problem, **sizes), problem) for sizes in ({}, {"n": 1}, {"w": 5}, {"n": 3, "h": 9})]
    assert told == ["tuned", "batch 1", "size 8x5", "batch 3, size 9x6"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CONV.format(2, 8, 6, 3, "none"), "conv2d c=8 k=8 r=3 s=3 pad=1 dtype=f32 epilogue=none"),
        ("gemm m=8 n=64 k=32 dtype=f16 epilogue=bias", "gemm n=64 k=32 dtype=f16 epilogue=bias"),
        ("upsample n=1 h=4 w=4 c=8 p=8 q=8 rows=1,2 columns=1,2 mode=nearest", "upsample c=8 mode=nearest"),
        ("absent n=1 h=4 dtype=f16", "absent n=1 h=4 dtype=f16"),
    ],
)
def test_the_class_of_a_problem_is_its_text_without_sizes(text, expected):
    assert size_class(text) == expected
