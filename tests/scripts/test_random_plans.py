"""scripts/checks/random_plans.py on the CPU: right kernels make right plans, and a wrong kernel is found and named."""

import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
from databases import renew_digests
from processes import TUNED_BATCH, script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def checked(database, *options):
    return script(
        "checks/random_plans", "--db", database, "--device", "cpu", "--batch", TUNED_BATCH, "--plans", 10, *options
    )


@pytest.fixture
def wrong_db(tuned_db, tmp_path):
    """Return a database with one wrong kernel, which gets its weights in another layout, and that kernel's config."""
    path = shutil.copy(tuned_db, tmp_path / "wrong.db")
    with closing(sqlite3.connect(path)) as connection:
        timed = "(SELECT count(*) FROM measurement WHERE kernel_id = kernel.id)"
        kernels = f"FROM kernel WHERE family = 'cpu_conv2d' ORDER BY {timed} DESC LIMIT 1"  # serves several layers
        number, config, layouts = connection.execute(f"SELECT id, config, weight_layouts {kernels}").fetchone()
        width = int(json.loads(layouts)["weight"].removeprefix("k"))
        wider = json.dumps({"weight": f"k{2 * width}"})  # as large or larger, so that no read leaves the tensor
        connection.execute("UPDATE kernel SET weight_layouts = ? WHERE id = ?", (wider, number))
        connection.commit()
    renew_digests(path)
    return path, config


def test_plans_of_right_kernels(tuned_db):
    done = checked(tuned_db)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 plans of se_resnet9_fixup, 0 wrong" in done.stdout
    native = re.search(r"(\d+) of them on kernels of the database", done.stdout)
    assert native and int(native[1]) > 10


def test_a_wrong_kernel_is_found_and_named(wrong_db):
    path, config = wrong_db
    done = checked(path)
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = re.findall(r"^seed (\d+): relative error \S+, allowed \S+ layers alone:\n  (.+)", done.stdout, re.M)
    assert wrong and f"{len(wrong)} wrong" in done.stdout
    assert all("cpu_conv2d" in worst and config in worst for _, worst in wrong)
    seed, worst = wrong[-1]
    assert worst in checked(path, "--seed", seed, "--plans", 1).stdout
