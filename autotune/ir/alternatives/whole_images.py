"""A convolution of tiny images as a matrix product with whole images, and what is after it on images of one pixel."""

from __future__ import annotations

import dataclasses

from autotune.ir.alternatives.joining import as_convolution
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Layer
from autotune.ir.operators import Conv2d, Gemm, SeTail


def with_whole_images(conv: Layer) -> Layer:
    """Return a convolution as a matrix product with whole images."""
    problem = conv.problem
    assert isinstance(problem, Conv2d)
    inputs, outputs = problem.h * problem.w * problem.c, problem.h * problem.w * problem.k
    return dataclasses.replace(
        conv,
        name=f"{conv.name}.dense",
        problem=Gemm(m=problem.n, n=outputs, k=inputs, dtype=problem.dtype, epilogue=problem.epilogue),
        weights={"weight": ConstantExpr("dense", (conv.weights["weight"],), (problem.h, problem.w, *problem.pad))},
    )


def as_one_pixel(dense: Layer, tail: Layer) -> tuple[Layer, Layer]:
    """Return a product with whole images and the squeeze-and-excitation after it, on images of one pixel.

    The pixels become channels: the tail's mean over pixels moves into its first product, whose matrix is repeated once
    per pixel and divided by their number.
    """
    gate = tail.problem
    assert isinstance(gate, SeTail)
    pixels = gate.h * gate.w
    share = ConstantExpr("numbers", (), (1 / pixels,))
    weights = {
        "w1": ConstantExpr("scale_rows", (ConstantExpr("tile", (tail.weights["w1"],), (1, pixels)), share)),
        "w2": ConstantExpr("tile", (tail.weights["w2"],), (pixels, 1)),
        "b2": ConstantExpr("tile", (tail.weights["b2"],), (pixels,)),
    }
    flat = dataclasses.replace(gate, h=1, w=1, c=pixels * gate.c)
    return as_convolution(dense), dataclasses.replace(tail, problem=flat, weights={**tail.weights, **weights})
