"""`autotune restamp`: which kernels get a new source digest, on kernels that are compiled here."""

import json
import sqlite3
from contextlib import closing

import pytest
from kernels import built_paths, need_compiler
from machine_code import machine_code
from processes import script

from autotune.codegen import rendering
from autotune.core import architecture, paths
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse
from tuning_db import Store
from tuning_db.reader import Reader

PROBLEM = parse("avg_pool2d n=2 h=9 w=7 c=8 r=3 s=3 stride=2 pad=1 dtype=f16")


@pytest.fixture(scope="module")
def kernels():
    """Two kernels of one family with their device images."""
    need_compiler("sm_80", nvcc=True)
    found, arch = family("cuda_avg_pool2d"), architecture("sm80")
    configs = found.configs_for(PROBLEM, arch)
    pair = [Kernel.of(found.name, config, "f16", Epilogue(), "sm_80") for config in (configs[0], configs[-1])]
    return built_paths(pair)


@pytest.fixture
def database(kernels, tmp_path):
    """A database in which: 1 is identical; 2 has the code of another kernel; 3 is not known; 4 is current."""
    path = tmp_path / "stale.db"
    first, second = kernels
    stored = [(first, "old", first, None), (second, "old", first, None), (first, "old", first, '{"gone": 1}')]
    stored += [(second, rendering.source_digest(second), second, None)]
    with Store.create(path) as store:
        for kernel, source, code, config in stored:
            made = {"compiler": "", "flags": "", "cutlass": "", "abi_version": 1}
            library = store.put_library(kernels[code].read_bytes(), kind="device_image", target="sm_80", **made)
            identity = {"family": kernel.family, "config": config or kernel.config, "dtype": "f16", "epilogue": "none"}
            key = identity | {"target": "sm_80", "source": source, "epilogue": str(kernel.epilogue)}
            store.put_kernel(key, symbol=rendering.symbol(code), library_id=library.id)
    return path


def sources(path):
    with closing(sqlite3.connect(path)) as connection:
        return [source for (source,) in connection.execute("SELECT source FROM kernel ORDER BY id")]


@pytest.mark.compile
def test_identical_machine_code_gets_todays_digest(kernels, database):
    before = sources(database)
    digests = [rendering.source_digest(kernel) for kernel in kernels]
    dry = script("tests/campaigns/restamp.py", database, "--dry-run", COLUMNS="120")
    assert dry.returncode == 0, dry.stderr
    row = next(line for line in dry.stdout.splitlines() if line.startswith("cuda_avg_pool2d"))
    assert row.split()[1:] == ["4", "1", "1", "1", "1", "0"], "kernels, current, identical, changed, not buildable, -"
    assert sources(database) == before
    assert "gone" in dry.stdout and "instructions differ" in dry.stdout

    done = script("tests/campaigns/restamp.py", database, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert sources(database) == [digests[0], "old", "old", digests[1]]
    again = script("tests/campaigns/restamp.py", database, COLUMNS="120").stdout
    row = next(line for line in again.splitlines() if line.startswith("cuda_avg_pool2d"))
    assert row.split()[1:] == ["4", "2", "0", "1", "1", "0"]


@pytest.mark.compile
def test_a_changed_kernel_gets_the_new_binary(kernels, database):
    _, second = kernels
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM kernel WHERE id = 4")
    done = script("tests/campaigns/restamp.py", database, "--replace", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert sources(database)[1] == rendering.source_digest(second)
    with Reader(database) as reader:
        row = reader.kernel(2)  # its digest is that of the new binary
        found = machine_code(reader.binary(row.library), row.symbol)
    assert found == machine_code(kernels[second].read_bytes(), rendering.symbol(second))


@pytest.mark.compile
def test_a_row_that_would_repeat_another_stays(kernels, database):
    first, _ = kernels
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "INSERT INTO kernel (family, config, dtype, epilogue, target, source, symbol, weight_layouts, "
            "launch_names, library_id) "
            "SELECT family, config, dtype, epilogue, target, ?, symbol, weight_layouts, launch_names, library_id "
            "FROM kernel WHERE id = 1",
            (rendering.source_digest(first),),
        )
        connection.commit()
    done = script("tests/campaigns/restamp.py", database, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert sources(database)[0] == "old" and "duplicate: cuda_avg_pool2d" in done.stdout


def test_the_code_of_a_shipped_packed_database_is_read():
    shipped = paths.PACKAGE.parent / "tuning_db" / "se_resnet9_fixup_h200.db"
    with Store.open(shipped) as store:
        images = [(row.symbol, store.binary(row.library)) for row in store.kernels("sm_90") if row.library]
    assert len(images) > 20
    for symbol, image in images[:20]:
        code = machine_code(image, symbol)
        assert code and code.instructions and 16 <= code.resources["registers"] <= 255
        assert code.differing(code) == 0 and machine_code(image, f"{symbol}x") is None


def test_a_database_that_is_not_there_is_refused(tmp_path):
    done = script("tests/campaigns/restamp.py", tmp_path / "absent.db")
    assert done.returncode == 2 and "absent.db" in done.stderr and not (tmp_path / "absent.db").exists()


@pytest.mark.compile
def test_code_is_compared_place_by_place(kernels):
    first, second = kernels
    images = {kernel: path.read_bytes() for kernel, path in kernels.items()}
    codes = [machine_code(images[kernel], rendering.symbol(kernel)) for kernel in (first, second)]
    assert all(code and code.resources["registers"] for code in codes)
    assert codes[0].differing(codes[1]) > 0 == codes[0].differing(codes[0])
    at = images[first].index(codes[0].instructions[5])
    changed = bytearray(images[first])
    changed[at] ^= 1
    assert codes[0].differing(machine_code(bytes(changed), rendering.symbol(first))) == 1
    assert json.loads(first.config) != json.loads(second.config)
