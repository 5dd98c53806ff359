"""The models that share a graph of torch.compile: which network runs each, and when its memory is given back."""

import gc
import weakref

import pytest
import torch
from processes import in_threads
from torch import nn

from fused_resnet import compile_backend
from fused_resnet.compile_backend import CompiledGraph

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + x)


X = torch.randn(2, 4, 8, 8)


def block():
    return Block().eval()


def of_function(*models):
    return lambda x: sum(model(x) for model in models)


def of_list(*models):
    found = list(models)
    return lambda x: sum(found[i](x) for i in range(len(found)))


@pytest.fixture
def graphs(monkeypatch):
    """Return the graphs that run on our kernels."""
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    made, init = [], CompiledGraph.__init__
    monkeypatch.setattr(CompiledGraph, "__init__", lambda self, *a: (init(self, *a), made.append(self))[0])
    torch._dynamo.reset()
    with torch.no_grad():
        yield made
    torch._dynamo.reset()


@pytest.fixture
def compiled(graphs, empty_db):
    return lambda model: torch.compile(model, backend="autotune", options={"tuning_db": str(empty_db)})


def networks(graph):
    return [one.network for one in graph._bound.values()]


def assert_right(fast, model, x=X):
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


MAKES = {
    "module": block,
    "torch's module": lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()).eval(),
    "closure": lambda: of_function(block()),
    "two in a closure": lambda: of_function(block(), block()),
    "list": lambda: of_list(block(), block()),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_deleted_model_gives_its_memory_back_and_the_others_stay(graphs, compiled, make):
    kept, gone = make(), make()
    fast = [compiled(one) for one in (gone, kept)]
    for one, model in zip(fast, (gone, kept), strict=True):
        assert_right(one, model)
    (graph,) = graphs
    network, other = networks(graph)
    held = [weakref.ref(one) for one in (network, *network.parameters(), *network.buffers())]
    del fast[0], gone, one, model, network
    gc.collect()
    assert networks(graph) == [other] and not any(one() is not None for one in held)
    assert_right(fast[0], kept)
    assert networks(graph) == [other]


def test_the_last_model_leaves_no_tensor_behind(graphs, compiled):
    model = block()
    assert_right(compiled(model), model)
    held = [weakref.ref(one) for one in (*model.parameters(), *model.buffers())]
    del model
    gc.collect()
    assert graphs[0]._bound == {} and graphs[0]._last is None and not any(one() is not None for one in held)


def test_a_graph_that_dynamo_forgets_is_freed_while_its_model_lives(graphs, compiled):
    model = block()
    assert_right(compiled(model), model)
    graph = weakref.ref(graphs.pop())
    torch._dynamo.reset()
    gc.collect()
    assert graph() is None
    del model  # calls what was to tell the graph


def test_parameters_that_are_exchanged_and_back_keep_their_plans(graphs, compiled):
    model, average = block(), block()
    fast, own = compiled(model), model.conv.weight
    for weight in (own, average.conv.weight) * 3:
        model.conv.weight = weight
        assert_right(fast, model)
    assert len(networks(graphs[0])) == 2
    found = networks(graphs[0])
    for _ in range(2):
        for state in (average.state_dict(), dict(model.named_parameters())):
            named = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
            torch.testing.assert_close(
                torch.func.functional_call(fast, named, X), torch.func.functional_call(model, state, X)
            )
    assert len(networks(graphs[0])) == 2 and networks(graphs[0])[0] in found


def test_models_that_exchange_their_parts_run_with_what_they_hold(graphs, compiled):
    one, other = block(), block()
    fast = [compiled(one), compiled(other)]
    for _ in range(2):
        assert_right(fast[0], one)
        assert_right(fast[1], other)
        one.conv, other.conv = other.conv, one.conv
    assert len(networks(graphs[0])) <= 4


def test_a_model_that_is_not_found_is_kept_until_there_are_too_many(graphs, compiled, monkeypatch):
    monkeypatch.setattr(compile_backend, "LARGEST_FAMILY", 3)
    models = [block() for _ in range(5)]
    assert_right(compiled(models[0]), models[0])
    (graph,) = graphs
    names = list(graph._unlifted.states)
    position = graph._unlifted.states
    for model in models * 2:
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        arguments = {position[name]: state[name] for name in names} | {graph._unlifted.inputs[0]: X}
        (result,) = graph(*[arguments.get(i) for i in range(max(arguments) + 1)])
        torch.testing.assert_close(result, model(X), rtol=1e-4, atol=1e-5)
        assert len(graph._bound) <= 3


def test_threads_make_call_and_delete_models(graphs, compiled):
    compiled(block())(X)

    def work():
        with torch.no_grad():
            for _ in range(5):
                model = block()
                fast = compiled(model)
                assert_right(fast, model)
                model.conv.weight.mul_(2)
                assert_right(fast, model)

    in_threads(work, [()] * 4)
    gc.collect()
    assert sum(len(graph._bound) for graph in graphs) == 0
