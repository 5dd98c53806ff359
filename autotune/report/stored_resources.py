"""Registers and memory of the kernels of a database."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.codegen import KernelResources, image_resources
from autotune.families import DEVICE_IMAGE
from tuning_db import Store
from tuning_db.schema import KernelRow


class StoredResources:
    """Reads the resources of kernels from their device images, each image once.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, Mapping[str, KernelResources]] = {}

    def of(self, kernel: KernelRow) -> KernelResources | None:
        """Return the resources of a kernel; None if it is not a device image of ours.

        Raises:
            DatabaseError: The device image is damaged.
        """
        library = kernel.library
        if not library or library.kind != DEVICE_IMAGE:
            return None
        if library.id not in self._known:
            self._known[library.id] = image_resources(self._store.binary(library))
        return self._known[library.id].get(kernel.symbol)
