"""Search the plans of a database again, without the models.

After a change of the search for plans or of the engine, other plans of the
same kernels may be faster. Each plan whose network the database holds is
searched from the plan that it has, for --seconds each. A faster one replaces
it if it takes at most --most of the time of the old one, in interleaved rounds.
Such a plan has not been compared with torch: measure its figures afterwards.
Pack the database at the end.

Example:
  python tests/campaigns/replan.py --db networks.db --batch 1,32 --seconds 5
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import NEVER, AutotuneError, Deadline, device_name
from autotune.ir import BYTE_FORMATS, WHOLE, Network, NetworkKey, network_text
from autotune.measure import Worker
from autotune.tuner.plan.network_tuner import tune_network_plan
from autotune.tuner.plan.plan_candidates import known_candidates, plan_in_use
from autotune.tuner.plan.plan_timer import FINAL_ROUNDS, network_timer
from autotune_cli.command_line import add_device, percent, positive, seconds, torch_device
from autotune_cli.main import run_program
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

KEPT = ("device_id", "network", "median_us", "spread_us", "choices", "details")
"""Columns of a plan that is put back."""


def network_of(store: Store, key: str, plan: PlanRow) -> Network:
    """Return the network of a plan, with the name that the user gave it; raises AutotuneError if it cannot be had."""
    network = network_text.find(store.networks(f"{NetworkKey.parse(key).model} "), key)
    if network is None or network.key != key:
        raise AutotuneError("the database does not hold its network, or holds another plan of it")
    if WHOLE in plan.details.get("alternatives", []):
        raise AutotuneError("it calls torch's operators for the whole network")
    if any(layer.problem.dtype in BYTE_FORMATS for layer in network.all_layers):
        raise AutotuneError("its 8-bit layers are chosen by a calibration")
    return replace(network, label=plan.details.get("label", network.label))


def search(store: Store, device: Device, worker: Worker, network: Network, seconds: float, most: float) -> float:
    """Search a plan again; return its time over that of the old one, 1 if that stays.

    Args:
        store: The database.
        device: The device.
        worker: Times plans on it.
        network: The network.
        seconds: Time of the search.
        most: Largest ratio for which the new plan replaces the old one.

    Raises:
        AutotuneError: The old plan does not run.
    """

    def in_use() -> Any:
        return plan_in_use(store, device, worker, network, known_candidates(store, device, network), None, NEVER)

    before, old = in_use(), store.plan(device, network.key)
    if before is None or old is None:
        raise AutotuneError("a kernel of the plan is not known here")
    kept = {name: getattr(old, name) for name in KEPT}
    new = tune_network_plan(store, device, worker, network, Deadline.after(seconds))
    if new is None:
        return 1.0
    with store.writing() as session:  # a database may have several plans of a network, of which the fastest is in use
        session.delete(session.get_one(PlanRow, old.id))
    results = network_timer(worker, network, time.monotonic).compare([before, in_use()], FINAL_ROUNDS)
    times = [result.median_us for result in results or ()]
    ratio = times[1] / times[0] if results and times[0] and times[1] else 1.0
    if ratio > most:
        store.replace_plan(new, **kept)
        return 1.0
    return ratio


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database; it is changed")
    parser.add_argument("--batch", type=batches, default=(), metavar="N[,N]", help="batch sizes (default all)")
    parser.add_argument("--plan", default="", metavar="TEXT", help="only plans whose name contains this text")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="TIME", help="of each search (default 5)")
    parser.add_argument(
        "--most", type=percent, default="99%", metavar="P", help="of the old plan's time (default %(default)s)"
    )
    add_device(parser)


def batches(text: str) -> list[int]:
    """Read batch sizes."""
    return [positive(part) for part in text.split(",")]


def main(options: argparse.Namespace) -> int:
    device = torch_device(options.device)
    name = f"{device}" if device.type == "cpu" else f"cuda:{device.index or 0}"
    Store.open(options.db).close()  # a file that is missing is not created
    with Store.create(options.db) as store, Worker(name) as worker:
        if store.counts()["signature"]:
            raise AutotuneError(f"{store.name} is signed, and another plan would make the signature invalid")
        row = store.device(device_name(device))
        if row is None:
            raise AutotuneError(f"{store.name} has no plan for {device_name(device)}")
        for key in [key for key in store.planned(row) if options.plan in key]:
            plan = store.plan(row, key)
            if options.batch and NetworkKey.parse(key).batch not in options.batch:
                continue
            try:
                assert plan
                before_us = plan.median_us
                ratio = search(store, row, worker, network_of(store, key, plan), options.seconds, options.most)
            except AutotuneError as error:
                print(f"{key}: left, because {error}", flush=True)
                continue
            after = store.plan(row, key)
            assert after
            what = f"{ratio:.3f} of its time" if ratio < 1 else "stays"
            print(f"{key}: {what}; recorded {before_us:.1f} -> {after.median_us:.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
