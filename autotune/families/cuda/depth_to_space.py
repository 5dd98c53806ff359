"""Depth-to-space on a GPU, channels last."""

from autotune.core import cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Family
from autotune.families.cuda import output_rows
from autotune.ir import DepthToSpace

FAMILY = Family[DepthToSpace](
    name="cuda_depth_to_space",
    operator=DepthToSpace,
    kind=DEVICE_IMAGE,
    template="cuda/depth_to_space.cu.j2",
    architectures=cuda_architectures(),
    parameters=output_rows.PARAMETERS,
    why_illegal=output_rows.why_illegal,
    why_unfit=output_rows.require_fit,
    cost=output_rows.cost,
    compile_seconds=(0.9, 0.1),
)
