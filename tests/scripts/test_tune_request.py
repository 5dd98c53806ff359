"""Requests of scripts/tune.py that cannot be tuned."""

import re

import pytest
from tune_arguments import requested

from autotune.core import AutotuneError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--precision", "tf32"], "cpu has no kernels in tf32: choose f32"),
        (["--precision", "int8"], "--precision int8 is for captured models"),
        (["--dtype", "s8"], "--dtype s8: a network's tensors are f16, bf16 or f32; give --precision"),
        (["--precision", "int8", "--problem", "conv2d n=1"], "--precision: these options are for a network"),
    ],
    ids=["tf32", "named", "dtype", "problem"],
)
def test_the_tuner_says_what_it_cannot_tune(arguments, said):
    with pytest.raises(AutotuneError, match=re.escape(said)):
        requested(*arguments)
