"""tests/campaigns/other_sizes.py on the CPU: right kernels are right at all sizes, and a wrong one is found."""

import json
import re

from databases import with_wrong_kernel
from processes import script


def checked(database, *options):
    return script("tests/campaigns/other_sizes.py", "--db", database, "--device", "cpu", *options)


def test_right_kernels(tuned_db):
    done = checked(tuned_db)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) problems, (\d+) kernels right, \d+ refused, 0 wrong", done.stdout)
    assert found and int(found[1]) > 10 and int(found[2]) > 10


def test_a_wrong_kernel_is_found_and_named(tuned_db, tmp_path):
    path, _, config = with_wrong_kernel(tuned_db, tmp_path)
    done = checked(path, "--batch", "2", "--like", "conv2d ")
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = re.findall(r"^wrong: cpu_conv2d (.+)\n  conv2d n=2 .+\n  tuned for conv2d .+\n  y has", done.stdout, re.M)
    values = " ".join(f"{name}={value}" for name, value in json.loads(config).items())
    assert wrong and all(values in one for one in wrong), done.stdout
