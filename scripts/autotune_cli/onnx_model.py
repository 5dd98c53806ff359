"""Loads a network from an ONNX file as a torch module, by onnx2torch."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx, nn

from autotune.core import AutotuneError
from autotune_cli.record import one_line

SUFFIX = ".onnx"
KNOWN_OPSET = 17
"""The newest version of ONNX's operators of which onnx2torch knows all that networks of convolutions use. torch exports
version 18, whose reductions it does not know."""


class OnnxNetwork(nn.Module):
    """The network of an ONNX file.

    torch.export replaces the forward of a GraphModule while it traces it, which a capture takes for a change of state;
    that of a submodule it leaves alone.

    Args:
        layers: The network, as onnx2torch returns it.
    """

    def __init__(self, layers: fx.GraphModule) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output for a batch of images."""
        return cast(torch.Tensor, self.layers(x))


def load(path: Path) -> tuple[nn.Module, tuple[int, ...] | None]:
    """Return the module of an ONNX file, in eval mode, and the shape of one sample.

    The file's weights become the module's parameters and buffers.

    Args:
        path: The file. Its graph has one input, whose first dimension is the batch.

    Returns:
        The module, and the shape without the batch; None if the file leaves a dimension open.

    Raises:
        AutotuneError: onnx2torch is not installed, there is no such file, it is no ONNX model, it has several inputs,
            or onnx2torch does not support one of its operators.
    """
    if not path.is_file():
        raise AutotuneError(f"there is no file '{path}': --model FILE.onnx names one")
    if missing := [name for name in ("onnx", "onnx2torch") if importlib.util.find_spec(name) is None]:
        torch_kept = f"torch=={torch.__version__.partition('+')[0]}"  # else pip replaces it by the newest
        raise AutotuneError(
            f"'{path}' needs {' and '.join(missing)}: pip install 'autotune-cutlass[onnx]' {torch_kept}"
        )
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's errors have no common base
        raise AutotuneError(f"'{path}' is not an ONNX model: {one_line(error)}") from error
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in constants]
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs) or "none"
        raise AutotuneError(f"'{path}' has {len(inputs)} inputs ({names}): give a model with one image as its input")
    try:
        module = _converted(model)
    except Exception as error:  # an operator that it does not know, or attributes that a converter does not expect
        raise AutotuneError(f"onnx2torch cannot convert '{path}': {one_line(error)}") from error
    batch, *sizes = [size.dim_value for size in inputs[0].type.tensor_type.shape.dim] or [0]
    _fix_shapes(module, batch)
    return OnnxNetwork(module).eval(), tuple(sizes) if sizes and all(size > 0 for size in sizes) else None


def _converted(model: Any) -> fx.GraphModule:
    """Return the module of a model, converted to KNOWN_OPSET if onnx2torch does not know the operators of its own."""
    import onnx2torch
    from onnx import version_converter

    _plain_reshapes(model)
    try:
        return cast(fx.GraphModule, onnx2torch.convert(model))
    except NotImplementedError:
        with suppress(Exception):  # what matters is the operator of the original
            return cast(fx.GraphModule, onnx2torch.convert(version_converter.convert_version(model, KNOWN_OPSET)))
        raise


def _plain_reshapes(model: Any) -> None:
    """Remove the attribute `allowzero` of each Reshape whose shape is constant and has no zero: it has no effect there.

    torch exports it, and onnx2torch does not implement it.
    """
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[1] in constants:
            kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
            if len(kept) < len(node.attribute) and numpy_helper.to_array(constants[node.input[1]]).all():
                del node.attribute[:]
                node.attribute.extend(kept)


def _fix_shapes(module: fx.GraphModule, batch: int) -> None:
    """Replace each reshape to a constant shape by one whose shape is part of the graph.

    onnx2torch reads the shape from a tensor at each call, and such a network cannot be captured. A first dimension that
    is the batch size of the export becomes -1, so that the network takes other batch sizes.
    """
    for node in list(module.graph.nodes):
        shape = _constant_shape(module, node)
        if shape and 0 not in shape:
            if shape[0] == batch and -1 not in shape:
                shape = [-1, *shape[1:]]
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(torch.reshape, (node.args[0], shape)))
            module.graph.erase_node(node)
    module.recompile()


def _constant_shape(module: fx.GraphModule, node: fx.Node) -> list[int] | None:
    """Return the shape of a reshape to a constant shape; None for another node."""
    if node.op != "call_module" or type(module.get_submodule(str(node.target))).__name__ != "OnnxReshape":
        return None
    source = node.args[1]
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        return None
    path, _, name = str(source.target).rpartition(".")
    return [int(size) for size in getattr(module.get_submodule(path), name)]
