"""tests/campaigns/random_plans.py on the CPU: right kernels make right plans, and a wrong kernel is found and named."""

import re

import pytest
from databases import with_wrong_kernel
from processes import TUNED_BATCH, script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def checked(database, *options):
    words = ("--db", database, "--device", "cpu", "--batch", TUNED_BATCH, "--plans", 10, *options)
    return script("tests/campaigns/random_plans.py", *words)


@pytest.fixture
def wrong_db(tuned_db, tmp_path):
    return with_wrong_kernel(tuned_db, tmp_path)


def test_plans_of_right_kernels(tuned_db):
    done = checked(tuned_db)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 plans of se_resnet9_fixup, 0 wrong" in done.stdout
    native = re.search(r"(\d+) of them on kernels of the database", done.stdout)
    assert native and int(native[1]) > 10


def test_a_wrong_kernel_is_found_and_named(wrong_db):
    path, _, config = wrong_db
    done = checked(path)
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = re.findall(r"^seed (\d+): relative error \S+, allowed \S+ layers alone:\n  (.+)", done.stdout, re.M)
    assert wrong and f"{len(wrong)} wrong" in done.stdout
    assert all("cpu_conv2d" in worst and config in worst for _, worst in wrong)
    seed, worst = wrong[-1]
    assert worst in checked(path, "--seed", seed, "--plans", 1).stdout
