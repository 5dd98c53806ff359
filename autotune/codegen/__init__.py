"""From kernels to binaries: rendering, compilers, ninja."""

from autotune.codegen.build_queue import POLL_SECONDS, Batch, StartBatch
from autotune.codegen.kernel_resources import KernelResources, image_resources
from autotune.codegen.ninja_build import BuildBatch
from autotune.codegen.translation_units import Built, Unit, kernels_per_unit, link_latest
from autotune.codegen.translation_units import show as show_compilation
