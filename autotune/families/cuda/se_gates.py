"""The gates of squeeze-and-excitation on a GPU: the kernel of cuda_squeeze_excite, without the scaling."""

from __future__ import annotations

from autotune.core import cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Family
from autotune.families.cuda import se_tail, squeeze_excite
from autotune.families.squeeze_excite import candidate_activations
from autotune.ir import SeGates

FAMILY = Family[SeGates](
    name="cuda_se_gates",
    operator=SeGates,
    kind=DEVICE_IMAGE,
    template=squeeze_excite.FAMILY.template,
    architectures=cuda_architectures(),
    parameters=squeeze_excite.FAMILY.parameters,
    launch_parameters=squeeze_excite.FAMILY.launch_parameters,
    why_illegal=squeeze_excite.why_illegal,
    candidate_values=candidate_activations,
    why_unsupported=se_tail.why_unsupported,
    why_unfit=squeeze_excite.why_unfit,
    launches=squeeze_excite.launches,
    cost=squeeze_excite.cost,
    context=lambda config, arch, dtype: {**config, "gates": True, "blocks": squeeze_excite.blocks(config)},
    compile_seconds=(0.9, 0.4),
)
