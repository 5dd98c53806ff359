"""Fixtures of the tests of int8 networks."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run on one thread: layers this small are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)
