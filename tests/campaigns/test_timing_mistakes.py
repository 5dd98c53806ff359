"""tests/campaigns/timing_mistakes.py without a GPU."""

import pytest
import torch
from processes import script


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_mistakes_of_timing_are_shown_on_a_gpu_only():
    done = script("tests/campaigns/timing_mistakes.py")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: torch sees no NVIDIA GPU: these mistakes occur on a GPU only\n"
