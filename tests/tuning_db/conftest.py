"""A PostgreSQL server for tests of databases."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

NOBODY = 65534


def binaries_of_postgresql() -> Path | None:
    """The folder of initdb and pg_ctl, or None."""
    found = shutil.which("initdb") or next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))), None)
    return Path(found).parent if found else None


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a fresh PostgreSQL server, with {} for the database, on a socket of its own."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    binaries = binaries_of_postgresql()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed")
    who = {"user": NOBODY} if os.geteuid() == 0 else {}  # it does not run as root
    with tempfile.TemporaryDirectory() as name:
        if who:
            os.chown(name, NOBODY, -1)
        data = Path(name) / "data"
        quiet = {"stdout": subprocess.DEVNULL, "cwd": name, **who}
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "tuner", "-A", "trust", "-E", "UTF8"], check=True, **quiet
        )
        control = [binaries / "pg_ctl", "-D", data, "-w", "-l", f"{name}/log"]
        subprocess.run([*control, "-o", f"-k {name} -c listen_addresses= -c fsync=off", "start"], check=True, **quiet)
        try:
            yield f"postgresql+psycopg://tuner@/{{}}?host={name}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)


@pytest.fixture
def new_address(server: str) -> str:
    """The address of a new database without tables."""
    name = f"t{time.monotonic_ns()}"
    engine = sa.create_engine(server.format("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.format(name)
