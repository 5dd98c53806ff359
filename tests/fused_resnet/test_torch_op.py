"""FusedResNet as a part of torch: layouts, memory, tracers, autocast. On the CPU."""

import copy
import re
import sqlite3
from contextlib import closing

import pytest
import torch
from kernels import built_paths, candidate_of
from processes import TUNED_BATCH, script
from reference import relative_error, solve
from seed_network import assert_result, fused, images

from autotune.ir import parse
from autotune.runtime import bind
from fused_resnet import FusedResNet, InputError
from fused_resnet.torch_op import is_traced
from tuning_db import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture(scope="module")
def net(tuned_db):
    """A network for tests that leave it as it is."""
    return fused(tuned_db)


# -- layouts and outputs -------------------------------------------------------------------


def test_a_channels_last_input_is_read_where_it_lies(net):
    x = images(TUNED_BATCH)
    y, other = net(x), net(x.to(memory_format=torch.channels_last))
    assert torch.equal(other, y)
    plans = {key[3]: context.plan for key, context in net._cache.contexts.items() if key[0] == x.shape}
    assert not plans[False].copies_input
    first = plans[False].bound[0]  # torch's operator, which takes any strides, or a kernel that is told
    assert first.step.function or first.choice.candidate.launch["channels_last"] == 1


@pytest.mark.parametrize("threads", [0, 1])
def test_the_kernel_that_reads_images_reads_either_order(cpu_kernel, threads):
    problem = parse("space_to_depth n=3 h=12 w=20 c=3 block=4 dtype=f32")
    kernel = cpu_kernel("cpu_space_to_depth", {})
    path = built_paths([kernel])[kernel]
    x = torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    wanted = solve(problem, {"x": x}, ())["y"]
    for last, given in enumerate((x, x.to(memory_format=torch.channels_last))):
        y = torch.full(problem.output_shape, float("nan"))
        launch = {"threads": threads, "channels_last": last}
        bind(candidate_of(kernel, path, launch), problem, {"x": given, "y": y}, (), torch.device("cpu")).run()
        assert torch.equal(y.double(), wanted)


def test_results_are_channels_last_or_as_asked(net):
    x = images(2)
    y = net(x)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    other = net(x, memory_format=torch.contiguous_format)
    assert other.is_contiguous() and torch.equal(other, y)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_a_result_goes_where_it_is_told(net, order):
    x = images(2)
    out = torch.full((2, 512, 2, 2), float("nan")).contiguous(memory_format=order)
    address = out.data_ptr()
    assert net(x, out=out) is out
    assert out.data_ptr() == address and torch.equal(out, net(x))


def test_places_that_are_not_aligned(net):
    x = images(2)
    y = net(x)
    shifted = torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape)
    out = torch.full((2 * 2048 + 1,), float("nan"))[1:].view(2, 2, 2, 512).permute(0, 3, 1, 2)
    assert shifted.data_ptr() % 16 and out.data_ptr() % 16
    assert net(shifted, out=out) is out and torch.equal(out, y)


@pytest.mark.parametrize(
    "out", [torch.empty(3, 512, 2, 2), torch.empty(2, 512, 2, 2).half(), torch.empty(2, 512, 2, 2, device="meta")]
)
def test_a_place_that_does_not_fit_is_refused(net, out):
    with pytest.raises(InputError, match=r"out is .*the result is \(2, 512, 2, 2\), torch.float32, on cpu"):
        net(images(2), out=out)


# -- the short way: what is bound, without the interpreter between input and launch ------------------------------------


def shortly(network, x, out=None):
    return network._cache.calls.run(x, out)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="a torch before 2.10")
def test_the_engine_runs_what_it_knows(tuned_db):
    network, x = fused(tuned_db), images(2)
    assert shortly(network, x) is None
    y, other = network(x), images(2, seed=3)
    assert_result(network, other, shortly(network, other))
    out = torch.full_like(y, float("nan"))
    assert shortly(network, x, out) is out and torch.equal(out, y)
    unlike = [images(3), x.double(), x.to(memory_format=torch.channels_last), x.expand(2, 3, 64, 64)[:, :, ::2], x[0]]
    unaligned = torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape)
    assert [shortly(network, given) for given in (*unlike, unaligned, None, "x")] == [None] * 8
    assert [shortly(network, x, given) for given in (y[:1], y.contiguous(), y.double(), "y")] == [None] * 4
    with torch.no_grad():
        network.stem[1].weight *= 2
    assert shortly(network, x) is None and shortly(network, x) is None
    assert_result(network, x, network(x))
    assert_result(network, other, shortly(network, other))


def test_an_older_torch_takes_the_long_way(tuned_db, monkeypatch):
    monkeypatch.setattr("fused_resnet.call_cache.EXCHANGE", None)
    network, x = fused(tuned_db), images(2)
    y = network(x)
    assert shortly(network, x) is None and torch.equal(network(x), y)
    assert_result(network, x, y)


def test_the_engine_forgets_what_is_no_longer_kept(tuned_db):
    network = FusedResNet(tuned_db, plans=1)
    network(images(1))
    network(images(2))
    assert shortly(network, images(1)) is None


def test_whoever_changes_what_a_call_does_is_heard(tuned_db):
    network, x = fused(tuned_db), images(2)
    y = network(x)
    hooks = [
        (network.register_forward_hook, lambda module, given, result: result + 1, y + 1),
        (network.register_forward_pre_hook, lambda module, given: (2 * given[0],), network(2 * x)),
        (torch.nn.modules.module.register_module_forward_hook, lambda module, given, result: result + 2, y + 2),
    ]
    for register, hook, wanted in hooks:
        handle = register(hook)
        assert torch.equal(network(x), wanted)
        handle.remove()
    network.forward = lambda given: given
    assert network(x) is x
    del network.forward
    assert torch.equal(network(x), y)

    class Doubled(FusedResNet):
        def forward(self, x):
            return 2 * super().forward(x)

    doubled = Doubled(tuned_db)
    doubled.load_state_dict(network.state_dict())
    assert [torch.equal(doubled(x), 2 * y) for _ in range(2)] == [True, True]


# -- memory -------------------------------------------------------------------


def test_only_so_many_plans_are_kept(tuned_db):
    network = FusedResNet(tuned_db, plans=3)
    for n in (1, 2, 3, 4, 2, 5):
        network(images(n))
    assert sorted(key[0][0] for key in network._cache.contexts) == [2, 4, 5]
    assert_result(network, images(1), network(images(1)))


def test_activations_share_memory(net):
    shown = net.explain(images(TUNED_BATCH))
    assert 0 < shown.arena_bytes < shown.buffer_bytes / 2
    assert shown.arena_bytes <= shown.context_bytes


# -- what it says -------------------------------------------------------------------


def test_explain_is_a_table(net):
    shown = net.explain(images(TUNED_BATCH))
    text = str(shown).splitlines()
    assert len(shown) == len(list(shown)) and all(len(line) <= 80 for line in text)
    assert all(any(line.startswith(row.layer[:20]) for line in text) for row in shown)
    assert all(row.source == "tuned" and row.loss == 0 and row.limit_share > 0 for row in shown)
    assert shown.expected_us == pytest.approx(sum(row.expected_us for row in shown))


@pytest.mark.parametrize(("n", "runs"), [(1, 1), (TUNED_BATCH - 1, 1), (2 * TUNED_BATCH, 2), (2 * TUNED_BATCH + 1, 3)])
def test_a_neighbours_kernels_are_expected_to_lose_something(net, tuned_db, n, runs):
    """One tuned batch: its kernels run as often as it goes into the other, and no kernel takes less than the limit."""
    with closing(sqlite3.connect(tuned_db)) as connection:
        times = connection.execute("SELECT median_us FROM measurement WHERE status = 'ok'").fetchall()
    for row in net.explain(images(n)):
        assert row.source == f"batch {TUNED_BATCH}"
        assert any(row.expected_us == pytest.approx(runs * time) for (time,) in times)
        assert 0 <= row.loss <= max(0.0, 1 / row.limit_share - 1) + 1e-9


def test_what_is_faster_in_other_layers_is_at_a_neighbours_batch_too(net):
    tuned, other = ([row.layer for row in net.explain(images(n))] for n in (TUNED_BATCH, TUNED_BATCH + 3))
    assert other == tuned


def test_untuned_layers_are_not_given_times(tuned_db):
    shown = fused(tuned_db).bfloat16().explain(images(1).bfloat16())
    assert shown.expected_us is None
    assert {(row.source, row.expected_us, row.loss) for row in shown} == {("untuned", None, None)}
    assert all(len(line) <= 80 for line in str(shown).splitlines())


# -- weights and structure -------------------------------------------------------------------


def test_a_replaced_submodule_is_seen(tuned_db):
    network, x = fused(tuned_db), images(2)
    before = network(x)
    other = fused(tuned_db, seed=7)
    network.layers[1] = copy.deepcopy(other.layers[1])
    assert_result(network, x, network(x))
    assert relative_error(network(x), before) > 0.01
    network.layers = copy.deepcopy(other.layers)
    network.stem = other.stem
    assert torch.equal(network(x), other(x))
    assert torch.equal(network.train()(x), other.train()(x))


def test_a_submodule_of_another_kind_is_refused(tuned_db):
    network = fused(tuned_db)
    network.layers[2][0].se = torch.nn.Identity()
    with pytest.raises(InputError, match=r"'layers\.2\.0\.se' is a Identity, where .* has a SqueezeExcite"):
        network(images(1))


def test_weights_of_another_shape_are_refused(tuned_db):
    network = fused(tuned_db)
    network.stem[1].weight = torch.nn.Parameter(torch.randn(64, 40, 1, 1))
    with pytest.raises(InputError, match=r"'stem\.1\.weight' is of shape \(64, 40, 1, 1\)"):
        network(images(1))


# -- tracers -------------------------------------------------------------------


class Holder(torch.nn.Module):
    """A model with the network inside."""

    def __init__(self, network):
        super().__init__()
        self.encoder = network
        self.head = torch.nn.Linear(512, 5)

    def forward(self, x):
        return self.head(self.encoder(2 * x).mean((2, 3)))


@pytest.fixture
def holder(net):
    torch.manual_seed(0)
    return Holder(net).eval()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_graph_break(holder, backend):
    compiled = torch.compile(holder, fullgraph=True, backend=backend, dynamic=True)
    for n in (2, 3):
        x = images(n, seed=n)
        torch.testing.assert_close(compiled(x), holder(x))


def test_exported(holder):
    batch = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    program = torch.export.export(holder, (images(2),), dynamic_shapes=batch)
    assert any("fused_resnet.run" in str(node.target) for node in program.graph.nodes)
    for n in (2, 5):
        torch.testing.assert_close(program.module()(images(n)), holder(images(n)))


def test_traced_by_jit_and_fx(holder):
    traced = torch.jit.trace(holder, images(2), check_trace=False)
    recorded = torch.fx.experimental.proxy_tensor.make_fx(holder)(images(2))
    x = images(2, seed=1)
    assert torch.equal(traced(x), holder(x)) and torch.equal(recorded(x), holder(x))


def test_the_operator_keeps_torchs_rules(net):
    assert not is_traced(images(1))
    torch.library.opcheck(torch.ops.fused_resnet.run.default, (images(2), net._number))


def test_a_traced_program_whose_network_is_gone_says_so():
    with pytest.raises(InputError, match="number 987654"):
        torch.ops.fused_resnet.run(images(1), 987654)


def test_any_module_compiles_though_it_was_never_called(tmp_path):
    """While torch.compile traces it, it is captured for the first time."""
    Store.create(tmp_path / "empty.db").close()
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    network, x = FusedResNet.from_model(module, tmp_path / "empty.db"), torch.randn(2, 3, 7, 6)
    y = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(y, module(x), atol=1e-5)


class Either(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_what_cannot_be_captured_ends_a_compilation_in_an_error(tmp_path):
    """torch.cond compiles its branches, while the compilation that looks for the network's shape holds the lock."""
    Store.create(tmp_path / "empty.db").close()
    network = FusedResNet.from_model(Either().eval(), tmp_path / "empty.db")
    with pytest.raises(Exception, match="the model calls torch's cond"):
        torch.compile(network, fullgraph=True, backend="aot_eager")(torch.randn(2, 3, 4, 4))


# -- modes -------------------------------------------------------------------


def test_autocast_changes_what_is_taken_and_not_what_is_computed(net):
    x = images(2)
    rounded = x.bfloat16()
    y, of_rounded = net(x), net(rounded.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(net(x), y)
        assert torch.equal(net(rounded), of_rounded)
        assert torch.equal(torch.compile(net, fullgraph=True, backend="aot_eager")(rounded), of_rounded)
        with pytest.raises(InputError, match="uint8"):
            net(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(InputError, match="bfloat16"):
        net(rounded)


def test_torchs_operators_are_not_autocast(tuned_db):
    x = images(2)
    mixed = fused(tuned_db).bfloat16()
    y = mixed(x.bfloat16())
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(mixed(x.bfloat16()), y)


def test_an_input_that_requires_a_gradient_is_refused(net):
    x = images(1).requires_grad_()
    with pytest.raises(InputError, match=r"detach\(\).*no_grad\(\).*train\(\)"):
        net(x)
    with pytest.raises(InputError, match="gradient"):
        torch.ops.fused_resnet.run(x, net._number)
    with torch.no_grad():
        assert torch.equal(net(x), net(x.detach()))
    assert copy.deepcopy(net).train()(x).requires_grad


def test_buffers_made_in_inference_mode_serve_outside(tuned_db):
    network, x = fused(tuned_db).bfloat16(), images(2).bfloat16()
    with torch.inference_mode():
        y = network(x)
    assert torch.equal(network(x), y)


# -- the scripts -------------------------------------------------------------------


def test_stress_finds_nothing(tuned_db):
    done = script("checks/stress", "--db", tuned_db, "--device", "cpu", "--calls", 24, "--batches", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 calls from 4 threads, 0 wrong" in done.stdout


def test_host_cost_is_measured(tuned_db):
    done = script("bench_host", "--db", tuned_db, "--device", "cpu", "--calls", 20, "--loads", 1)
    assert done.returncode == 0, done.stderr
    assert "us a call" in done.stdout
    stages = dict(re.findall(r"^ +(\w[\w ]*?) +([\d.]+)$", done.stdout, re.MULTILINE))
    total = float(re.search(r"to a first result, N = 1: (\d+) ms", done.stdout)[1])
    parts = [float(stages[name]) for name in ("imports", "making the module", "choosing and binding", "the first run")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(total, abs=1)
