"""Single problems on a GPU through the script: one of the project's operators, and a user's own with its family."""

import sqlite3
from contextlib import closing

import pytest
from kernels import documented_family
from processes import process

pytestmark = pytest.mark.gpu


def statuses(path, operator):
    """Family -> how its candidates for an operator ended."""
    query = """
        SELECT kernel.family, status FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE operator = ?"""
    found: dict[str, set[str]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for family, status in connection.execute(query, (operator,)):
            found.setdefault(family, set()).add(status)
    return found


def test_problems_of_the_project_and_of_a_user_are_tuned(tmp_path):
    documented_family(tmp_path / "mine")
    path = tmp_path / "single.db"
    problems = [
        "avg_pool2d n=2 h=9 w=7 c=24 r=3 s=3 stride=2 pad=1 dtype=f16 epilogue=relu",
        "vector_add count=100008 dtype=f16 epilogue=mul_scalar,bias,relu",
        "vector_add count=10001 dtype=f16",
    ]
    words = [word for problem in problems for word in ("--problem", problem)]
    done = process("tune", *words, "--families", tmp_path / "mine", "--trials", 8, "--budget", "60s", "--db", path)
    assert done.returncode == 0, done.stderr
    assert statuses(path, "avg_pool2d") == {"aten": {"ok"}, "cuda_avg_pool2d": {"ok"}}
    assert statuses(path, "vector_add") == {"aten": {"ok"}, "cuda_vector_add": {"ok"}}
    assert "number" in done.stdout and "a core-minute" in done.stdout
    assert "tuning the plan of the network" not in done.stdout
