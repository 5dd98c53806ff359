"""The backend of torch.compile: results of Dynamo's graphs, which weights they use, and what is left to Inductor."""

import os
import tomllib
import warnings

import pytest
import torch
from processes import python
from repository import ROOT
from torch import nn
from torch._dynamo.utils import counters

from autotune.core import UnknownNameError
from fused_resnet import FusedResNet, InputError
from fused_resnet.capture.operators import HANDLERS
from fused_resnet.compile_backend import autotune
from fused_resnet.compile_options import CompileOptions
from fused_resnet.quantization.calibrate import calibrate
from tuning_db import DatabaseError, Store

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")
SIZE = 8


class Block(nn.Module):
    """A convolution with a residual connection."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.register_buffer("gain", torch.rand(channels, 1, 1))
        for tensor in (self.norm.running_mean, self.norm.running_var, self.norm.weight):
            nn.init.uniform_(tensor, 0.5, 1.5)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) * self.gain + x)


class Net(nn.Module):
    """Two blocks and a linear layer."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def images(n, seed=0):
    return torch.randn(n, 8, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def compiled(model, database, **options):
    return torch.compile(model, backend=autotune, options={"tuning_db": database, **options})


def assert_same(model, fast, *inputs):
    torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.fixture
def bound(monkeypatch):
    """Return the networks that were made for graphs of Dynamo: on Inductor there are none."""
    made, init = [], FusedResNet.__init__
    monkeypatch.setattr(FusedResNet, "__init__", lambda self, *a, **k: (init(self, *a, **k), made.append(self))[0])
    return made


# -- graphs that run on our kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_batch_gives_the_models_result(empty_db, bound, no_inductor, mode):
    model = Net().eval()
    fast = compiled(model, empty_db)
    with mode():
        for n in (2, 3, 5, 4):
            assert_same(model, fast, images(n, n))
        assert counters["stats"]["unique_graphs"] == 2  # the first batch, and one graph for all others
    assert bound and not no_inductor


def test_the_network_is_the_one_that_a_capture_of_the_model_gives(empty_db, bound):
    model = Net().eval()
    with torch.no_grad():
        compiled(model, empty_db)(images(3))
    expected = FusedResNet.from_model(model, empty_db)._network(images(3))
    # The alternative of torch's operators lists them as the graph has them, which is not as torch.export does.
    assert bound[0]._network(images(3)).without_whole == expected.without_whole


def of_attributes(model, database):
    """Compile a graph that holds its parameters as attributes and submodules, as Dynamo's did in older versions."""
    with torch.no_grad():
        run = autotune(torch.fx.symbolic_trace(model), [images(2)], options={"tuning_db": database})
    return lambda x: run(x)[0]


@pytest.mark.parametrize("make", [compiled, of_attributes])
def test_changed_weights_are_used_by_the_next_call(empty_db, bound, no_inductor, make):
    model, x = Net().eval(), images(2)
    fast = make(model, empty_db)
    with torch.no_grad():
        assert_same(model, fast, x)
        model.blocks[0].conv.weight.mul_(2)
        assert_same(model, fast, x)
        model.blocks[1].norm.running_mean.add_(1)
        assert_same(model, fast, x)
        model.head.weight = nn.Parameter(torch.randn_like(model.head.weight))
        assert_same(model, fast, x)
        model.load_state_dict(Net().state_dict())
        assert_same(model, fast, x)
    assert bound and not no_inductor


def test_models_that_share_a_graph_keep_their_own_plans(empty_db, bound, no_inductor):
    blocks, x = [Block().eval() for _ in range(3)], images(2)
    fast = [compiled(block, empty_db) for block in blocks]
    with torch.no_grad():
        for _ in range(2):
            for block, one in zip(blocks, fast, strict=True):
                assert_same(block, one, x)
        assert len(bound) == 3 and counters["stats"]["unique_graphs"] == 1 and not no_inductor
        assert len({id(one._network(x)) for one in bound}) == 1  # captured once


def test_weights_that_no_model_holds_any_more_are_released(empty_db):
    block, x = Block().eval(), images(2)
    made = []

    def backend(graph, inputs, **_):
        made.append(autotune(graph, inputs, options={"tuning_db": empty_db}))
        return made[-1]

    fast = torch.compile(block, backend=backend)
    with torch.no_grad():
        for _ in range(4):
            block.conv.weight = nn.Parameter(torch.randn_like(block.conv.weight))
            assert_same(block, fast, x)
    assert len(made) == 1 and len(made[0]._bound) <= 2


def test_a_function_that_calls_a_model_is_captured(empty_db, bound, no_inductor):
    model = Net().eval()
    with torch.no_grad():
        assert_same(lambda x: model(x) * 2, compiled(lambda x: model(x) * 2, empty_db), images(2))
    assert bound and not no_inductor


class Modes(Net):
    def forward(self, x):
        with torch.no_grad():
            x = self.blocks[0](x)
        with torch.enable_grad():
            x = self.blocks[1](x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradient_modes_inside_forward_change_nothing(empty_db, bound, no_inductor, mode):
    model = Modes().eval().requires_grad_(False)
    with mode():
        assert_same(model, compiled(model, empty_db), images(2))
    assert bound and not no_inductor


def test_results_have_the_models_memory_format(empty_db):
    block = Block().eval()
    fast = compiled(block, empty_db)
    with torch.no_grad():
        for x in (images(2), images(2).contiguous(memory_format=torch.channels_last)):
            assert fast(x).stride() == block(x).stride()


def test_tf32_has_problems_of_its_own(empty_db, bound):
    with torch.no_grad():
        compiled(Net().eval(), empty_db, precision="tf32")(images(2))
    assert {layer.problem.dtype for layer in bound[0]._network(images(2)).layers} >= {"tf32"}


def test_int8_takes_the_scales_of_a_calibration(empty_db):
    model, x = Net().eval(), images(4)
    scales = calibrate(model, [x])
    with torch.no_grad():
        expected = FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(x)
        assert torch.equal(compiled(model, empty_db, precision="int8", calibration=scales)(x), expected)
        assert not torch.equal(model(x), expected)


# -- graphs that do not ------------------------------------------------------------------------------------------------


class Changing(Net):
    def forward(self, x):
        return super().forward(x.add_(1))


class Broken(Net):
    def forward(self, x):
        x = self.blocks(x)
        torch._dynamo.graph_break()
        return x.flatten(1).argmax(1)


class Pair(Net):
    def forward(self, x, y):
        return super().forward(x + y), super().forward(x - y)


class Train(Net):
    def eval(self):
        return self


class Autocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Changing, "changes its input in place"), (Train, "is in training mode"), (Autocast, "autocast")],
)
def test_what_cannot_be_captured_runs_without_our_kernels(empty_db, no_inductor, kind, reason):
    model, copy = kind().eval(), kind().eval()
    copy.load_state_dict(model.state_dict())
    fast, x, other = compiled(model, empty_db), images(2), images(2)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=reason):
            result = fast(x)
        torch.testing.assert_close(result, copy(other))
    assert torch.equal(x, other) and all(map(torch.equal, model.state_dict().values(), copy.state_dict().values()))
    assert len(no_inductor) == 1


class Scaled(Net):
    def forward(self, x, scale):
        return super().forward(x) * scale.sum()


def test_inputs_of_several_dtypes_run_without_our_kernels(empty_db, no_inductor):
    model, x, scale = Scaled().eval(), images(2), images(2, 1).double()
    with torch.no_grad(), pytest.warns(UserWarning, match=r"several dtypes: torch\.float32, torch\.float64"):
        torch.testing.assert_close(compiled(model, empty_db)(x, scale), model(x, scale))
    assert len(no_inductor) == 1


def fail_at_batch(monkeypatch, refused):
    """Let the capture of a convolution of some batch sizes fail in a way that nobody foresaw."""
    handler = HANDLERS["conv2d"]

    def conv2d(lowering, node):
        if node.meta["val"].shape[0] in refused:
            raise KeyError("conv")
        return handler(lowering, node)

    monkeypatch.setitem(HANDLERS, "conv2d", conv2d)


def test_an_unexpected_error_leaves_a_graph_to_inductor_and_is_named(empty_db, no_inductor, monkeypatch):
    fail_at_batch(monkeypatch, {2})
    model = Net().eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="leaves a graph to Inductor, because KeyError: 'conv'"):
        assert_same(model, compiled(model, empty_db), images(2))
    assert len(no_inductor) == 1


def test_an_unexpected_error_for_another_shape_is_named_once(empty_db, bound, no_inductor, monkeypatch):
    fail_at_batch(monkeypatch, {5})
    model = Net().eval()
    fast = compiled(model, empty_db)
    with torch.no_grad():
        assert_same(model, fast, images(2))
        assert_same(model, fast, images(3))  # from now on Dynamo has one graph for all batch sizes
        with pytest.warns(UserWarning, match="runs a graph on torch's operators, because KeyError: 'conv'"):
            assert_same(model, fast, images(5))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(model, fast, images(5))
    assert len(bound) == 2 and not no_inductor


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupt_and_a_wrong_database_are_not_left_to_inductor(empty_db, no_inductor, monkeypatch, tmp_path):
    (tmp_path / "other.db").write_text("no database")
    with torch.no_grad():
        for name, error in ((tmp_path / "none.db", "no tuning database"), (tmp_path / "other.db", "not a tuning")):
            with pytest.raises(DatabaseError, match=error):
                autotune(torch.fx.symbolic_trace(Net().eval()), [images(2)], options={"tuning_db": name})
        monkeypatch.setitem(HANDLERS, "conv2d", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compiled(Net().eval(), empty_db)(images(2))
    assert not no_inductor


def test_a_users_submodule_in_training_mode_stays_so(empty_db, no_inductor):
    model = torch.fx.symbolic_trace(Net().train())
    with torch.no_grad(), pytest.warns(UserWarning, match="in training mode"):
        autotune(model, [images(2)], options={"tuning_db": empty_db})
    assert all(part.training for part in model.modules())


def test_several_inputs_and_results_are_right(empty_db, no_inductor):
    model = Pair().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        assert_same(model, compiled(model, empty_db), images(2, 1), images(2, 2))


def test_a_piece_without_layers_goes_to_inductor_silently(empty_db, bound, no_inductor):
    model = Broken().eval()
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(compiled(model, empty_db)(images(2)), model(images(2)))
    assert len(no_inductor) == 1 and bound
    assert not [one for one in said if "leaves a graph" in str(one.message)]


def test_gradients_that_nothing_needs_are_no_training(empty_db, bound, no_inductor):
    model = Net().eval().requires_grad_(False)
    assert_same(model, compiled(model, empty_db), images(2))
    assert bound and not no_inductor


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tunign_db": "x"}, InputError, "unknown option 'tunign_db'.*tuning_db, tune, budget"),
        ({"tune": "all"}, UnknownNameError, "unknown option tune 'all': choose one of off, missing"),
        ({"tune": "missing", "budget": "soon"}, InputError, "'soon' is not a time"),
        ({"budget": "9s"}, InputError, "budget, trials, jobs and only are for tune='missing'"),
        ({"precision": "int4"}, UnknownNameError, "int4"),
        ({"precision": "int8"}, InputError, "needs calibration"),
        ({"precision": "fp8"}, InputError, "precision='fp8' needs calibration"),
        ({"tune": "missing", "trusted_keys": ["k"]}, InputError, "no signature"),
    ],
)
def test_options_that_are_wrong_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        CompileOptions.of(options)


def test_a_mode_is_refused(empty_db):
    with pytest.raises(InputError, match="mode='max-autotune' is a mode of Inductor"):
        autotune(torch.fx.symbolic_trace(nn.ReLU()), [torch.ones(1)], mode="max-autotune")


def test_the_database_is_that_of_the_option_the_environment_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("AUTOTUNE_DB", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DatabaseError, match=r"no tuning database at .*tuning.db: give options=.*AUTOTUNE_DB"):
        CompileOptions.of(None)
    own = tmp_path / "autotune" / "tuning.db"
    assert CompileOptions.of({"tune": "missing"}).database == str(own) and own.exists()
    assert CompileOptions.of(None).database == str(own)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "other.db"))
    Store.create(tmp_path / "other.db").close()
    assert CompileOptions.of(None).database == str(tmp_path / "other.db")
    assert CompileOptions.of({"tuning_db": own}).database == str(own)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_torch_finds_the_backend_without_an_import(empty_db, tmp_path):
    """The entry point of pyproject.toml, in a folder as pip writes it, in a process that imports torch alone."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    folder = tmp_path / "points-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: points\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines, ""]))
    code = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU()).eval()
fast = torch.compile(model, backend="autotune")
x = torch.randn(2, 4, 8, 8)
with torch.no_grad():
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
assert "fused_resnet.module" in sys.modules and "torch._inductor.compile_fx" not in sys.modules
"""
    paths = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = python(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "AUTOTUNE_DB": str(empty_db)})
    assert done.returncode == 0, done.stderr
    assert "is not tuned for batch 2" in done.stderr


class Sizes(nn.Module):
    """Reads a size of a tensor that comes after a parameter, and returns one, and a parameter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.conv(x)
        return self.conv(y.reshape(y.size(0) * 2, 4, SIZE, SIZE).view(-1, 8, SIZE, SIZE)), x.shape[0], self.conv.bias


def test_a_batch_size_that_dynamo_treats_as_a_variable_stays_on_a_captured_network(empty_db, bound):
    model = Sizes().eval()
    fast = compiled(model, empty_db)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "backend='autotune' ")  # no graph is left to Inductor
        for n in (2, 3, 4):
            y, size, bias = fast(images(n))
            torch.testing.assert_close(y, model(images(n))[0], rtol=1e-4, atol=1e-5)
            assert size == n and bias is model.conv.bias
    assert len(bound) == 2, "for the first batch size, and for all others"


@pytest.mark.compile
@pytest.mark.process
def test_missing_layers_are_tuned_at_the_first_call(tmp_path, capsys):
    model, x = Block().eval(), images(2)
    fast = compiled(model, tmp_path / "new.db", tune="missing", budget="10m")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # none says that a layer is not tuned
        assert_same(model, fast, x)
        said = capsys.readouterr()
        assert "autotune: tuning" in said.err and "database" in said.err and not said.out
        torch._dynamo.reset()
        assert_same(model, compiled(model, tmp_path / "new.db", tune="missing", budget="10m"), x)
    assert not capsys.readouterr().err


class NamedLikeAnOperator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, add, relu):
        y = self.conv(add + 1) * relu
        return torch.relu(y) + add


def test_an_input_may_have_the_name_of_an_operator(empty_db, no_inductor):
    model, (x, other) = NamedLikeAnOperator().eval(), torch.randn(2, 2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, empty_db)(x, other), model(x, other))
