"""gemm problems against torch and conv2d."""

import torch

from autotune.ir import Epilogue
from autotune.ir.operators import Gemm


def test_gemm_is_torchs_linear_and_a_convolution_of_one_pixel():
    problem = Gemm(m=3, n=7, k=5, dtype="f16", epilogue=Epilogue.parse("bias,add"))
    shapes = [operand.shape for operand in problem.operands()]
    assert shapes == [(3, 5), torch.nn.Linear(5, 7).weight.shape, (3, 7), (7,), (3, 7)]
    assert problem.flops == problem.as_conv2d.flops == 2 * 3 * 7 * 5
    assert problem.bytes == problem.as_conv2d.bytes
