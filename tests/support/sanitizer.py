"""compute-sanitizer over random kernels of all CUDA families, and over one faulty kernel for each of its tools.

Alone, a program that builds the kernels once, runs all tools side by side and prints a table:

python tests/support/sanitizer.py [FAMILY ...] [--kernels N] [--logs FOLDER]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from processes import HANG
from random_kernels import Sample
from random_sizes import SIZES
from repository import ROOT

PROGRAM = "compute-sanitizer"
_SAMPLER = "tests/support/random_kernels.py"
_ALL = sorted(SIZES)
FOUND = 9
"""Exit code of compute-sanitizer if it has found something."""
GROUPS = 4
"""Processes among which a tool's families are dealt."""
LIMIT_SECONDS = 300
"""Time limit of a process under a tool. It only ends processes that hang."""

_OURS = ("--kernel-name", "regex=^(at|cuda|cutlass2|sm90)_")  # torch's kernels have mangled names: _Z...
_GO_ON = ("--destroy-on-device-error", "kernel")  # so that a report of one family does not end the others
_COMMON = ["--target-processes", "application-only", "--error-exitcode", str(FOUND), "--print-limit", "20"]
_PATIENT = ["--launch-timeout", "120", "--max-connections", "100"]  # many at once, on few cores


@dataclass(frozen=True)
class Tool:
    """How a tool of compute-sanitizer runs.

    Attributes:
        flags: Its options.
        sample: Arguments of random_kernels.py.
        fault: Arguments of faulty_kernel.py, for a fault that it must find.
        report: What it says of that fault.
    """

    flags: tuple[str, ...]
    sample: tuple[str, ...]
    fault: tuple[str, ...]
    report: str


_SMALL = ("--largest", "6e8")
TOOLS = {
    "memcheck": Tool((*_OURS, *_GO_ON), ("--largest", "2e9"), ("writes_far",), "Invalid __global__ write"),
    "racecheck": Tool(_OURS, _SMALL, ("races",), "Race reported"),
    # All kernels: what a kernel of torch has written must be known to the tool. It does not see all that cuDNN writes.
    "initcheck": Tool((), (*_SMALL, "--no-cudnn"), ("good", "--unwritten"), "Uninitialized __global__ memory read"),
    "synccheck": Tool((*_OURS, *_GO_ON), (*_SMALL, "--unaligned"), ("diverges",), "Divergent thread(s) in block"),
}


@dataclass(frozen=True)
class Report:
    """The report of a tool on a process.

    Attributes:
        tool: Name of the tool.
        of: The families, or the faulty kernel.
        code: Exit code of compute-sanitizer; -SIGKILL if the process took too long.
        text: Its output and that of the program.
        seconds: Time of the process.
    """

    tool: str
    of: str
    code: int
    text: str = field(repr=False)
    seconds: float

    @property
    def clean(self) -> bool:
        """True if the program ended with 0 and the tool has found nothing."""
        return not self.code and bool(re.search(r"SUMMARY: 0 (errors|hazards)", self.text))

    @property
    def problems(self) -> dict[str, int]:
        """Family -> problems that were solved, for the families that are done."""
        found = re.findall(r"^(\w+): (\d+) problems", self.text, re.MULTILINE)
        return {name: int(count) for name, count in found}

    @property
    def supported(self) -> bool:
        """True if compute-sanitizer supports this GPU."""
        return "Device not supported" not in self.text

    @property
    def findings(self) -> str:
        """The kernels of ours in which the tool has found something, or how far the program came."""
        kernels = sorted(set(re.findall(r" at (\w+)\+0x[0-9a-f]+", self.text)))
        return ", ".join(kernels) or f"exit code {self.code} after {' '.join(self.problems) or 'no family'}"


def available() -> bool:
    return shutil.which(PROGRAM) is not None


def build(families: Sequence[str] = _ALL, kernels: int = Sample.kernels) -> None:
    """Build the kernels of all samples, so that no process under a tool compiles."""
    for more in ((), ("--unaligned",)):
        command = [sys.executable, _SAMPLER, *families, "--build", "--kernels", str(kernels), *more]
        subprocess.run(command, check=True, cwd=ROOT, timeout=HANG)


def found_in_sample(tool: str) -> list[Report]:
    """Run a tool over a sample of all families, in several processes at once."""
    with ThreadPoolExecutor(GROUPS) as pool:
        return list(pool.map(lambda families: _sample(tool, families), _groups(_ALL)))


def found_in_fault(tool: str) -> Report:
    """Run a tool over the kernel with a fault that it must find."""
    return _watched(tool, TOOLS[tool].fault[0], ["tests/support/faulty_kernel.py", *TOOLS[tool].fault])


def _groups(families: Sequence[str]) -> list[Sequence[str]]:
    return [group for i in range(GROUPS) if (group := families[i::GROUPS])]


def _sample(tool: str, families: Sequence[str], kernels: int = Sample.kernels) -> Report:
    sample = ["--kernels", str(kernels), *TOOLS[tool].sample]
    return _watched(tool, " ".join(families), [_SAMPLER, *families, *sample])


def _watched(tool: str, of: str, program: Sequence[str]) -> Report:
    """Run a program under a tool, each tensor in memory of its own."""
    command = [PROGRAM, "--tool", tool, *_COMMON, *_PATIENT, *TOOLS[tool].flags, sys.executable, *program]
    variables = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=variables, cwd=ROOT, start_new_session=True, **streams) as process:
        try:
            text, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the program too, not only compute-sanitizer
            text, _ = process.communicate()
    return Report(tool, of, process.returncode, text, time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=_ALL, help="only these (default: all)")
    parser.add_argument("--kernels", type=int, default=Sample.kernels, help="of each family (default: %(default)s)")
    parser.add_argument("--logs", type=Path, help="a folder for the output of each process")
    options = parser.parse_args()
    started = time.monotonic()
    build(options.families, options.kernels)
    print(f"built in {time.monotonic() - started:.0f} s", flush=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        groups = _groups(options.families)
        samples = {tool: [pool.submit(_sample, tool, group, options.kernels) for group in groups] for tool in TOOLS}
        faults = {tool: pool.submit(found_in_fault, tool) for tool in TOOLS}
        bad = 0
        print("tool        problems  processes  longest  finds its fault  kernels with findings, or what ended")
        for tool, group in samples.items():
            reports, fault = [future.result() for future in group], faults[tool].result()
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                for i, report in enumerate([*reports, fault]):
                    options.logs.joinpath(f"{tool}-{i}.log").write_text(f"{report.of}\n{report.text}")
            unclean = [report for report in reports if not report.clean]
            told = fault.code == FOUND and TOOLS[tool].report in fault.text
            said = [report.findings for report in unclean]
            problems = sum(sum(report.problems.values()) for report in reports)
            longest = max(report.seconds for report in reports)
            print(
                f"{tool:12}{problems:8}  {len(reports) - len(unclean)} of {len(reports)} clean  {longest:5.0f} s  "
                f"{'yes' if told else 'no':15}  {'; '.join(said) or '-'}",
                flush=True,
            )
            bad += len(unclean) + (not told)
    print(f"all in {time.monotonic() - started:.0f} s")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
