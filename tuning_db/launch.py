"""Launch values of kernels: their canonical text, and their names in databases of older schemas."""

from __future__ import annotations

from collections.abc import Mapping


def launch_text(launch: Mapping[str, int]) -> str:
    """Return the canonical text of launch values: equal for equal values, in whatever order they are given."""
    return " ".join(f"{name}={int(value)}" for name, value in sorted(launch.items()))


NAMES_SINCE = 3
"""The schema from which on a kernel's row holds the names of its launch values."""

RECORDED_NAMES = """
    (SELECT replace(json_group_array(key), '","', '", "') FROM json_each(coalesce(
        (SELECT m.launch FROM main.measurement m WHERE m.kernel_id = {kernel}.id LIMIT 1),
        (SELECT json_extract(choice.value, '$.launch') FROM main.plan p, json_each(p.choices) choice
         WHERE json_extract(choice.value, '$.kernel') = {kernel}.id LIMIT 1),
        '{{}}')))"""
"""SQL of SQLite: the names of a kernel's launch values in the order of the kernel, as json.dumps writes it.

Before schema 3, values were passed in the order in which they were recorded. A kernel without a measurement or a plan
has none. {kernel}: the table's name in the query.
"""
