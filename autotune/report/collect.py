"""Collects what a report shows from a database, without changing it."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from autotune.report.environment import database_facts, device_facts
from autotune.report.history import runs
from autotune.report.layers import layers
from autotune.report.networks import NamedNetworks, networks
from autotune.report.records import DeviceReport, Report
from tuning_db import Reader, Store
from tuning_db.location import Location, file_of, is_address
from tuning_db.trust.digests import UNREADABLE

NO_NETWORKS: NamedNetworks = MappingProxyType({})


def collect(
    where: Location, named: NamedNetworks = NO_NETWORKS, tell: Callable[[str], object] = lambda _: None
) -> Report:
    """Read a database.

    Args:
        where: A file, the address of a server, or a URL.
        named: Networks whose layers follow from their names; a plan of another network names no problems.
        tell: Called with the text of each problem that is begun.

    Raises:
        DatabaseError: There is no database, it cannot be read, or a row is damaged.
    """
    with Store.open(where) as store:
        try:
            return _report(store, named, tell)
        except UNREADABLE:
            if not is_address(where):
                with Reader(file_of(where)) as reader:
                    reader.check_all()  # names the damaged row; if all rows are whole, the error is ours
            raise


def _report(store: Store, named: NamedNetworks, tell: Callable[[str], object]) -> Report:
    found = layers(store, tell)
    devices = tuple(
        DeviceReport(
            name=device.name,
            flops_per_us=device.flops_per_us,
            bytes_per_us=device.bytes_per_us,
            facts=device_facts(device, found[device.id]),
            layers=tuple(found[device.id]),
            networks=networks(store, device, found[device.id], named),
            runs=runs(found[device.id]),
        )
        for device in store.devices()
    )
    return Report(store.name, database_facts(store), devices)
