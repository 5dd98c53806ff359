"""Problems: the computation of one layer, independent of any device.

A problem is a frozen record with a canonical text, and the text is its identity in the database:

    conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,1 groups=1 dtype=f32 epilogue=bias,relu

`parse` reads that text. `operands()` lists the tensors in the order in which every kernel takes its pointers.
Activations are channels last (n, h, w, c) and contiguous; convolution weights are (k, c/groups, r, s), as in torch, and
are repacked when a kernel that reads another order is bound. The output is always `y`, and the channels of an epilogue
are its last axis.

base: the base classes. fields: the types of their fields. registry: all operators by name, and the reading of problems.
The operators are in autotune/ir/operators, one file each.
"""

from autotune.ir.problem.base import MAX_OPERANDS, Operand, Problem, Tensors, limit_us, output_extent, with_batch
from autotune.ir.problem.fields import (
    DTYPES,
    TENSOR_DTYPES,
    DtypeName,
    FieldType,
    NonNegative,
    NonNegativePair,
    Pair,
    dtype_name,
    field_types,
    tensor_dtype_name,
)
from autotune.ir.problem.registry import OPERATORS, is_built_in, kind_of, parse, register, size_class
