"""First layers that move patches of the image to channels: as one convolution, and with the block behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from autotune.ir.alternatives.wiring import Wiring, common_name
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, PatchConv2d, SeBlock, SpaceToDepth, StemSeBlock, StemSeBlockPool

_SCALARS = {"relu", "add_scalar", "mul_scalar", "store", "add"}
"""Steps of a stem and a block that one layer can have: their operands are scalars, and the tensors that it keeps."""


def patch_stems(wiring: Wiring, blocks: Iterable[Alternative]) -> Iterator[Alternative]:
    """Yield a conversion of patches together with the 1x1 convolution that reads it, and with the block after both.

    Args:
        wiring: The layers.
        blocks: The alternatives to residual blocks, which each have one layer.
    """
    for moves in wiring.layers:
        conv = wiring.only_reader(moves) if isinstance(moves.problem, SpaceToDepth) else None
        if conv is None or not _is_product(conv):
            continue
        if [name for name, buffer in conv.buffers.items() if buffer == moves.buffers["y"]] != ["x"]:
            continue  # it adds the patches
        stem = _joined(moves, conv)
        yield Alternative(stem.name, (moves.name, conv.name), (stem,))
        for block in blocks:
            both = _with_block(wiring, conv, stem, block)
            if both is None:
                continue
            replaced = (moves.name, conv.name, *block.replaces)
            yield Alternative(both.name, replaced, (both,))  # behind those that it excludes
            for pool in wiring.readers(both.buffers["y"]):
                pooled = _with_pool(both, pool)
                if pooled:
                    yield Alternative(pooled.name, (*replaced, pool.name), (pooled,))


def _joined(moves: Layer, conv: Layer) -> Layer:
    """Return a conversion of patches and a 1x1 convolution as one that reads the image."""
    patches, product = moves.problem, conv.problem
    assert isinstance(patches, SpaceToDepth) and isinstance(product, Conv2d)
    sizes = {name: getattr(patches, name) for name in ("n", "h", "w", "c", "block")}
    return dataclasses.replace(
        conv,
        name=common_name([moves, conv], ""),
        problem=PatchConv2d(**sizes, k=product.k, dtype=product.dtype, epilogue=product.epilogue),
        buffers={**conv.buffers, "x": moves.buffers["x"]},
        weights={**conv.weights, "weight": ConstantExpr("patch_filter", (conv.weights["weight"],), (patches.block,))},
    )


def _with_block(wiring: Wiring, conv: Layer, stem: Layer, block: Alternative) -> Layer | None:
    """Return a stem and a residual block as one layer, which keeps the tensors between them on the multiprocessor.

    None unless the block alone reads what the stem writes, and one layer can have the steps of both.
    """
    (second,) = block.layers
    patches, residual = stem.problem, second.problem
    assert isinstance(patches, PatchConv2d)
    if not isinstance(residual, SeBlock) or second.buffers["x"] != conv.buffers["y"]:
        return None
    names = (*patches.epilogue.names, *residual.epilogue.names)
    kept = [name for name in conv.writes if name != conv.buffers["y"]]
    inside = {reader.name for name in conv.writes for reader in wiring.readers(name)} <= {*block.replaces}
    steps = {*names} - {"conv", "gate"}
    if len(kept) != 1 or kept[0] not in second.reads or not inside or not steps <= _SCALARS:
        return None
    first = ["keep" if name == "store" else name for name in patches.epilogue.names]
    last = ["add_kept" if name == "add" else name for name in residual.epilogue.names]
    problem = StemSeBlock(
        n=patches.n, h=patches.h, w=patches.w, c=patches.c, k=patches.k, block=patches.block,
        hidden=residual.hidden, dtype=patches.dtype, epilogue=Epilogue((*first, "conv", *last)),
    )  # fmt: skip
    buffers = {"x": stem.buffers["x"], "y": second.buffers["y"]}
    scalars = (*stem.scalars, *second.scalars)
    return Layer(f"{stem.name}.block", problem, buffers, {**stem.weights, **second.weights}, scalars)


def _with_pool(block: Layer, pool: Layer) -> Layer | None:
    """Return the same with the average pool of the next block as a second output, so that no kernel reads y for it.

    None unless the pool has the windows of such a layer.
    """
    problem = StemSeBlockPool(**vars(block.problem))
    if pool.problem != problem.pool:
        return None
    buffers = {**block.buffers, "pooled": pool.buffers["y"]}
    return dataclasses.replace(block, name=f"{block.name}.pool", problem=problem, buffers=buffers)


def _is_product(layer: Layer) -> bool:
    """Return whether a layer is a 1x1 convolution without groups, whose result has the dtype of its input."""
    problem = layer.problem
    plain = isinstance(problem, Conv2d) and problem.is_product
    return plain and problem.output_dtype == problem.dtype
