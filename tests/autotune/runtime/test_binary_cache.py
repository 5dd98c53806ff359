"""Binaries on disk: named by their digest, checked before use, in a folder of the user's alone."""

import hashlib
import os

import pytest
from processes import python

pytestmark = [pytest.mark.process, pytest.mark.process]


def run(code, cache):
    done = python(code, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


PUT = """
import hashlib
from autotune.runtime import binary_cache
binary = b"some binary"
asked = []
def give():
    asked.append(1)
    return binary
digest = hashlib.sha256(binary).hexdigest()
for _ in range(3):
    path = binary_cache.put(digest, "shared_library", give)
print(path, len(asked), path.stat().st_mode & 0o077, path.parent.stat().st_mode & 0o077)
assert path.read_bytes() == binary
"""


def test_a_binary_is_asked_for_once_and_private(tmp_path):
    path, asked, of_file, of_folder = run(PUT, tmp_path)
    assert (asked, of_file, of_folder) == ("1", "0", "0")
    assert path.startswith(str(tmp_path)) and hashlib.sha256(b"some binary").hexdigest() in path
    assert run(PUT, tmp_path)[1] == "0"


def test_a_file_that_was_tampered_with_is_replaced(tmp_path):
    path = run(PUT, tmp_path)[0]
    with open(path, "wb") as file:
        file.write(b"something else")
    assert run(PUT, tmp_path)[1] == "1"


def test_nothing_partial_stays(tmp_path):
    path = run(PUT, tmp_path)[0]
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
