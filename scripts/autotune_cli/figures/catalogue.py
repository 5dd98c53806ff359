"""Reads benchmarks/figures.toml and the records, and computes figures by their ids.

An id is GROUP.nBATCH[.VARIANT][:QUANTITY], such as "resnet50.f16.n128" (the time of FusedResNet in microseconds),
"resnet50.f16.n128.compile_frozen" (that of torch.compile) or "resnet50.f16.n128:over.compile_frozen" (the speedup over
it); or it is the id of a formula over other ids.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.core import AutotuneError

FILE = "benchmarks/figures.toml"
_ID = re.compile(r"(?P<group>[\w.-]+?)\.n(?P<batch>\d+)(?:\.(?P<variant>[\w.+-]+))?(?::(?P<quantity>[\w.+-]+))?")
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNITS = {"us": "us", "latency": "us", "ms": "ms", "images": "images", "error": "ratio", "tune": "s", "mhz": "mhz"}
"""Quantity -> its unit. Speedups, `over.VARIANT`, have the unit "x"."""


@dataclass(frozen=True)
class Group:
    """Figures of one network in one precision on one device, which one run measures.

    Attributes:
        id: First part of the ids of its figures.
        network: Value of --model.
        device: Name of the GPU or CPU.
        record: Names of its records; one, as soon as the group was measured as a whole.
        batches: Batch size -> digest at the end of the network's key in the shipped database; "" without a plan.
        database: Name of the shipped database; "" if the run tunes into an empty one.
        plan: The network's key in the database, without batch size and digest; "" if the database has no plan of it.
        options: Further words of `autotune bench`.
        ours: The variant that an id without one means.
        variants: Variants that are timed beside it.
        program: Command line that measures the group, in place of `autotune bench`; {record} is the record, {networks}
            the networks of all groups with this program and record, which are measured by one run.
        older: Batch sizes whose plan has kernels of older templates.
        tolerance: A new time that differs by more than this part of the old one is measured again.
    """

    id: str
    network: str
    device: str
    record: tuple[str, ...]
    batches: Mapping[int, str]
    database: str = ""
    plan: str = ""
    options: str = ""
    ours: str = "fused"
    variants: tuple[str, ...] = ()
    program: str = ""
    older: tuple[int, ...] = ()
    tolerance: float = 0.03

    def key(self, batch: int) -> str:
        """Return the key of the network's plan in the shipped database."""
        model, _, rest = self.plan.partition(" ")
        return f"{model} n={batch} {rest} {self.batches[batch]}"


@dataclass(frozen=True)
class Catalogue:
    """The groups, formulas, units and debts of a repository, and its records.

    Attributes:
        root: The repository.
        groups: By id.
        formulas: Id -> formula and unit.
        units: Unit -> rounding: decimals or significant digits, and a suffix.
        debts: (number of the fault, id of the group or figure) -> why it stands.
    """

    root: Path
    groups: Mapping[str, Group]
    formulas: Mapping[str, tuple[str, str]]
    units: Mapping[str, Mapping[str, Any]]
    debts: Mapping[tuple[int, str], str]
    _records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> Catalogue:
        """Read figures.toml of a repository; raises AutotuneError if there is none."""
        if not (root / FILE).is_file():
            raise AutotuneError(f"there is no {FILE}: figures are checked and measured in a checkout")
        data = tomllib.loads((root / FILE).read_text())
        groups = [_group(values) for values in data["group"]]
        return cls(
            root,
            {group.id: group for group in groups},
            {one["id"]: (one["formula"], one["unit"]) for one in data.get("formula", ())},
            data["units"],
            {(debt["fault"], name): debt["reason"] for debt in data.get("debt", ()) for name in debt["ids"]},
        )

    def record(self, name: str) -> dict[str, Any]:
        """Return a record by its name, without benchmarks/ and .json."""
        if name not in self._records:
            path = self.root / "benchmarks" / f"{name}.json"
            if not path.is_file():
                raise AutotuneError(f"benchmarks/{name}.json is missing")
            self._records[name] = json.loads(path.read_text())
        return self._records[name]

    def place(self, name: str) -> tuple[Group, int]:
        """Return the group and the batch size of an id; raises AutotuneError if there is no such figure."""
        found = _ID.fullmatch(name)
        group = self.groups.get(found["group"]) if found else None
        if not found or not group or int(found["batch"]) not in group.batches:
            raise AutotuneError(f"{FILE} has no figure '{name}'")
        return group, int(found["batch"])

    def source(self, group: Group, batch: int) -> tuple[str, dict[str, Any]]:
        """Return the name of the record that has a batch size, and the entries of its variants by their names."""
        for name in group.record:
            record = self.record(name)
            if "outcomes" in record:
                if record["arguments"]["batch"] == batch:
                    return name, record["outcomes"]
                continue
            network = group.network.removeprefix("torchvision:")
            holder = record["networks"].get(network, {}) if "networks" in record else record
            for part in holder.get("batches", ()):
                if part["batch"] == batch:
                    seconds = part.get("tune_seconds", holder.get("tune_seconds"))
                    return name, part["variants"] | {"tune_seconds": seconds}
        raise AutotuneError(f"{' and '.join(group.record)} have no batch {batch} of {group.network}")

    def value(self, name: str) -> float:
        """Return a figure in its unit; raises AutotuneError if it is unknown or its record does not have it."""
        if name in self.formulas:
            return _evaluated(self.formulas[name][0], self._matching)
        group, batch = self.place(name)
        record, entries = self.source(group, batch)
        found = _ID.fullmatch(name)
        assert found
        variant, quantity = found["variant"] or group.ours, found["quantity"] or "us"
        try:
            return _quantity(quantity, entries, variant, batch)
        except KeyError as error:
            raise AutotuneError(f"benchmarks/{record}.json has no {error} for '{name}'") from error

    def text(self, name: str) -> str:
        """Return a figure as pages have it: rounded, with the suffix of its unit."""
        value = self.value(name)
        quantity = name.partition(":")[2] or "us"
        unit = self.formulas[name][1] if name in self.formulas else _UNITS.get(quantity, "x")
        rounding = self.units[unit]
        digits = rounding["significant"] - len(str(int(value))) if "significant" in rounding else rounding["decimals"]
        return f"{value:.{max(0, digits)}f}{rounding.get('suffix', '')}"

    def _matching(self, pattern: str) -> list[float]:
        """Return the value of an id; of all batch sizes if it has "*" in their place."""
        if "*" not in pattern:
            return [self.value(pattern)]
        group, _, rest = pattern.partition(".n*")
        return [self.value(f"{group}.n{batch}{rest}") for batch in self.groups[group].batches]


def put(root: Path, group: str, key: str, value: str) -> None:
    """Replace or add an entry of a group in figures.toml; `value` is its text, empty to remove it."""
    file = root / FILE
    before, head, rest = file.read_text().partition(f'[[group]]\nid = "{group}"\n')
    block, blank, after = rest.partition("\n\n")
    lines = [line for line in block.splitlines() if not line.startswith(f"{key} = ")]
    lines += [f"{key} = {value}"] if value else []
    file.write_text(f"{before}{head}" + "\n".join(lines) + blank + after)


def _group(values: dict[str, Any]) -> Group:
    records = [values["record"]] if isinstance(values["record"], str) else values["record"]
    batches = {int(batch): digest for batch, digest in values["batches"].items()}
    several = {name: tuple(values.get(name, ())) for name in ("variants", "older")}
    return Group(**values | several | {"record": tuple(records), "batches": batches})


def _quantity(quantity: str, entries: Mapping[str, Any], variant: str, batch: int) -> float:
    if quantity == "tune":
        return float(entries["tune_seconds"] or entries[variant]["tune_seconds"])
    entry = entries[variant]
    us = float((entry.get("us") or entry["stream"])["median"])
    if quantity.startswith("over."):
        peer = quantity.removeprefix("over.")
        if "over" in entry:  # a record of tests/campaigns/doors.py: the variant's time over that of each other one
            return 1 / float(entry["over"][peer]["median"])
        return float(entries[peer]["stream_ratio"]["median"]) / float(entry["stream_ratio"]["median"])
    computed: dict[str, Callable[[], float]] = {
        "us": lambda: us,
        "ms": lambda: us / 1e3,
        "images": lambda: 1e6 * batch / us,
        "latency": lambda: float(entry["latency"]["median"]),
        "error": lambda: entry["error"] / entries["eager"]["error"],
        "mhz": lambda: float(entry["sm_mhz"]["median"]),
    }
    return computed[quantity]()


def _evaluated(formula: str, values: Callable[[str], list[float]]) -> float:
    """Return the value of a formula of + - * / and geomean() over ids in braces."""
    text = re.sub(r"\{([^}]+)\}", lambda found: ", ".join(map(repr, values(found[1]))), formula)
    return _number(ast.parse(text, mode="eval").body, formula)


def _number(node: ast.AST, formula: str) -> float:
    match node:
        case ast.Constant(value=float() | int() as value):
            return float(value)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_number(node.left, formula), _number(node.right, formula))
        case ast.Call(func=ast.Name(id="geomean")):
            return math.exp(sum(math.log(_number(each, formula)) for each in node.args) / len(node.args))
        case _:
            raise AutotuneError(f"'{formula}' is no formula: write + - * / and geomean() over ids in braces")
