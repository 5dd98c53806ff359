"""The kernels of one target: those that the database holds, those of other databases, and those that compilers build.

Kernels and plans of other databases need no compiler: a kernel does not depend on the sizes of problems. Databases are
opened as for running a network, so their binaries follow the same rules of trust: with trusted keys a database must be
signed by one of them, and without keys shared libraries are refused from a file that other users can have written. A
kernel is verified on each problem before it is timed, like one that was compiled here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.codegen import POLL_SECONDS, BuildBatch, StartBatch, rendering, translation_units
from autotune.codegen.build_queue import BuildQueue
from autotune.core import NEVER, AutotuneError, Deadline, paths
from autotune.families import SHARED_LIBRARY, Kernel, family
from autotune.ir import Epilogue, Network, Problem, abi, kind_of, parse
from autotune.libraries import aten
from autotune.runtime import plan_for_other_size
from autotune.tuner.progress import Progress
from autotune.tuner.time_shares import TimeBreakdown
from tuning_db import Store, protocols, public_keys
from tuning_db.reader import Reader
from tuning_db.schema import KernelRow, Library


@dataclass(frozen=True)
class ForeignPlan:
    """A plan of another database.

    Attributes:
        plan: The plan.
        kernels: Those of its kernels that can be copied, by their ids there.
        same_size: Whether it is for the network's batch size and image size.
    """

    plan: protocols.Plan
    kernels: Mapping[int, Kernel]
    same_size: bool


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

    Only what serves a run is read: to render the source of a kernel takes milliseconds, and databases hold thousands.

    Args:
        paths: The database files.
        target: The compilation target.
        problems: The problems of the run.

    Attributes:
        kernels: The kernels with dtype and epilogue of one of these; of several databases with one, the first counts.
        rankings: For each problem of their kinds, its kernels in the order of their times; of several databases the
            first counts.

    Raises:
        DatabaseError: A database cannot be read, is not signed by a trusted key, or holds shared libraries that are not
            trusted.
    """

    def __init__(self, paths: Iterable[Path], target: str, problems: Iterable[Problem]) -> None:
        self.kernels: dict[Kernel, ForeignKernel] = {}
        self.rankings: dict[Problem, list[tuple[Kernel, float]]] = {}
        self._target = target
        self._kinds = {kind_of(str(problem)) for problem in problems}
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
        an H200, and settling compares the plan on the device itself. If no database has a plan for the size, one
        for another size is returned, again of the same device first.
        """
        plans: list[tuple[tuple[bool, bool], ForeignPlan]] = []
        for database, current in self._databases:
            for row in database.devices():
                if row.target != self._target:
                    continue
                if own := database.plan(row, network.key):
                    plans.append(((False, row.name != device), ForeignPlan(own, current, same_size=True)))
                elif other := plan_for_other_size(database, row, network):
                    plans.append(((True, row.name != device), ForeignPlan(other.plan, current, same_size=False)))
        found = min(plans, key=itemgetter(0), default=None)
        return found and found[1]

    def _read(self, database: Reader, target: str) -> None:
        current: dict[int, Kernel] = {}
        for number, source in database.kernel_sources(target, [tail for _, tail in self._kinds]).items():
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
            if kind_of(text) not in self._kinds:
                continue
            problem = parsed(text)
            if problem is None:
                continue
            for device in devices:
                ranking: dict[Kernel, float] = {}
                for timed in database.ranking(device, text):
                    if timed.kernel_id in current and timed.median_us:
                        ranking.setdefault(current[timed.kernel_id], timed.median_us)
                if ranking:
                    self.rankings.setdefault(problem, list(ranking.items()))


def parsed(text: str) -> Problem | None:
    """Return the problem of a text; None if this version does not have its operator."""
    try:
        return parse(text)
    except AutotuneError:
        return None


def kernel_of(row: KernelRow | protocols.Kernel) -> Kernel | None:
    """Return the kernel of a row, or None if this version does not define its family, parameters or epilogue."""
    try:
        config = json.loads(row.config)
        if list(config) != [parameter.name for parameter in family(row.family).parameters]:
            return None
        return Kernel.of(row.family, config, row.dtype, Epilogue.parse(row.epilogue), row.target)
    except (AutotuneError, TypeError, ValueError):  # or its text is no config
        return None


TRIAL_SECONDS = 0.05
"""Typical time of verifying and timing a config."""


class KernelBuilder:
    """Compiles kernels on a number of cores. It is a context manager: its exit ends the compilers.

    Args:
        store: The database of the kernels.
        target: The compilation target.
        jobs: Number of compilers that run at the same time.
        breakdown: Receives the compile times.
        progress: Receives events.
        known: The kernels of other databases, which are copied from there instead of being compiled.
        start_batch: Starts compilers; those of this machine, unless there are others.

    Attributes:
        rows: The database row of each kernel that exists or does not compile.
        skipped: The kernels whose compilers were killed also when they ran alone, with what the compiler printed. They
            are not built again in this run, and not recorded: nothing is known about them.
        copied: Number of kernels that this run copied from other databases.
        compiled: Number of kernels that this run compiled.
        compile_seconds: Core-seconds that their translation units took.
        reserved: Cores that are left to others.
        on_failure: Called with each kernel that does not compile or is skipped.
    """

    def __init__(
        self,
        store: Store,
        target: str,
        jobs: int,
        breakdown: TimeBreakdown,
        progress: Progress,
        known: Mapping[Kernel, ForeignKernel] = MappingProxyType({}),
        start_batch: StartBatch = BuildBatch,
    ) -> None:
        self._store, self._target = store, target
        self._breakdown, self._progress, self._known = breakdown, progress, known
        self.on_failure: Callable[[Kernel], None] = lambda _: None
        self.rows: dict[Kernel, KernelRow] = {}
        self.copied = 0
        self.compiled, self.compile_seconds = 0, 0.0
        self.skipped: dict[Kernel, str] = {}
        self.reserved = 0
        self._jobs, self._queue = jobs, BuildQueue(jobs, start_batch)
        self._building: set[Kernel] = set()
        self._ready: list[Kernel] = []
        self._seconds: dict[Kernel, dict[str, float]] = {}

    def __enter__(self) -> KernelBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()
        self._breakdown.set_busy(compilers=False)

    def load(self) -> None:
        """Read the kernels of the database, apart from those whose source has changed since."""
        for row in self._store.kernels(self._target):
            kernel = None if row.family == aten.FAMILY else kernel_of(row)
            # A row with other names of the launch values cannot be launched with the present ones: build it again.
            if kernel and row.source == rendering.source_digest(kernel) and row.launch_names == _launch_names(kernel):
                self.rows[kernel] = row

    def idle_cores(self) -> int:
        """Return the number of cores that have nothing to compile, without those that are reserved."""
        return max(0, self._queue.idle_jobs - self.reserved)

    def build(self, kernels: Sequence[Kernel], search_seconds: float = 0.0) -> None:
        """Start to build kernels; those that exist are ready at once.

        Args:
            kernels: The kernels.
            search_seconds: Time that choosing them took.
        """
        started = time.perf_counter()
        self._breakdown.add({"search": search_seconds})
        self._copy(kernels)
        self._ready += [k for k in kernels if k in self.rows and not self.rows[k].error and k not in self._building]
        known = self.rows.keys() | self.skipped.keys() | self._building
        missing = sorted((k for k in kernels if k not in known), key=str)
        if missing:
            self._building |= set(missing)
            self._progress.compiling(len(missing))
            with self._breakdown.charge("emit"):
                sound, faulty = translation_units.renderable(missing)
                existing, absent = translation_units.existing(sound)
                if absent:
                    jobs = max(1, self.idle_cores())
                    self._queue.add(translation_units.units(absent, jobs), jobs)
                    self._breakdown.set_busy(compilers=True)
            for built in (*faulty, *existing):
                self._finish(built)
        emit_seconds = (time.perf_counter() - started) / max(1, len(missing))
        for kernel in kernels:
            seconds = {
                "search": search_seconds / len(kernels),
                "emit": emit_seconds if kernel in self._building else 0.0,
            }
            self._seconds.setdefault(kernel, seconds)

    def exists(self, kernel: Kernel) -> bool:
        """Return whether a kernel needs no further compiler: it is in a database, or is being built."""
        return kernel in self.rows or kernel in self._known or kernel in self._building

    def trial_seconds(self, kernel: Kernel) -> float:
        """Return the cost of a trial: its share of compiling on all cores, unless the kernel exists, and of timing."""
        if self.exists(kernel):
            return TRIAL_SECONDS
        return TRIAL_SECONDS + sum(family(kernel.family).compile_seconds) / self._jobs

    def _copy(self, kernels: Sequence[Kernel]) -> None:
        """Copy kernels that other databases hold into this one."""
        for kernel in kernels:
            if kernel in self._known and kernel not in self.rows and kernel not in self._building:
                binary, facts = self._known[kernel].load()
                library = self._store.put_library(binary, kind=family(kernel.family).kind, target=self._target, **facts)
                source = identity(kernel, rendering.source_digest(kernel))
                self.rows[kernel] = self._store.put_kernel(source, **_columns(kernel), library_id=library.id)
                self.copied += 1

    def ready(self, wait: bool, until: Deadline = NEVER) -> list[Kernel]:
        """Return the kernels that became ready since the last call, apart from those that do not compile.

        Args:
            wait: Wait until there is one, unless none is being built.
            until: Wait no longer than this.
        """
        while True:
            for built in self._queue.finished():
                self._finish(built)
            self._breakdown.set_busy(compilers=bool(self._queue.pending))
            if self._ready or not wait or not self._queue.pending or until.is_over:
                ready, self._ready = self._ready, []
                return ready
            time.sleep(POLL_SECONDS)

    def take_seconds(self, kernel: Kernel) -> dict[str, float]:
        """Return the seconds of choosing, emitting and compiling a kernel.

        They belong to the kernel's first trial: a second call returns nothing.
        """
        return {step: round(seconds, 5) for step, seconds in self._seconds.pop(kernel, {}).items() if seconds}

    def _finish(self, built: translation_units.Built) -> None:
        """Record the kernels of a translation unit whose build has ended."""
        kernels = built.unit.kernels
        if built.killed:
            self._skip(built)
            return
        library = self._put_library(built) if built.path else None
        outcome = {"library_id": library.id if library else None, "error": built.error or None}
        rows = self._store.put_kernels(
            [(identity(k, rendering.source_digest(k)), _columns(k) | outcome) for k in kernels]
        )
        for kernel, row in zip(kernels, rows, strict=True):
            self.rows[kernel] = row
            self._building.discard(kernel)
            self._seconds.setdefault(kernel, {})["compile"] = built.seconds / len(kernels)
            if built.error:
                self.on_failure(kernel)
        self._breakdown.add({"compile": built.seconds})
        self.compile_seconds += built.seconds
        self.compiled += len(kernels) if built.path and built.seconds else 0
        self._ready += kernels if built.path else ()
        self._progress.compiled(len(kernels), 0 if built.path else len(kernels))

    def _skip(self, built: translation_units.Built) -> None:
        kernels = built.unit.kernels
        self._building.difference_update(kernels)
        self.skipped |= dict.fromkeys(kernels, built.error)
        self._progress.compiled(len(kernels), len(kernels))
        for kernel in kernels:
            self.on_failure(kernel)

    def _put_library(self, built: translation_units.Built) -> Library:
        assert built.path
        return self._store.put_library(
            built.path.read_bytes(),
            kind=family(built.unit.kernels[0].family).kind,
            target=self._target,
            compiler=built.unit.toolchain.compiler,
            flags=built.unit.toolchain.flags,
            cutlass=paths.cutlass_version(),
            abi_version=abi.ABI_VERSION,
        )


def identity(kernel: Kernel, source: str) -> dict[str, str]:
    """Return a kernel's key in the database.

    Args:
        kernel: The kernel.
        source: The digest of its source, or the version of the library that it comes from.
    """
    return {
        "family": kernel.family,
        "config": kernel.config,
        "dtype": kernel.dtype,
        "epilogue": str(kernel.epilogue),
        "target": kernel.target,
        "source": source,
    }


def _columns(kernel: Kernel) -> dict[str, Any]:
    """Return the columns of a kernel's row that are neither its key nor the outcome of its build."""
    layouts = family(kernel.family).weight_layouts(kernel.values)
    return {
        "symbol": rendering.symbol(kernel),
        "weight_layouts": dict(layouts),
        "launch_names": _launch_names(kernel),
    }


def _launch_names(kernel: Kernel) -> list[str]:
    """Return the names of a kernel's launch values in the order in which it takes them."""
    return [parameter.name for parameter in family(kernel.family).launch_parameters]
