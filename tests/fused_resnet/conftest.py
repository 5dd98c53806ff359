"""Fixtures of the tests of FusedResNet."""

import sys

import pytest


@pytest.fixture(autouse=True)
def forgotten_compilations():
    """Forget what a test compiled: all networks share the code of one method, whose recompilations torch limits."""
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
