"""Values of command-line options."""

import argparse

import pytest

from autotune_cli import command_line


def test_times_and_sizes_are_read_from_text():
    assert [command_line.seconds(text) for text in ("90s", "5m", "1h", "2.5", "0.5m")] == [90, 300, 3600, 2.5, 30]
    assert [command_line.positive(text) for text in ("1", "128")] == [1, 128]
    refused = {
        command_line.seconds: ("", "-5s", "5d", "s", "1e3", "nan"),
        command_line.positive: ("0", "-1", "x", "1.5", ""),
    }
    for function, texts in refused.items():
        for text in texts:
            with pytest.raises(argparse.ArgumentTypeError) as error:
                function(text)
            assert repr(text) in str(error.value)
