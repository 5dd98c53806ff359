"""Kernels of one target: those that the database holds, and the others, compiled in the background."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from autotune.codegen import ninja_build, rendering
from autotune.core import AutotuneError, paths
from autotune.families import family
from autotune.families.base import Kernel
from autotune.ir import Epilogue, abi
from autotune.libraries import aten
from autotune.tuner.progress import Progress
from autotune.tuner.time_breakdown import Ledger
from tuning_db import Store
from tuning_db.schema import KernelRow, Library


class Workshop:
    """Makes kernels on `jobs` cores. Use it as a context manager: leaving it ends the compilers.

    rows: every kernel that exists, or would not compile, in the database.
    compiled, compile_seconds: kernels that this run compiled, and the seconds of one core that their units took.
    """

    def __init__(
        self,
        store: Store,
        target: str,
        jobs: int,
        ledger: Ledger,
        progress: Progress,
        failed: Callable[[Kernel], None] = lambda _: None,
    ) -> None:
        self._store, self._target, self._jobs = store, target, jobs
        self._ledger, self._progress, self._on_failure = ledger, progress, failed
        self.rows: dict[Kernel, KernelRow] = {}
        self.compiled, self.compile_seconds = 0, 0.0
        self._batches: list[ninja_build.BuildBatch] = []
        self._making: set[Kernel] = set()
        self._ready: list[Kernel] = []
        self._spent: dict[Kernel, dict[str, float]] = {}

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        for batch in self._batches:
            batch.close()
        self._ledger.at_work(compilers=False)

    def recall(self) -> None:
        """Read what the database holds; forget kernels whose source has changed."""
        for known in self._store.kernels(self._target):
            kernel = None if known.family == aten.FAMILY else kernel_of(known)
            # A kernel of an older schema that was never measured lacks the names of its launch values: record it again.
            if (
                kernel
                and known.source == rendering.source_digest(kernel)
                and known.launch_names == _launch_names(kernel)
            ):
                self.rows[kernel] = known

    def room(self) -> int:
        """Cores without work."""
        return max(0, self._jobs - sum(len(batch.pending) for batch in self._batches))

    def make(self, kernels: Sequence[Kernel], search_seconds: float = 0.0) -> None:
        """Begin to make kernels; those that exist are ready at once. search_seconds: spent on choosing them."""
        started = time.perf_counter()
        self._ready += [k for k in kernels if k in self.rows and not self.rows[k].error and k not in self._making]
        missing = sorted((k for k in kernels if k not in self.rows and k not in self._making), key=str)
        if missing:
            self._making |= set(missing)
            self._progress.compiling(len(missing))
            with self._ledger.charge("emit"):
                sound, faulty = ninja_build.renderable(missing)
                exist, absent = ninja_build.existing(sound)
                if absent:
                    room = max(1, self.room())
                    self._batches.append(ninja_build.BuildBatch(ninja_build.units(absent, room), room))
                    self._ledger.at_work(compilers=True)
            for built in (*faulty, *exist):
                self._keep(built)
        each = (time.perf_counter() - started) / max(1, len(missing))
        for kernel in kernels:
            spent = {"search": search_seconds / len(kernels), "emit": each if kernel in self._making else 0.0}
            self._spent.setdefault(kernel, spent)

    def ready(self, wait: bool) -> list[Kernel]:
        """Sound kernels that became ready. wait: until there is one, unless nothing is being made."""
        while True:
            for batch in list(self._batches):
                for built in batch.finished():
                    if parts := ninja_build.split(built):
                        self._batches.append(ninja_build.BuildBatch(parts, self._jobs))
                    else:
                        self._keep(built)
                if not batch.pending:
                    batch.close()
                    self._batches.remove(batch)
            self._ledger.at_work(compilers=bool(self._batches))
            if self._ready or not wait or not self._batches:
                ready, self._ready = self._ready, []
                return ready
            time.sleep(ninja_build.POLL_SECONDS)

    def spent(self, kernel: Kernel) -> dict[str, float]:
        """The seconds of choosing, emitting and compiling a kernel; told once, for its first trial."""
        return {step: round(seconds, 5) for step, seconds in self._spent.pop(kernel, {}).items() if seconds}

    def _keep(self, built: ninja_build.Built) -> None:
        """Record a unit that has come to an end."""
        kernels = built.unit.kernels
        library = self._put_library(built) if built.path else None
        outcome = {"library_id": library.id if library else None, "error": built.error or None}
        rows = self._store.put_kernels(
            [(identity(k, rendering.source_digest(k)), _facts(k) | outcome) for k in kernels]
        )
        for kernel, row in zip(kernels, rows, strict=True):
            self.rows[kernel] = row
            self._making.discard(kernel)
            self._spent.setdefault(kernel, {})["compile"] = built.seconds / len(kernels)
            if built.error:
                self._on_failure(kernel)
        self._ledger.add({"compile": built.seconds})
        self.compile_seconds += built.seconds
        self.compiled += len(kernels) if built.path and built.seconds else 0
        self._ready += kernels if built.path else ()
        self._progress.compiled(len(kernels), 0 if built.path else len(kernels))

    def _put_library(self, built: ninja_build.Built) -> Library:
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
    """A kernel's key in the database. source: what its code was made from."""
    return {
        "family": kernel.family,
        "config": kernel.config,
        "dtype": kernel.dtype,
        "epilogue": str(kernel.epilogue),
        "target": kernel.target,
        "source": source,
    }


def _facts(kernel: Kernel) -> dict[str, Any]:
    """What the database says of a kernel beside its key and what became of it."""
    layouts = family(kernel.family).weight_layouts(kernel.values)
    return {
        "symbol": rendering.symbol(kernel),
        "weight_layouts": dict(layouts),
        "launch_names": _launch_names(kernel),
    }


def _launch_names(kernel: Kernel) -> list[str]:
    """Return the names of a kernel's launch values in the order in which it takes them."""
    return [parameter.name for parameter in family(kernel.family).launch_parameters]


def kernel_of(row: KernelRow) -> Kernel | None:
    """The kernel of a row; None if its family, its parameters or its epilogue are not this version's."""
    try:
        config = json.loads(row.config)
        if list(config) != [parameter.name for parameter in family(row.family).parameters]:
            return None
        return Kernel.of(row.family, config, row.dtype, Epilogue.parse(row.epilogue), row.target)
    except AutotuneError:
        return None
