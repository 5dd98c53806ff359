"""The plan of a run that ended before Inductor's code of the network was timed.

Inductor may need more time for a deep network than a short budget has. A network with nothing tuned runs on Inductor's
code, so a plan that was never compared with it may be slower than no plan at all.
"""

from __future__ import annotations

from autotune.ir import WHOLE, Network
from autotune.libraries import aten, inductor
from tuning_db import Store
from tuning_db.plan_choices import plan_choice
from tuning_db.schema import Device, KernelRow

ASSUMED_GAIN = 3.5
"""Inductor's code is taken to be this many times faster than eager PyTorch, both in a CUDA graph. On an H100 it was 1.9
times faster for FCN-ResNet50 and 2.1 to 3.0 times for MobileNetV3, RegNetY-400MF, EfficientNet-B3 and Inception v3."""


def prefer_untimed(store: Store, device: Device, network: Network, compiled: KernelRow) -> bool:
    """Let a network run on Inductor's code, which was not timed, unless its plan is surely faster.

    A plan is taken to be faster if all its layers were searched and it is ASSUMED_GAIN times faster than eager PyTorch.
    The plan that is replaced is kept for machines without a compiler. A plan that was compared with Inductor stays.

    Args:
        store: The database.
        device: The device.
        network: The network, whose plan was tuned.
        compiled: Inductor's candidate for the whole network.

    Returns:
        Whether the plan was replaced. `details["untimed"]` of the new one is true, and its time is that of the old one.
    """
    plan = store.plan(device, network.key)
    if plan is None or network.whole is None:
        return False
    (layer,) = network.whole.layers
    measured = store.measurements(device, str(layer.problem))
    if any(row.kernel_id == compiled.id for row in measured):
        return False
    if any(map(inductor.compiles, plan.details.get("torch_us", {}))):
        return False
    eager = [row.median_us for row in measured if row.median_us and row.kernel.family == aten.FAMILY]
    is_complete = all(choice["us"] is not None for choice in plan.choices)
    if is_complete and eager and plan.median_us * ASSUMED_GAIN <= min(eager):
        return False
    spare = str(network.identity.precompiled)
    shared = {"median_us": plan.median_us, "spread_us": plan.spread_us, "choices": plan.choices}
    store.replace_plan(
        store.plan(device, spare), device_id=device.id, network=spare, details=dict(plan.details), **shared
    )
    store.replace_plan(
        plan,
        device_id=device.id,
        network=network.key,
        median_us=plan.median_us,
        spread_us=plan.spread_us,
        choices=[plan_choice(layer.name, compiled.id, {}, None)],
        details={**plan.details, "samples_us": [], "alternatives": [WHOLE], "untimed": True},
    )
    return True
