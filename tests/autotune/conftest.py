"""Fixtures of several tests: a new database, and one that has the kernels of the network of two layers."""

import pytest
from two_layer_network import put_kernels

from tuning_db import Store


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "t.db") as store:
        yield store


@pytest.fixture
def kernels(store):
    """A device, and kernels by (layer, number): two for each layer, of which number 0 is faster alone."""
    return put_kernels(store)
