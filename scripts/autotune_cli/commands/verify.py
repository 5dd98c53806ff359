"""Runs `autotune verify`, whose options and description are in arguments/verify.py."""

from __future__ import annotations

import argparse
import copy
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils._pytree import tree_leaves

from autotune.core import AutotuneError, CaptureError, device_name, in_one_line, software
from autotune.families import families
from autotune.ir import BYTE_FORMATS, DTYPES, WHOLE, Network, NetworkKey, State, network_text
from autotune.libraries import inductor
from autotune.libraries.aten import full_float32
from autotune.measure import (
    MAX_DRIFT,
    NOT_CHECKED,
    PlanCheck,
    Reference,
    check_plan,
    relative_error,
    seeded_inputs,
    seeded_state,
    synchronize,
    time_plan,
    why_not_comparable,
)
from autotune.runtime import CANDIDATES, NetworkPlan, candidate
from autotune_cli import models
from autotune_cli.command_line import torch_device
from fused_resnet.call import module_state
from fused_resnet.precisions import TF32
from tuning_db import DatabaseError, Store, evidence, open_reader
from tuning_db.evidence import DRIFTED, FAILED, RIGHT, WRONG
from tuning_db.protocols import Database, Device, Plan

EXIT_WRONG, EXIT_DRIFTED = 1, 3  # 2 is that of wrong options
_LISTED = 5
"""Plans that an error message names."""


@dataclass(frozen=True)
class Subject:
    """A network with values, on which a plan is checked.

    Attributes:
        network: The network.
        state: Its constants.
        inputs: Its inputs.
        given: What the model computes; None for random weights.
    """

    network: Network
    state: State
    inputs: Sequence[torch.Tensor]
    given: Reference | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome for a plan: whether it is right, and its time.

    Attributes:
        check: The check; its status may also be DRIFTED.
        text: The rest of the line.
        us: Median time in microseconds; None if it was not taken.
    """

    check: PlanCheck
    text: str
    us: float | None = None


def chosen(store: Database, device: torch.device, batches: Sequence[int], text: str) -> tuple[Device, list[str]]:
    """Return this device's row, and the names of its plans to verify.

    Raises:
        AutotuneError: There are none.
    """
    name = device_name(device)
    row = store.device(name)
    planned = store.planned(row) if row else []
    if row is None or not planned:
        others = [other.name for other in store.devices() if store.planned(other)]
        where = f"its plans are for {', '.join(others)}" if others else "it has no plans"
        raise AutotuneError(
            f"{store.name} has no plan for {name}: {where}; a plan is verified on its own kind of device"
        )
    keys = [key for key in planned if text in key and (not batches or NetworkKey.parse(key).batch in batches)]
    if not keys:
        more = f" and {len(planned) - _LISTED} more" if len(planned) > _LISTED else ""
        raise AutotuneError(
            f"{store.name} has no such plan for {name}: --batch and --plan choose among "
            f"{', '.join(planned[:_LISTED])}{more}"
        )
    return row, keys


# -- what a plan runs --------------------------------------------------------------------------------------------------


def of_database(store: Database, plan: Plan, key: str, device: torch.device, seed: int) -> Subject:
    """Return the network of a plan with random weights; raises AutotuneError if that is not possible."""
    try:
        network = network_text.find(store.networks(f"{NetworkKey.parse(key).model} "), key)
    except AutotuneError as error:
        raise AutotuneError(f"{error}: give --model") from error
    if network is None:
        raise AutotuneError("a plan of an older version, stored without its network: give --model")
    if WHOLE in plan.details.get("alternatives", []):
        raise AutotuneError("it calls torch's operators for the whole network: give --model")
    if any(layer.problem.dtype in BYTE_FORMATS for layer in network.all_layers):
        raise AutotuneError("its 8-bit layers need the scales of a calibration: give --model")
    return Subject(network, seeded_state(network, device, seed), seeded_inputs(network, device, seed))


def of_model(model: models.Model, database: str, key: str, device: torch.device, seed: int) -> Subject | None:
    """Return a model as the network of a plan; None if the plan is not of this model."""
    wanted = NetworkKey.parse(key).base
    properties = dict(wanted.properties)
    if wanted.model != type(model.module).__name__ or not wanted.batch or "x" not in properties.get("input", ""):
        return None
    dtype, _, in_bytes = properties["dtype"].partition("+")
    precision = TF32 if dtype == TF32 else BYTE_FORMATS[in_bytes].precision if in_bytes in BYTE_FORMATS else None
    dtype = "f32" if dtype == TF32 else dtype
    shape = tuple(map(int, properties["input"].split("x")))
    x = torch.randn(wanted.batch, *shape, generator=torch.Generator().manual_seed(seed)).to(device, DTYPES[dtype])
    try:
        fused = model.fused_for(x, database, precision)
        network = fused._network(x)
    except CaptureError:
        return None
    if network.identity != wanted:
        return None
    return Subject(network, module_state(fused), [x], _reference(model, network, x, precision))


def _reference(model: models.Model, network: Network, x: torch.Tensor, precision: str | None) -> Reference:
    """Return what a model computes in float32, or in float64 if x is in float32, and the error of eager torch."""
    module = copy.deepcopy(model.module).to(x.device, x.dtype)
    precise = torch.float64 if x.dtype == torch.float32 else torch.float32

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        return [value for value in tree_leaves(module(x)) if isinstance(value, torch.Tensor)]

    with torch.no_grad(), full_float32():
        if precision == TF32:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        eager = results(x)
    with torch.no_grad(), full_float32():
        module = module.to(precise)
        exact = results(x.to(precise))
    if [tuple(one.shape) for one in exact] != [one.shape for one in network.results]:
        raise AutotuneError("the model returns other tensors than its layers compute, so they cannot be compared")
    return Reference(exact, relative_error(eager, exact) if precision in (None, TF32) else None)


# -- the verdict -------------------------------------------------------------------------------------------------------


def bound(
    store: Database, key: str, recorded: Plan, subject: Subject, device: torch.device
) -> tuple[NetworkPlan | None, PlanCheck]:
    """Bind a plan as a FusedResNet does, and check it; without a plan if it cannot be bound."""
    network = subject.network
    names = {layer.name for layer in network.all_layers}
    if missing := [choice["layer"] for choice in recorded.choices if choice["layer"] not in names]:
        return None, PlanCheck(NOT_CHECKED, f"the network has no layer {missing[0]}, which the plan names")
    compiles = inductor.is_wanted() and network.key == key  # else it is the plan for machines without a compiler
    try:
        plan = NetworkPlan(network, subject.state, store, device, graph=True, use_inductor=compiles)
    except DatabaseError:
        raise
    except Exception as error:  # loading a kernel may raise anything
        return None, PlanCheck(FAILED, in_one_line(error))
    return plan, check_plan(plan, subject.state, subject.inputs, subject.given)


def verdict(store: Database, key: str, recorded: Plan, subject: Subject, args: argparse.Namespace) -> Verdict:
    """Check a plan, keep the result, and time the plan if it is right.

    The kernels of a wrong plan are left out from then on, and the plan is checked again on the next candidates of their
    layers, which may be the same kernels with other launch values.
    """
    device = torch_device(args.device)
    plan, check = bound(store, key, recorded, subject, device)
    first, tries = check, 0
    while check.faults and _keep(recorded, Verdict(check, ""), device, args.seed) and tries < CANDIDATES:
        plan, check = bound(store, key, recorded, subject, device)
        tries += 1
    if first.faults and not check.faults:
        _keep(recorded, Verdict(check, ""), device, args.seed)
    if first.faults:
        after = f"; on the next candidates of these layers it is {check.status}" if tries else ""
        return Verdict(first, f"{first.reason}{after}")
    found = _timed(store, recorded, plan, check, args.rounds) if plan and check.status == RIGHT else None
    found = found or Verdict(check, check.reason)
    _keep(recorded, found, device, args.seed)
    return found


def _timed(store: Database, recorded: Plan, plan: NetworkPlan, check: PlanCheck, rounds: int) -> Verdict:
    """Time a right plan, and compare its time with the recorded one."""
    said = [f"error {check.error:.1e} (rounding alone {check.eager_error:.1e})"]
    if not plan.native:
        said.append("bits not compared")
    if replaced := list(_replaced(store, recorded, plan)):
        said.append(f"{len(replaced)} layers run otherwise than planned, {replaced[0]} first")
    try:
        result = time_plan(plan, rounds)
    except Exception as error:  # a kernel may end a run by any error of torch or of the driver
        return Verdict(check, "; ".join([*said, f"not timed: {in_one_line(error)}"]))
    if result.status != "ok" or not result.median_us:
        check = replace(check, status=WRONG, reason=result.error or result.status)
        return Verdict(check, check.reason)
    ratio = result.median_us / recorded.median_us
    said.append(f"{recorded.median_us:.1f} -> {result.median_us:.1f} us ({100 * (ratio - 1):+.1f} %)")
    if reason := why_not_comparable(result, recorded.details, plan.device):
        said.append(f"not comparable: {reason}")
    elif ratio > MAX_DRIFT[plan.device.type]:
        check = replace(check, status=DRIFTED)
        said.append("tune again")
    return Verdict(check, "; ".join(said), result.median_us)


def _replaced(store: Database, recorded: Plan, plan: NetworkPlan) -> Iterator[str]:
    """Yield the layers that do not run on the candidate of the recorded plan, such as one that cuDNN refuses."""
    for one in recorded.choices:
        planned = candidate(store, store.kernel(one["kernel"]), one["launch"])
        if not any(item.layer.name == one["layer"] and item.choice.candidate == planned for item in plan.bound):
            yield one["layer"]


def _keep(recorded: Plan, found: Verdict, device: torch.device, seed: int) -> bool:
    """Keep a verdict and the kernels that are wrong in the user's evidence; return whether that was possible."""
    check, versions = found.check, software(device)
    if check.status == NOT_CHECKED:
        return False
    row = evidence.Check(
        recorded.digest or "",
        device_name(device),
        **versions,
        seed=seed,
        error=_finite(check.error),
        eager_error=_finite(check.eager_error),
        us=found.us,
        status=check.status,
        worst=check.reason,
    )
    wrong = [
        evidence.Wrong(fault.bound.choice.candidate.digest, str(fault.bound.layer.problem), versions["driver"])
        for fault in check.faults
        if fault.bound.choice.candidate.binary
    ]
    try:
        evidence.add(row, wrong)
    except DatabaseError as error:
        print(f"not kept for later runs: {error}", file=sys.stderr)
        return False
    return True


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# -- the command -------------------------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore", message=".*is not tuned")
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    device = torch_device(args.device)
    model = models.load(args.model, args.input, None) if args.model else None
    if args.write:
        _require_unsigned(args)
    statuses: list[str] = []
    networks: list[Network] = []
    with open_reader(args.db) as store, torch.inference_mode(False), torch.no_grad():
        row, keys = chosen(store, device, args.batch or [], args.plan)
        for key in keys:
            plan = store.plan(row, key)
            assert plan
            try:
                subject = _subject(store, plan, key, model, args, device)
                if subject is None:
                    continue
                networks.append(subject.network)
                found = verdict(store, key, plan, subject, args)
            except (AutotuneError, torch.OutOfMemoryError) as error:
                found = Verdict(PlanCheck(NOT_CHECKED, in_one_line(error)), in_one_line(error))
            status = found.check.status
            statuses.append(status)
            print(f"{key}: {status.upper() if status in (WRONG, FAILED) else status}; {found.text}", flush=True)
            _require_device(key, device)
    if not statuses:
        raise AutotuneError(f"{args.model} is the model of none of these plans: {', '.join(keys[:_LISTED])}")
    if args.write:
        with Store.create(args.db) as written:
            for network in networks:
                if not network_text.is_known(written.networks(f"{network.identity.model} "), network):
                    written.put_network(network.key, network_text.write(network))
    return _exit_code(statuses)


def _subject(
    store: Database, plan: Plan, key: str, model: models.Model | None, args: argparse.Namespace, device: torch.device
) -> Subject | None:
    """Return what a plan runs on; None if it is not of the model that was given."""
    if ("step", "training") in NetworkKey.parse(key).properties:
        raise AutotuneError("a training step, which `autotune bench --train` compares with torch")
    if model:
        return of_model(model, str(args.db), key, device, args.seed)
    return of_database(store, plan, key, device, args.seed)


def _require_device(key: str, device: torch.device) -> None:
    """Raise AutotuneError if a plan has ruined the context of the GPU, on which nothing runs any more."""
    try:
        synchronize(device)
    except RuntimeError as error:
        raise AutotuneError(
            f"the plan of {key} left the GPU with an error ({in_one_line(error)}): verify the other plans with --plan"
        ) from error


def _require_unsigned(args: argparse.Namespace) -> None:
    if not args.model:
        raise AutotuneError("--write adds the network of a model: give --model")
    with Store.create(args.db) as store:
        if store.counts()["signature"]:
            raise AutotuneError(
                f"{store.name} is signed, and --write would make the signature invalid: write, then sign"
            )


def _exit_code(statuses: Sequence[str]) -> int:
    """Return the exit code: EXIT_WRONG if a plan is wrong or fails, EXIT_DRIFTED if plans are only slower, else 0.

    Raises:
        AutotuneError: No plan was checked.
    """
    if {*statuses} == {NOT_CHECKED}:
        raise AutotuneError("no plan was checked: the lines above say why")
    if {WRONG, FAILED} & set(statuses):
        return EXIT_WRONG
    return EXIT_DRIFTED if DRIFTED in statuses else 0
