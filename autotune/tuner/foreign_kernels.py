"""Kernels and plans of other databases. They need no compiler: a kernel does not depend on the sizes of problems.

Databases are opened as for running a network, so their binaries follow the same rules of trust: with trusted keys a
database must be signed by one of them, and without keys shared libraries are refused from a file that other users can
have written. A kernel is verified on each problem before it is timed, like one that was compiled here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from autotune.codegen import rendering
from autotune.core import AutotuneError
from autotune.families import SHARED_LIBRARY, Kernel, family
from autotune.ir import Epilogue, Network, Problem, parse
from autotune.runtime import plan_for_other_batch
from tuning_db import protocols, public_keys
from tuning_db.reader import Reader
from tuning_db.schema import KernelRow


@dataclass(frozen=True)
class ForeignPlan:
    """A plan of another database.

    Attributes:
        plan: The plan.
        kernels: Those of its kernels that can be copied, by their ids there.
        same_batch: Whether it is for the batch size of the network.
    """

    plan: protocols.Plan
    kernels: Mapping[int, Kernel]
    same_batch: bool


@dataclass(frozen=True)
class ForeignKernel:
    """A kernel of another database.

    Attributes:
        database: The database.
        library: The row of its binary there.
    """

    database: Reader
    library: protocols.Library

    def load(self) -> tuple[bytes, dict[str, Any]]:
        """Return the binary, and how it was made: columns of the table `library`."""
        return self.database.binary(self.library), self.database.build_facts(self.library)


class ForeignKernels:
    """The kernels of some databases for one target whose source is the present one. It is a context manager.

    Args:
        paths: The database files.
        target: The compilation target.

    Attributes:
        kernels: The kernels; of several databases with a kernel the first counts.
        rankings: For each problem, its kernels in the order of their times; of several databases the first counts.

    Raises:
        DatabaseError: A database cannot be read, is not signed by a trusted key, or holds shared libraries that are not
            trusted.
    """

    def __init__(self, paths: Iterable[Path], target: str) -> None:
        self.kernels: dict[Kernel, ForeignKernel] = {}
        self.rankings: dict[Problem, list[tuple[Kernel, float]]] = {}
        self._target = target
        self._databases: list[tuple[Reader, dict[int, Kernel]]] = []  # with their current kernels by id
        keys = public_keys(())
        with ExitStack() as stack:
            for path in paths:
                self._read(stack.enter_context(Reader(path, keys)), target)
            self._open = stack.pop_all()

    def __enter__(self) -> ForeignKernels:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def plan(self, device: str, network: Network) -> ForeignPlan | None:
        """Return the plan of a network for a device, of the first database that has one.

        A device of the same name comes first, then any device of the target: what is fast on an H100 is seldom slow on
        an H200, and settling compares the plan on the device itself. If no database has a plan for the batch size, one
        for another batch size is returned, again of the same device first.
        """
        plans: list[tuple[tuple[bool, bool], ForeignPlan]] = []
        for database, current in self._databases:
            for row in database.devices():
                if row.target != self._target:
                    continue
                if own := database.plan(row, network.key):
                    plans.append(((False, row.name != device), ForeignPlan(own, current, same_batch=True)))
                elif other := plan_for_other_batch(database, row, network):
                    plans.append(((True, row.name != device), ForeignPlan(other[0], current, same_batch=False)))
        found = min(plans, key=itemgetter(0), default=None)
        return found and found[1]

    def _read(self, database: Reader, target: str) -> None:
        current: dict[int, Kernel] = {}
        for number, source in database.kernel_sources(target).items():
            row = database.kernel(number)
            kernel = kernel_of(row)
            if kernel and row.library and source == rendering.source_digest(kernel):
                if not current and family(kernel.family).kind == SHARED_LIBRARY:
                    database.binary(row.library)  # refused before anything is tuned, if it is not trusted
                current[number] = kernel
                self.kernels.setdefault(kernel, ForeignKernel(database, row.library))
        self._databases.append((database, current))
        devices = [device for device in database.devices() if device.target == target] if current else []
        for text in database.problem_texts() if devices else ():
            try:
                problem = parse(text)
            except AutotuneError:  # an operator that this version does not have
                continue
            for device in devices:
                ranking: dict[Kernel, float] = {}
                for timed in database.ranking(device, text):
                    if timed.kernel_id in current and timed.median_us:
                        ranking.setdefault(current[timed.kernel_id], timed.median_us)
                if ranking:
                    self.rankings.setdefault(problem, list(ranking.items()))


def kernel_of(row: KernelRow | protocols.Kernel) -> Kernel | None:
    """Return the kernel of a row, or None if this version does not define its family, parameters or epilogue."""
    try:
        config = json.loads(row.config)
        if list(config) != [parameter.name for parameter in family(row.family).parameters]:
            return None
        return Kernel.of(row.family, config, row.dtype, Epilogue.parse(row.epilogue), row.target)
    except (AutotuneError, TypeError, ValueError):  # or its text is no config
        return None
