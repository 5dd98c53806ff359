"""FusedResNet on the CPU: right for every batch, and right again whenever its weights change."""

import copy
import io
import pickle
import shutil
import sqlite3
import warnings
from contextlib import closing

import pytest
import torch
from architectures import Function
from comparison import relative_error
from databases import alter, renew_digests
from processes import TUNED_BATCH, in_threads
from seed_network import KEYS, LIMIT, assert_result, assert_right, expected, fused, images, plain, weights
from torch import nn

from autotune.core import CaptureError, UnknownNameError
from fused_resnet import FusedResNet, InputError
from tuning_db import DatabaseError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture(scope="module", params=["tuned", "empty"])
def database(request):
    return request.getfixturevalue(f"{request.param}_db")


@pytest.fixture(scope="module")
def net(tuned_db):
    """A network for tests that leave it as it is."""
    return fused(tuned_db)


# -- right -------------------------------------------------------------------


@pytest.mark.daily(5)
@pytest.mark.process
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [1, 3, 8, 128])
def test_matches_the_plain_network(database, n, channels):
    assert_right(fused(database, channels, seed=n), images(n, channels, seed=n))


def test_state_dict_has_the_published_keys(net):
    assert set(net.state_dict()) == KEYS == {name for name, _ in net.named_parameters()}


def test_tuned_kernels_really_run(net):
    listed = net.explain(images(TUNED_BATCH))
    assert {row.source for row in listed} == {"tuned"}
    assert any(row.kernel.startswith("cpu_conv2d") for row in listed)
    assert all(row.expected_us > 0 for row in listed)


def test_inputs_of_any_layout_are_taken(net):
    x = images(4)
    y = net(x)
    torch.testing.assert_close(net(x.to(memory_format=torch.channels_last)), y)  # another plan: other roundings
    assert torch.equal(net(torch.cat([x, x], 1)[:, :3]), y)
    assert torch.equal(net(images(4).flip(3).flip(3)), y)


def test_images_do_not_meet(net):
    x = images(5)
    changed = x.clone()
    changed[2] = 100.0
    kept = [0, 1, 3, 4]
    assert torch.equal(net(changed)[kept], net(x)[kept])


def test_same_input_same_bits_and_results_are_not_overwritten(net):
    first, second = images(3, seed=1), images(3, seed=2)
    y = net(first)
    kept = y.clone()
    assert not torch.equal(net(second), y)
    assert torch.equal(y, kept) and torch.equal(net(first), y)
    x = first.clone()
    net(x)
    assert torch.equal(x, first)


def test_one_network_serves_many_shapes_in_turn(net):
    for n in (2, 5, 2, 1, 5):
        assert_right(net, images(n, seed=n))


def test_threads_share_a_network(net):
    inputs = [images(2, seed=seed) for seed in range(8)]
    results = [None] * len(inputs)

    def work(i):
        for _ in range(5):
            results[i] = net(inputs[i])

    in_threads(work, ((i,) for i in range(len(inputs))))
    for x, y in zip(inputs, results, strict=True):
        assert relative_error(y, expected(net, x)) < LIMIT


def test_nan_comes_through(net):
    x = images(2)
    x[1] = float("nan")
    y = net(x)
    assert y[1].isnan().any() and not y[0].isnan().any()


def test_other_dtypes_run_on_torchs_operators(tuned_db):
    network = fused(tuned_db).to(torch.bfloat16)
    x = images(2).bfloat16()
    y = network(x)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, expected(network, x)) < 4e-2


# -- weights change -------------------------------------------------------------------


def test_every_parameter_reaches_the_kernels(tuned_db):
    network, x = fused(tuned_db), images(1)
    network(x)
    for name, parameter in network.named_parameters():
        with torch.no_grad():
            parameter.mul_(1.25)
        assert relative_error(network(x), expected(network, x)) < LIMIT, name


def test_loading_other_weights_binds_anew(tuned_db):
    network, x = fused(tuned_db, seed=1), images(2)
    before = network(x)
    network.load_state_dict(weights(3, 2))
    assert_right(network, x)
    assert relative_error(network(x), before) > 0.1


def test_weights_replaced_or_moved_bind_anew(tuned_db):
    network, x = fused(tuned_db), images(2)
    network(x)
    network.to(torch.bfloat16).to(torch.float32)  # rounds them
    assert_right(network, x)
    network.layers[1][0].conv1.weight = torch.nn.Parameter(torch.randn(128, 64, 3, 3) * 0.05)
    assert_right(network, x)
    network.stem[1].weight.data = torch.randn(64, 48, 1, 1) * 0.2
    network.rebind()
    assert_right(network, x)


def test_a_submodules_weights_loaded_alone_bind_anew(tuned_db):
    network, x = fused(tuned_db), images(2)
    network(x)
    network.layers[2].load_state_dict(plain(seed=9).layers[2].state_dict())
    assert_right(network, x)


def test_optimizer_steps_bind_anew(tuned_db):
    network, x = fused(tuned_db), images(2)
    network(x)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    network(x).mean().backward()
    optimizer.step()
    network.eval()
    assert_right(network, x)


def test_weights_made_in_inference_mode(tuned_db):
    with torch.inference_mode():
        network = FusedResNet(tuned_db)
        network.load_state_dict(plain(seed=3).state_dict())
        assert_right(network, images(2))
        network.load_state_dict(plain(seed=4).state_dict())
        assert_right(network, images(2))


def test_keys_that_do_not_fit_are_refused(tuned_db):
    network = FusedResNet(tuned_db)
    with pytest.raises(RuntimeError, match=r"stem\.1\.weight"):
        network.load_state_dict(weights(1, 0))
    with pytest.raises(RuntimeError, match=r"[Mm]issing"):
        network.load_state_dict({})


# -- copies -------------------------------------------------------------------


def test_a_deep_copy_is_independent(net):
    x = images(2)
    y = net(x)
    other = copy.deepcopy(net)
    assert torch.equal(other(x), y)
    with torch.no_grad():
        other.layers[0][0].fixup_scale.add_(1.0)
    assert_right(other, x)
    assert torch.equal(net(x), y)
    assert relative_error(other(x), y) > 1e-3


def test_pickle_and_torch_save(net):
    x = images(2)
    y = net(x)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), y)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    restored = torch.load(file, weights_only=False)
    assert torch.equal(restored(x), y)
    assert_right(restored, images(3))


def test_a_copy_in_training_mode_trains_its_own_weights(net):
    other = copy.deepcopy(net).train()
    other(images(2)).mean().backward()
    assert all(parameter.grad is not None for parameter in other.parameters())
    assert all(parameter.grad is None for parameter in net.parameters())


# -- modes -------------------------------------------------------------------


def test_it_starts_in_eval_mode_and_records_no_gradients(net):
    assert not net.training and not net(images(2)).requires_grad


def test_training_mode_is_the_plain_network(tuned_db):
    network, x = fused(tuned_db).train(), images(2)
    other = plain().train()
    y = network(x)
    assert torch.equal(y, other(x))
    y.square().mean().backward()
    other(x).square().mean().backward()
    gradients = dict(other.named_parameters())
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad)


def test_under_no_grad_and_inference_mode(net):
    x = images(2)
    y = net(x)
    with torch.no_grad():
        assert torch.equal(net(x), y)
    with torch.inference_mode():
        assert torch.equal(net(x), y)
        assert torch.equal(net(x.clone()), y)
    assert torch.equal(net(x), y)


# -- what it refuses -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.randn(3, 64, 64), r"stem\.0 \(SpaceToDepth\).*an input of \(3, 64, 64\).*expected 4, got 3"),
        (torch.randn(1, 1, 3, 64, 64), r"stem\.0 \(SpaceToDepth\).*an input of \(1, 1, 3, 64, 64\)"),
        (torch.randn(2, 1, 64, 64), r"stem\.1 \(Conv2d\).*an input of \(2, 1, 64, 64\).*to have 48 channels"),
        (torch.randn(2, 3, 30, 64), r"stem\.0 \(SpaceToDepth\).*an input of \(2, 3, 30, 64\)"),
        (torch.randn(2, 3, 64, 64).half(), r"torch\.float16.*\.to\(\)"),
        (torch.randn(2, 3, 64, 64).double(), r"torch\.float64.*\.to\(\)"),
        (torch.empty(2, 3, 64, 64, device="meta"), r"on meta.*on cpu.*\.to\(\)"),
    ],
    ids=["rank 3", "rank 5", "channels", "size", "f16", "f64", "meta"],
)
def test_inputs_it_cannot_take_are_named(net, x, said):
    with pytest.raises((InputError, CaptureError), match=said) as error:
        net(x)
    assert "\n" not in str(error.value)


def test_an_empty_batch_has_an_empty_result(net):
    assert net(torch.randn(0, 3, 64, 64)).shape == (0, 512, 2, 2)


def test_parameters_may_be_integers(empty_db):
    """Before those in floating point."""
    steps = nn.Parameter(torch.arange(4), requires_grad=False)
    model = Function(lambda m, x: m.conv(x) * m.steps.view(4, 1, 1), steps=steps, conv=nn.Conv2d(3, 4, 3)).eval()
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    network = FusedResNet.from_model(model, empty_db)
    torch.testing.assert_close(network(x), model(x).detach())
    short = x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = network(short)
    torch.testing.assert_close(y, model(short.float()).detach())


def test_a_module_in_a_dtype_without_kernels_is_refused_in_words(tuned_db):
    network = FusedResNet(tuned_db).double()
    with pytest.raises((InputError, UnknownNameError), match="float64"):
        network(torch.randn(1, 3, 64, 64, dtype=torch.float64))


def test_unknown_model_is_named(tuned_db):
    with pytest.raises(UnknownNameError, match="resnet50"):
        FusedResNet(tuned_db, model="resnet50")


def test_databases_it_cannot_use_are_named_at_once(tmp_path):
    with pytest.raises(DatabaseError, match="absent"):
        FusedResNet(tmp_path / "absent.db")
    (tmp_path / "text.db").write_text("words")
    with pytest.raises(DatabaseError, match=r"text\.db"):
        FusedResNet(tmp_path / "text.db")


# -- what it says -------------------------------------------------------------------


def test_tuned_batch_is_silent(tuned_db):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused(tuned_db)(images(TUNED_BATCH))


def test_untuned_batch_warns_once_and_says_what_to_do(tuned_db):
    network = fused(tuned_db)
    with pytest.warns(UserWarning, match=f"not tuned for batch 5 .*from 'batch {TUNED_BATCH}'.*--batch 5"):
        network(images(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(images(5))


def test_empty_database_warns_that_all_is_untuned(empty_db):
    with pytest.warns(UserWarning, match="of 20 layers 20 from 'untuned'"):
        fused(empty_db)(images(1))


def test_the_warning_points_at_the_callers_line(empty_db):
    with pytest.warns(UserWarning) as caught:
        fused(empty_db)(images(1))
    assert caught[0].filename == __file__


# -- what it is given to run -------------------------------------------------------------------


def test_a_damaged_binary_is_never_loaded(tuned_db, tmp_path):
    damaged = tmp_path / "damaged.db"
    shutil.copy(tuned_db, damaged)
    with closing(sqlite3.connect(damaged)) as connection:
        digests = [row[0] for row in connection.execute("SELECT digest FROM library")]
        for digest in digests:  # a digest that is in no cache yet, and a blob that is not what it says
            changed = digest[::-1]
            connection.execute("UPDATE library SET digest = ? WHERE digest = ?", [changed, digest])
        connection.commit()
    with pytest.raises(DatabaseError, match="damaged"):
        fused(damaged)(images(TUNED_BATCH))


def test_a_library_for_another_machine_is_passed_over(tuned_db, tmp_path):
    foreign = tmp_path / "foreign.db"
    shutil.copy(tuned_db, foreign)
    alter(foreign, "UPDATE library SET target = 'sm_90'")
    renew_digests(foreign)
    network = fused(foreign)
    assert_right(network, images(TUNED_BATCH))
    assert all(row.kernel.startswith("aten") for row in network.explain(images(TUNED_BATCH)))


def test_a_channels_last_input_is_read_where_it_lies(net):
    x = images(TUNED_BATCH)
    y, other = net(x), net(x.to(memory_format=torch.channels_last))
    assert torch.equal(other, y)
    contexts = [(inputs[0], context) for (_, _, inputs), context in net._cache.contexts.items()]
    plans = {given[3]: context.plan for given, context in contexts if given[0] == x.shape}
    assert not plans[False].copied
    first = plans[False].bound[0]  # torch's operator, which takes any strides, or a kernel that is told
    assert first.step.function or first.choice.candidate.launch["channels_last"] == 1


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


def test_a_submodule_of_another_kind_is_captured_anew(tuned_db):
    network, x = fused(tuned_db), images(1)
    network(x)
    network.layers[2][0].se = torch.nn.Identity().eval()
    plain = copy.deepcopy(network._plain).double()
    assert relative_error(network(x), plain(x.double())) < LIMIT


def test_weights_of_another_shape_are_refused(tuned_db):
    network = fused(tuned_db)
    network.stem[1].weight = torch.nn.Parameter(torch.randn(64, 40, 1, 1))
    with pytest.raises(CaptureError, match=r"stem\.1 \(Conv2d\).*weight of size \[64, 40, 1, 1\]"):
        network(images(1))


def test_torchs_operators_are_not_autocast(tuned_db):
    x = images(2)
    mixed = fused(tuned_db).bfloat16()
    y = mixed(x.bfloat16())
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(mixed(x.bfloat16()), y)


def test_buffers_made_in_inference_mode_serve_outside(tuned_db):
    network, x = fused(tuned_db).bfloat16(), images(2).bfloat16()
    with torch.inference_mode():
        y = network(x)
    assert torch.equal(network(x), y)


def test_frozen_submodules_stay_frozen_in_training(empty_db):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    network = FusedResNet.from_model(model.eval(), empty_db)
    network.train()
    norm = network.get_submodule("1").eval()
    before = norm.running_mean.clone()
    network(torch.randn(2, 3, 8, 8))
    assert network.training and not norm.training and torch.equal(norm.running_mean, before)
    network.eval()
    FusedResNet.from_model(network, empty_db)  # which refuses a model in training mode


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_a_tensor_that_a_result_was_written_to_counts_as_changed(net):
    x, w = images(2), torch.ones((), requires_grad=True)
    for _ in range(3):  # the engine knows the input at last
        y = net(x)
        loss = (y * w).sum()
        net(2 * x, out=y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        net(x, out=torch.empty_like(y))


def test_settings_of_cudnn_are_left_alone_where_it_computes_nothing(empty_db, monkeypatch):
    network, x = FusedResNet.from_model(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), empty_db), torch.randn(1, 3, 8, 8)
    network(x)

    def flags(*_, **__):
        raise AssertionError("the settings are those of the process, which has other threads")

    monkeypatch.setattr(torch.backends.cudnn, "flags", flags)
    network(x)
