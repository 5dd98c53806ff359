"""Databases with random rows or a wrong kernel, and the content of a file without ids, read with sqlite3 alone."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import torch

from autotune.core import device_name
from tuning_db import Store
from tuning_db.schema import Base, Device
from tuning_db.trust import digests

LIBRARY = {"kind": "device_image", "target": "sm_90", "flags": "-O3", "cutlass": "4", "abi_version": 1}
CONV = "conv2d n={n} h=4 w=4 c=8 k=8 r=1 s=1 stride=1,1 pad=0,0 dilation=1,1 groups=1 dtype=f32 epilogue=none"


def identity(config: str, source: str = "0") -> dict[str, str]:
    return {"family": "f", "config": config, "dtype": "f32", "epilogue": "none", "target": "sm_90", "source": source}


def put_device(store: Store, name: str = "d", target: str = "sm_90", **columns: Any) -> Device:
    """Add a device that computes a FLOP and reads a byte in a microsecond."""
    return store.put_device(name, target, flops_per_us=1.0, bytes_per_us=1.0, **columns)


def put_cpu(store: Store, target: str = "cpu") -> Device:
    """Add this CPU."""
    return put_device(store, device_name(torch.device("cpu")), target)


def put_torch_kernel(store: Store, config: str, **columns: str) -> int:
    """Add a kernel of torch that needs no binary, and return its id; columns: what else it differs in."""
    known = {"family": "torch", "dtype": "f32", "epilogue": "none", "target": "any", "source": ""}
    return store.put_kernel({**known, "config": config, **columns}, symbol="").id


def put_time(store: Store, device: Device, problem: object, kernel: int, us: float | None = 1.0, **columns: Any) -> int:
    """Add a measurement of a kernel, which gave the right result unless columns say otherwise."""
    ids = {"device_id": device.id, "problem_id": store.put_problem(str(problem)).id, "kernel_id": kernel}
    return store.put_measurement(**ids, **{"status": "ok", "median_us": us, **columns})


def fill(store: Store, seed: int, device: str = "d", compiler: str = "c", count: int = 25) -> None:
    """Add random rows. Two seeds share devices, problems and kernels, and have different measurements."""
    rng = random.Random(seed)
    row = store.put_device(device, "sm_90", flops_per_us=rng.random(), bytes_per_us=rng.random(), details={"ä": seed})
    store.put_environment({"torch": f"2.{seed}"})
    for _ in range(count):
        config = json.dumps({"a": rng.randrange(14)})
        if rng.random() < 0.2:
            store.put_kernel(identity(config, "broken"), symbol="s", error="line 1\nλ 'quoted' \"twice\"")
            continue
        shared = rng.randrange(3)  # a binary holds several kernels, chosen at random
        library = store.put_library(rng.randbytes(3000), compiler=compiler, **LIBRARY) if shared else None
        kernel = store.put_kernel(
            identity(config), symbol="s", launch_names=["z", "a"], library_id=library.id if library else None
        )
        ok = rng.random() < 0.7
        store.put_measurement(
            device_id=row.id,
            problem_id=store.put_problem(CONV.format(n=rng.randrange(1, 6))).id,
            kernel_id=kernel.id,
            launch={"z": rng.randrange(2), "a": rng.randrange(2)},
            status="ok" if ok else "wrong",
            error=None if ok else "far off",
            relative_error=rng.random() if ok else float("inf"),
            median_us=rng.random() if ok else None,
            samples_us=[rng.random() for _ in range(3)] if ok else [],
            final=rng.random() < 0.3,
            details={"deep": [{"x": rng.random()}]},
        )
    kernels = [kernel.id for kernel in store.kernels("sm_90") if not kernel.error]
    for n in (1, 2):
        choices = [{"layer": str(i), "kernel": rng.choice(kernels), "launch": {"z": i}, "us": 1.5} for i in range(3)]
        median = rng.random()
        store.put_network(f"net n={n}", f"the layers for {n}, as of {seed % 2}")
        store.put_plan(device_id=row.id, network=f"net n={n}", median_us=median, spread_us=0.1, choices=choices)


def alter(path: Path, *statements: str) -> None:
    """Execute SQL statements on a file, without the checks of `Store`, and commit."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def slow_down(path: Path, factor: float, where: str) -> None:
    """Multiply the times of the measurements that an SQL condition selects."""
    slower = f"median_us = {factor} * median_us, details = json_remove(details, '$.interval_us')"
    alter(path, f"UPDATE measurement SET {slower} WHERE {where}")
    renew_digests(path)


def renew_digests(path: Path) -> None:
    """Store the digests of all rows anew, after a change of rows that is to look like a tuner's."""
    alter(path, *(f"UPDATE {table} SET digest = NULL" for table in ("kernel", "measurement", "plan")))
    with Store.create(path) as store, store.writing() as session:
        tables = {}
        for name in ("device", "problem", "library", "kernel", "measurement", "plan"):
            columns = [column for column in Base.metadata.tables[name].c if column.name != "blob"]
            tables[name] = [dict(row) for row in session.execute(sa.select(*columns)).mappings()]
        digests.fill(store.name, tables)
        for name in ("kernel", "measurement", "plan"):
            table = Base.metadata.tables[name]
            for row in tables[name]:
                session.execute(sa.update(table).where(table.c.id == row["id"]).values(digest=row["digest"]))


QUERIES = {
    "device": "SELECT name, target FROM device",
    "environment": "SELECT software FROM environment",
    "problem": "SELECT text, operator FROM problem",
    "kernel": """SELECT family, config, dtype, epilogue, kernel.target, source, symbol, weight_layouts,
        launch_names, error, compiler
        FROM kernel LEFT JOIN library ON library.id = library_id""",
    "measurement": """SELECT name, text, family, config, source, launch, status, measurement.error, relative_error,
        median_us, spread_us, samples_us, final, measurement.details, recorded, software
        FROM measurement JOIN device ON device.id = device_id JOIN problem ON problem.id = problem_id
        JOIN kernel ON kernel.id = kernel_id LEFT JOIN environment ON environment.id = environment_id""",
    "plan": """SELECT name, network, median_us, spread_us, plan.details, recorded, software,
        (SELECT group_concat(json_extract(value, '$.layer') || config || source || json_extract(value, '$.launch'))
         FROM json_each(choices) JOIN kernel ON kernel.id = json_extract(value, '$.kernel'))
        FROM plan JOIN device ON device.id = device_id LEFT JOIN environment ON environment.id = environment_id""",
    "network": "SELECT key, body FROM network",
}


def with_wrong_kernel(path: Path, folder: Path) -> tuple[Path, int, str]:
    """Return a copy with one wrong kernel, which gets its weights in another layout, its id, and its config."""
    copy = folder / "wrong.db"
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as connection:
        timed = "(SELECT count(*) FROM measurement WHERE kernel_id = kernel.id)"
        kernels = f"FROM kernel WHERE family = 'cpu_conv2d' ORDER BY {timed} DESC LIMIT 1"  # serves several layers
        number, config, layouts = connection.execute(f"SELECT id, config, weight_layouts {kernels}").fetchone()
        width = int(json.loads(layouts)["weight"].removeprefix("k"))
        wider = json.dumps({"weight": f"k{2 * width}"})  # as large or larger, so that no read leaves the tensor
        connection.execute("UPDATE kernel SET weight_layouts = ? WHERE id = ?", (wider, number))
        connection.commit()
    renew_digests(copy)
    return copy, number, config


def told(path: Path) -> dict[str, Counter[tuple[object, ...]]]:
    """Return for each table its rows and how often each occurs."""
    with closing(sqlite3.connect(path)) as connection:
        return {table: Counter(connection.execute(query).fetchall()) for table, query in QUERIES.items()}


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()
