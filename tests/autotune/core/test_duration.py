"""Durations as text."""

import pytest

from autotune.core import seconds_of


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("7", 7), (7, 7), (0.5, 0.5)])
def test_seconds_of_numbers_and_texts(given, seconds):
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", "-1s", "1d", "1 s", None])
def test_other_values_are_refused(given):
    with pytest.raises(ValueError, match="is not a time: write 90s, 5m or 1h"):
        seconds_of(given)
