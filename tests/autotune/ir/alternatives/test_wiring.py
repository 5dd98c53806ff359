"""Wiring: the layers that write and read each tensor of a network."""

from autotune.ir import Epilogue, Layer
from autotune.ir.alternatives.wiring import Wiring, common_name
from autotune.ir.operators import Conv2d, Gemm


def conv(name, x, y, chain="none", **buffers):
    problem = Conv2d(n=1, h=4, w=4, c=8, k=8, dtype="f16", epilogue=Epilogue.parse(chain))
    return Layer(name, problem, {"x": x, "y": y, **buffers})


def test_the_only_reader_of_a_result_reads_it_once_and_not_beside_the_caller():
    a, b, c = conv("a", "input", "u"), conv("b", "u", "v", "add", add0="u"), conv("c", "v", "output")
    wiring = Wiring([a, b, c])
    assert [wiring.only_reader(layer) for layer in (a, b, c)] == [None, c, None]
    assert wiring.readers("u") == [b] and wiring.maker("v") is b and wiring.maker("input") is None


def test_a_successor_reads_the_result_as_its_input_in_the_same_shape():
    a, b, adds = conv("a", "input", "u"), conv("b", "input", "v"), conv("adds", "v", "w", "add", add0="u")
    flat = Layer("flat", Gemm(m=1, n=2, k=128, dtype="f16"), {"x": "w", "y": "output"})
    wiring = Wiring([a, b, adds, flat])
    assert wiring.only_reader(a) is adds and wiring.successor(a) is None
    assert wiring.successor(b) is adds
    assert wiring.only_reader(adds) is flat and wiring.successor(adds) is None


def test_what_is_computed_from_a_buffer_includes_what_is_stored_on_the_way():
    a = conv("a", "input", "u", "store", store0="stored")
    wiring = Wiring([a, conv("b", "stored", "v"), conv("c", "input1", "w"), conv("d", "w", "output", "add", add0="v")])
    assert wiring.computed_from("input") == {"u", "stored", "v", "output"}
    assert wiring.computed_from("w") == {"output"} and wiring.computed_from("output") == set()


def test_layers_are_named_by_what_their_names_begin_with():
    first, second = conv("layer1.0.conv1", "input", "u"), conv("layer1.0.conv2", "u", "output")
    assert common_name([first, second], "block") == "layer1.0.block"
    assert common_name([conv("conv1", "input", "u"), conv("conv2", "u", "output")], "") == "conv2"
