"""Warnings when a plan is bound: layers that are not tuned, and 8-bit precisions that change nothing."""

from __future__ import annotations

import warnings
from collections import Counter

import torch

from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS
from autotune.runtime import NetworkPlan

_CALLERS_LINE = 10  # our seven functions and torch's two around `forward` lie between the caller's line and the warning


def warn_of_plan(
    plan: NetworkPlan, database: str, model: str, dtype: torch.dtype, precision: str | None, limit: int | None
) -> None:
    """Warn, at the line of the call that binds a plan, of what the caller may not expect.

    Args:
        plan: The plan.
        database: Location of the database, as messages show it.
        model: Name of the model.
        dtype: The dtype of its inputs.
        precision: Its precision; None for that of the tensors.
        limit: Plans that Inductor compiles of a module, if it compiles no more of this one; else None.
    """
    sources = Counter(bound.choice.source for bound in plan.bound)
    other = {source: count for source, count in sources.items() if source != "tuned"}
    network = plan.network
    if other or plan.compile_failed:
        listed = ", ".join(f"{count} from '{source}'" for source, count in other.items()) or "all are tuned"
        warnings.warn(
            f"{database} is not tuned for batch {network.batch} of {model} in {dtype} on this "
            f"device: of {len(plan.bound)} layers {listed}; tune it with fused_resnet.tune or "
            f"scripts/tune.py --batch {network.batch}"
            + (f" --precision {precision}" if precision else "")
            + (f". Inductor compiles nothing: {plan.not_compiled}" if plan.not_compiled and network.whole else "")
            + (f". Inductor compiles no more than {limit} plans of a module" if limit is not None else ""),
            stacklevel=_CALLERS_LINE,
        )
    if precision in BYTE_PRECISIONS and not any(layer.problem.dtype in BYTE_FORMATS for layer in network.layers):
        warnings.warn(
            f"no layer of {model} runs in 8 bits for batch {network.batch}, so precision='{precision}' "
            "changes nothing: print(net.explain(x)) says why, and without precision= no calibration is needed",
            stacklevel=_CALLERS_LINE,
        )
