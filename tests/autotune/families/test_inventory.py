"""Each family has a use: a plan of a shipped database, a problem of a training step that it wins, or a reason here."""

import json
import sqlite3
from contextlib import closing
from functools import cache

from autotune.families import families, folder_of
from tuning_db import shipped_databases

REASONS = {
    "cuda_adaptive_avg_pool2d": "No network with adaptive average pools of several pixels has a shipped plan.",
    "cuda_clipped_avg_pool2d": "No network with average pools that leave out the padding has a shipped plan.",
    "cuda_conv2d_pair": "It wins in detectors with 32 channels at 160 x 160 pixels, which have no shipped plan.",
    "cuda_group_norm": "No network with group norms has a shipped plan.",
    "cuda_group_statistics": "No network with group norms has a shipped plan.",
    "cuda_normalize": "No network with group norms has a shipped plan.",
    "cuda_patch_conv2d": "It wins a layer of SE-ResNet9 that plans compute in one kernel with the block behind it.",
    "cuda_se_block": "It is the second part of cuda_stem_se_block, which a shipped plan uses.",
    "cuda_softmax": "No network with a softmax over channels has a shipped plan.",
    "cuda_space_to_depth": "It wins a layer of SE-ResNet9 that plans compute in one kernel with the block behind it.",
    "cutlass2_conv2d_wgrad": "GPUs before sm90, of which no database is shipped, have no other for many channels.",
    "sm90_e4m3_image_conv2d": "It is newer than the shipped plans in fp8.",
}
"""Family without a use in the shipped databases -> why it is kept. Families of the CPU need none: no CPU database is
shipped."""


@cache
def used():
    """Return the families that plans of the shipped databases use or that win a problem of a training step."""
    found = set()
    for path in shipped_databases():
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            names = dict(connection.execute("SELECT id, family FROM kernel"))
            for (choices,) in connection.execute("SELECT choices FROM plan"):
                found |= {names[choice["kernel"]] for choice in json.loads(choices)}
            if "_training_" in path.name:
                fastest = """SELECT kernel_id, min(median_us) FROM measurement WHERE status = 'ok'
                    GROUP BY device_id, problem_id"""
                found |= {names[kernel] for kernel, _ in connection.execute(fastest)}
    return found


def without_use():
    """Return the project's families for GPUs that have no use in the shipped databases."""
    own = {name for name, found in families().items() if folder_of(name) is None and found.architectures != ("cpu",)}
    return own - used()


def test_a_family_without_a_use_has_a_reason():
    assert without_use() <= set(REASONS)


def test_a_reason_is_of_a_family_that_needs_it():
    assert set(REASONS) <= without_use()


def test_no_database_of_a_cpu_is_shipped():
    """Families of the CPU would need a use, too."""
    assert not any(name.startswith("cpu_") for name in used())
