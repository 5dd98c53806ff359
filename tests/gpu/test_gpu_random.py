"""Every CUDA family that compiles in seconds: random kernels on hundreds of random problems, and a few of them under
the tools of compute-sanitizer."""

import pytest
import sanitizer
from random_kernels import Sample, wrong
from random_sizes import SIZES

pytestmark = pytest.mark.gpu

KERNELS = {"cuda_conv2d": 24, "sm90_conv2d": 24}
"""Of a family, where eight do not show all its ways to load."""


@pytest.mark.parametrize("name", SIZES)
def test_random_kernels_solve_random_problems(name):
    count, complaints = wrong([name], Sample(kernels=KERNELS.get(name, 8), problems=5))
    assert not complaints, "\n".join(complaints)
    assert count >= 30  # in all, more than 500


@pytest.fixture(scope="module")
def kernels_of_samples():
    if not sanitizer.available():
        pytest.skip("compute-sanitizer is not on the PATH")
    sanitizer.build()


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_a_sanitizer_finds_nothing_in_a_sample_of_all_families(tool, kernels_of_samples):
    reports = sanitizer.found_in_sample(tool)
    if not all(report.supported for report in reports):
        pytest.skip("compute-sanitizer cannot watch this GPU")
    for report in reports:
        assert report.clean, f"{report}: {report.findings}\n{report.text[-4000:]}"
    assert sum(sum(report.problems.values()) for report in reports) >= 50  # of 120 on an sm_90


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_a_sanitizer_finds_a_fault(tool):
    """So that a clean report of the sample means something: the fault is in a kernel that is loaded as ours are."""
    if not sanitizer.available():
        pytest.skip("compute-sanitizer is not on the PATH")
    report = sanitizer.found_in_fault(tool)
    if not report.supported:
        pytest.skip("compute-sanitizer cannot watch this GPU")
    assert report.code == sanitizer.FOUND and sanitizer.TOOLS[tool].report in report.text, report.text[-4000:]
