"""The computation of networks, without any device: problems, epilogues, layers and weights as pure records."""

from autotune.ir.abi import MAP_ELEMENTS
from autotune.ir.byte_formats import BYTE_FORMATS, BYTE_PRECISIONS, E4M3, MAX_PRODUCTS, S8, ByteFormat
from autotune.ir.constant_expr import ConstantExpr, ConstantSource, State, evaluate
from autotune.ir.epilogue import MAX_SCALARS, Epilogue, Step
from autotune.ir.epilogue_steps import define_step, full_name, register_step
from autotune.ir.network import (
    INPUT,
    OUTPUT,
    WHOLE,
    Alternative,
    CallerTensor,
    Layer,
    Network,
    NetworkKey,
    digest,
    input_name,
    is_input,
    is_output,
    output_name,
)
from autotune.ir.problem import (
    DTYPES,
    MAX_OPERANDS,
    OPERATORS,
    TENSOR_DTYPES,
    Operand,
    Problem,
    Tensors,
    dtype_name,
    is_built_in,
    kind_of,
    limit_us,
    parse,
    register,
    size_class,
    tensor_dtype_name,
    with_batch,
)
from autotune.ir.reference import MAX_SUM_ERROR, Form, all_forms, compute, forms, sum_error
from autotune.ir.weight_layout import pack_weight, turn_weight
