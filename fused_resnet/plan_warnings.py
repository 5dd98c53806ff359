"""Warnings when a plan is bound: layers that are not tuned, and 8-bit precisions that change nothing."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch

from autotune.core import Architecture, UnknownNameError, architecture, device_name, device_target, of_capability
from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS, DTYPES, Network, NetworkKey
from autotune.runtime import NetworkPlan
from fused_resnet.networks.se_resnet9_fixup import MODELS

if TYPE_CHECKING:
    from tuning_db.protocols import Database

_CALLERS_LINE = 10  # our seven functions and torch's two around `forward` lie between the caller's line and the warning

_PLANS = 3
"""Most plans of a model that a message lists."""


def warn_of_plan(
    plan: NetworkPlan, store: Database, model: str, dtype: torch.dtype, precision: str | None, limit: int | None
) -> None:
    """Warn, at the line of the call that binds a plan, of what the caller may not expect.

    Args:
        plan: The plan.
        store: The database.
        model: Name of the model.
        dtype: The dtype of its inputs.
        precision: Its precision; None for that of the tensors.
        limit: Plans that Inductor compiles of a module, if it compiles no more of this one; else None.
    """
    layers = plan.of_network
    sources = Counter(bound.choice.source for bound in layers)
    other = {source: count for source, count in sources.items() if source != "tuned"}
    network = plan.network
    if other or plan.compile_failed:
        listed = ", ".join(f"{count} from '{source}'" for source, count in other.items()) or "all are tuned"
        warnings.warn(
            # The store's name is without the password of a server, or what is secret in a URL.
            f"{store.name} is not tuned for {_sizes(network)} of {model} in {dtype} on this device, "
            f"{device_name(plan.device)}: of {len(layers)} layers {listed}"
            + (f"; {_tuned_for(store, network, plan.device)}" if other else "")
            + f"; {_advice(network, plan.device, model, precision)}"
            + "; further image sizes are not told" * plan.is_resized
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


def _sizes(network: Network) -> str:
    """Return the batch size of a network and the sizes of a sample of each input, such as "batch 4 (3x64x64)"."""
    samples = ", ".join(_sample(network))
    return f"batch {network.batch} ({samples})" if network.batch else f"inputs of {samples}"


def _sample(network: Network) -> list[str]:
    shapes = [one.shape for one in network.inputs]
    if network.batch:
        shapes = [shape[1:] if shape[:1] == (network.batch,) else shape for shape in shapes]
    return ["x".join(map(str, shape)) or "one number" for shape in shapes]


def _tuned_for(store: Database, network: Network, device: torch.device) -> str:
    """Return for what a database is tuned: other devices, or other inputs of the same model."""
    devices, name = store.devices(), device_name(device)
    own = next((row for row in devices if row.name == name), None)
    if own is None:
        return f"it is tuned for {' and '.join(row.name for row in devices)}" if devices else "it holds no device"
    keys = [NetworkKey.parse(text) for text in reversed(store.planned(own))]
    alike = [key for key in keys if key.model == network.identity.model and key != network.identity]
    if not alike:
        return "it holds no other plan of this model for this device"
    more = f" and {len(alike) - _PLANS} more" if len(alike) > _PLANS else ""
    return f"it has plans for {', '.join(map(_without_digest, alike[:_PLANS]))}{more}"


def _without_digest(key: NetworkKey) -> str:
    pairs = [*([("n", key.batch)] if key.batch else []), *key.properties]
    return " ".join(f"{name}={value}" for name, value in pairs)


def _advice(network: Network, device: torch.device, model: str, precision: str | None) -> str:
    """Return how to tune a network for a device, or why that is not possible."""
    arch = _architecture(device)
    dtypes = {layer.problem.dtype for layer in network.layers}.intersection(DTYPES)
    if absent := sorted(dtypes.difference(arch.dtypes if arch else ())):
        remedy = f"leave out precision='{precision}'" if precision else "choose another dtype"
        return f"no kernels in {' and '.join(absent)} exist for this device: {remedy}"
    sample = _sample(network)
    size = f" --input {sample[0].replace('x', ',')}" if len(sample) == 1 and model not in MODELS else ""
    return (
        f"tune it with fused_resnet.tune or `autotune tune --batch {network.batch}{size}`"
        + f" --precision {precision}" * bool(precision)
    )


def _architecture(device: torch.device) -> Architecture | None:
    """Return the architecture whose kernels a device runs; None if it is too old for all."""
    target = device_target(device)
    try:
        return of_capability(int(target.removeprefix("sm_"))) if target.startswith("sm_") else architecture("cpu")
    except UnknownNameError:
        return None
