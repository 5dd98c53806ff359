"""Measures groups of figures on a GPU: all batch sizes and variants of a group in one run, into one record."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from autotune.core import AutotuneError
from autotune.measure import reason_names
from autotune_cli.figures.catalogue import Catalogue, Group, put
from autotune_cli.record import checkout

IDLE, POWER_CAP = 0x1, 0x4
"""Bits of nvidia-smi's reasons for a low clock that an idle GPU, or one at its full power limit, may have."""
NETWORKS = "{networks}"
"""The placeholder in a program that one run replaces by the names of its networks."""
BUSY_PERCENT = 5
"""Utilization above which other work is on the GPU, although nvidia-smi may not see its process from a container."""
_QUERY = "name,utilization.gpu,clocks_throttle_reasons.active,power.limit,power.default_limit"


def record_name(catalogue: Catalogue, group: Group) -> str:
    """Return the name of the one record that a run of a group writes: that of the group if it has none of its own.

    A program for several networks writes one record for all of them.
    """
    if NETWORKS in group.program:
        return group.record[0]
    others = {name for other in catalogue.groups.values() if other.id != group.id for name in other.record}
    return group.record[0] if len(group.record) == 1 and group.record[0] not in others else group.id


def command(groups: list[Group], record: str) -> str:
    """Return the command line that measures a group, or those with one program, into a record of this name."""
    group, path = groups[0], f"benchmarks/{record}.json"
    if group.program:
        networks = ",".join(one.network.removeprefix("torchvision:") for one in groups)
        return group.program.format(record=path, networks=networks)
    options = f"{group.options} --db tuning_db/{group.database}" if group.database else group.options
    return _bench(group, [*group.batches], options, [*group.variants, "fused"], path)


def commands_ahead(group: Group) -> list[str]:
    """Return command lines that let Inductor compile a group's peers, each for a batch size; {out} is their record."""
    compiled = [one for one in group.variants if one.startswith("compile")]
    if group.program or not compiled:
        return []
    return [_bench(group, [batch], f"{group.options} --seconds 0", compiled, "{out}") for batch in group.batches]


def _bench(group: Group, batches: list[int], options: str, variants: list[str], path: str) -> str:
    head = f"autotune bench --model {group.network} --batch {','.join(map(str, batches))}"
    return f"{head} {options.strip()} --only {','.join(variants)} --out {path}".replace("  ", " ")


def measure(catalogue: Catalogue, groups: list[Group], tell: Callable[[str], None]) -> None:
    """Measure groups, and write the record of each.

    Inductor first compiles the peers of all groups, in several processes at a time, so that a run finds their code in
    its caches. A figure that differs by more than its group's tolerance from the record before is measured once more.
    If that run does not come to its end, the record of the first one stays.

    Args:
        catalogue: The figures.
        groups: The groups to measure; empty for all that this GPU has.
        tell: Receives each line of the outcome.

    Raises:
        AutotuneError: The checkout has uncommitted changes, the GPU is another one, busy or throttled, or a run failed.
    """
    if not checkout()["commit"] or checkout()["uncommitted_changes"]:
        raise AutotuneError("a record of uncommitted changes cannot be traced: commit them first")
    groups = groups or [one for one in catalogue.groups.values() if one.device == _gpu()[0]]
    compile_ahead(catalogue.root, [line for group in groups for line in commands_ahead(group)], tell)
    for name, together in _runs(catalogue, groups).items():
        _measure(catalogue, name, together, tell)


def _runs(catalogue: Catalogue, groups: list[Group]) -> dict[str, list[Group]]:
    """Return the groups that one run measures, by the name of the record that it writes."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(record_name(catalogue, group), []).append(group)
    return found


def _measure(catalogue: Catalogue, name: str, groups: list[Group], tell: Callable[[str], None]) -> None:
    """Measure groups into one record, and again those with a time that moved."""
    before = {group.id: _times(catalogue, group) for group in groups}
    wanted = groups
    for attempt in (1, 2):
        require_quiet(groups[0].device, settled(_gpu))
        with _kept(catalogue.root / "benchmarks" / f"{name}.json", when=attempt == 2):
            _run(catalogue.root, command(wanted, name))
        moved = []
        for group in wanted:
            old, now = before[group.id], _times(replace(catalogue, _records={}), replace(group, record=(name,)))
            far = [one for one in old if abs(now[one] / old[one] - 1) > group.tolerance]
            for one in far:
                again = " again" if attempt == 2 else ""
                change = f"{old[one]:.1f} -> {now[one]:.1f} us ({now[one] / old[one] - 1:+.1%})"
                tell(f"{one}: {change}, more than {group.tolerance:.0%}{again}")
            moved += [group] if far else []
        wanted = moved
        if not wanted:
            break
    for group in groups:
        put(catalogue.root, group.id, "record", f'"{name}"')
    tell(f"benchmarks/{name}.json is new: autotune figures --update writes its figures into the pages")


@contextmanager
def _kept(path: Path, when: bool) -> Iterator[None]:
    """Put a file's text back if the work fails or is interrupted: a run writes its record batch size by batch size."""
    text = path.read_text() if when else None
    try:
        yield
    except BaseException:
        if text is not None:
            path.write_text(text)
        raise


def settled(read: Callable[[], list[str]], seconds: float = 10.0) -> list[str]:
    """Return the answers to _QUERY once the GPU is idle, or after some seconds: its utilization is a mean of the past.

    Args:
        read: Returns the answers.
        seconds: The longest wait.
    """
    deadline = time.monotonic() + seconds
    while float((state := read())[1]) > BUSY_PERCENT and time.monotonic() < deadline:
        time.sleep(seconds / 20)
    return state


def require_quiet(device: str, state: list[str]) -> None:
    """Raise AutotuneError unless a GPU is the named one, idle, unthrottled and at its full power limit.

    Args:
        device: The name that it should have.
        state: The answers to _QUERY.
    """
    name, percent, reasons, limit, full = state
    if name != device:
        raise AutotuneError(f"these are figures of {device}; this is {name}: its figures get ids of their own")
    if float(percent) > BUSY_PERCENT:
        raise AutotuneError(f"the GPU is {percent} % busy with other work: wait until it ends")
    if slowed := reason_names(int(reasons, 16) & ~(IDLE | POWER_CAP)):
        raise AutotuneError(f"the GPU's clock is throttled ({', '.join(slowed)}): let it cool down, or reset the clock")
    if float(limit) < float(full):
        raise AutotuneError(f"the power limit is {limit} W instead of {full} W: nvidia-smi -pl sets it")


def _gpu() -> list[str]:
    """Return the answers of nvidia-smi for the GPU that torch calls cuda:0."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    words = ["nvidia-smi", "-i", number, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise AutotuneError("nvidia-smi does not answer: figures are measured on an NVIDIA GPU") from error
    return [word.strip() for word in done.stdout.strip().split(",")]


def compile_ahead(root: Path, lines: list[str], tell: Callable[[str], None]) -> None:
    """Run commands, a process for each core at a time. A failure is not reported: the measurement repeats it."""
    begin, environment = time.monotonic(), os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:

        def run(numbered: tuple[int, str]) -> None:
            number, line = numbered
            words = _words(line.format(out=f"{folder}/{number}.json"))
            subprocess.run(words, cwd=root, check=False, capture_output=True, env=environment)

        list(threads.map(run, enumerate(lines)))
    if lines:
        tell(f"Inductor compiled the peers of {len(lines)} batch sizes in {time.monotonic() - begin:.0f} s")


def _run(root: Path, line: str) -> None:
    if subprocess.run(_words(line), cwd=root, check=False).returncode:
        raise AutotuneError(f"'{line}' failed: its reason stands above")


def _words(line: str) -> list[str]:
    """Return the words of a command line, with this Python."""
    first, *others = line.split()
    return [sys.executable, *(["-m", "autotune_cli", *others] if first == "autotune" else others)]


def _times(catalogue: Catalogue, group: Group) -> dict[str, float]:
    """Return the times of a group's records in microseconds, by their ids."""
    catalogue = replace(catalogue, groups={group.id: group})
    ends = ("", *(f".{variant}" for variant in group.variants))
    names = [f"{group.id}.n{batch}{end}" for batch in group.batches for end in ends]
    return {name: catalogue.value(name) for name in names}
