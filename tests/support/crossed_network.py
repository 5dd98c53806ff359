"""A network of which two alternatives cannot be taken together although they replace different layers."""

from autotune.ir import INPUT, OUTPUT, Alternative, CallerTensor, Layer, Network, NetworkKey, parse

CONV = "conv2d n=2 h=4 w=4 c=8 k=8 dtype=f16"
PAIR = "pointwise_pair n=2 h=4 w=4 c=8 hidden=8 k=8 dtype=f16 epilogue=store,conv,add"


def crossed_network() -> Network:
    """Two branches of two layers; each alternative joins the first layer of one branch with the second of the other."""
    chain = [("a1", INPUT, "a"), ("b1", INPUT, "b"), ("a2", "a", "a3"), ("b2", "b", OUTPUT)]
    joined = parse(PAIR)

    def pair(first: str, second: str) -> Alternative:
        (x, hidden), (read, y) = (next(at[1:] for at in chain if at[0] == name) for name in (first, second))
        buffers = {"x": x, "store0": hidden, "add1": read, "y": y}
        return Alternative(f"{first}+{second}", (first, second), (Layer(f"{first}+{second}", joined, buffers),))

    layers = tuple(Layer(name, parse(CONV), {"x": x, "y": y}, {"weight": f"{name}.weight"}) for name, x, y in chain)
    tensor = (CallerTensor((2, 8, 4, 4), "f16"),)
    return Network(NetworkKey("crossed", 2), layers, tensor, tensor, (pair("a1", "b2"), pair("b1", "a2")))
