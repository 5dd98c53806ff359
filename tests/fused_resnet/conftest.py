"""Fixtures of the tests of FusedResNet."""

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def forgotten_compilations():
    """Forget what a test compiled: all networks share the code of one method, whose recompilations torch limits."""
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()


@pytest.fixture
def no_inductor(monkeypatch):
    """Let Inductor fail, as it does without a compiler; return the graphs that it was given."""
    given = []
    torch._dynamo.lookup_backend("inductor")  # registers torch's own backends

    def fail(graph, inputs):
        given.append(graph)
        raise RuntimeError("no compiler")

    monkeypatch.setitem(torch._dynamo.backends.registry._COMPILER_FNS, "inductor", fail)
    return given
