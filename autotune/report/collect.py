"""Collects what a report shows from a database, without changing it."""

from __future__ import annotations

from collections.abc import Callable

from autotune.report.environment import database_facts, device_facts
from autotune.report.history import runs
from autotune.report.layers import layers
from autotune.report.networks import networks
from autotune.report.records import DeviceReport, Report
from tuning_db import Reader, Store
from tuning_db.location import Location, file_of, is_address
from tuning_db.trust.digests import UNREADABLE


def collect(where: Location, tell: Callable[[str], object] = lambda _: None) -> Report:
    """Read a database.

    Args:
        where: A file, the address of a server, or a URL.
        tell: Called with the text of each problem that is begun.

    Raises:
        DatabaseError: There is no database, it cannot be read, or a row is damaged.
    """
    with Store.open(where) as store:
        try:
            return _report(store, tell)
        except UNREADABLE:
            if not is_address(where):
                with Reader(file_of(where)) as reader:
                    reader.check_all()  # names the damaged row; if all rows are whole, the error is ours
            raise


def _report(store: Store, tell: Callable[[str], object]) -> Report:
    found = layers(store, tell)
    devices = tuple(
        DeviceReport(
            name=device.name,
            flops_per_us=device.flops_per_us,
            bytes_per_us=device.bytes_per_us,
            facts=device_facts(device, found[device.id]),
            layers=tuple(found[device.id]),
            networks=networks(store, device, found[device.id]),
            runs=runs(found[device.id]),
        )
        for device in store.devices()
    )
    return Report(store.name, database_facts(store), devices)
