"""How candidates are shown."""

from autotune.tuner.report import format_candidate
from tuning_db.schema import KernelRow


def test_a_config_of_an_earlier_version_is_shown_as_it_is():
    row = KernelRow(family="cpu_conv2d", config='{"gone": 1}')
    assert format_candidate(row, {"threads": 2}) == 'cpu_conv2d {"gone": 1} threads 2'
