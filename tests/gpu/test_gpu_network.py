"""The network on a GPU: tuned by the script, right, repeatable, capturable, and safe among streams and threads."""

import sqlite3
import warnings
from contextlib import closing

import pytest
import torch
from comparison import relative_error
from gpu_network import BATCH, LIMIT, assert_streams_do_not_meet, fused, images, plain, precise
from processes import in_threads
from repository import ROOT

from autotune.libraries.cudnn_names import FAMILY as CUDNN
from autotune.libraries.inductor import FAMILY as INDUCTOR
from fused_resnet.networks import se_resnet9_fixup

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

SHIPPED = ROOT / "tuning_db" / "se_resnet9_fixup_h200.db"


@pytest.fixture(scope="module")
def net(gpu_db):
    return fused(gpu_db)


def test_tuning_times_and_settles_every_layer(gpu_db):
    with closing(sqlite3.connect(gpu_db)) as connection:
        outcomes = connection.execute(
            "SELECT status, family, count(*) FROM measurement JOIN kernel ON kernel.id = kernel_id "
            "WHERE status NOT IN ('ok', 'refused') GROUP BY 1, 2"
        ).fetchall()
        layers = "FROM problem WHERE text NOT LIKE 'torch %calls=%'"  # the network as a whole is timed in its plan
        without = connection.execute(
            f"SELECT text {layers} AND id NOT IN (SELECT problem_id FROM measurement WHERE final)"
        ).fetchall()
    assert {family for _, family, _ in outcomes} <= {CUDNN, INDUCTOR}, outcomes  # cuDNN's plans may lose NaN
    assert not without


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [1, 3, 8, 128])
def test_matches_the_plain_network_as_well_as_torch_does(gpu_db, n, channels):
    x = images(n, channels, seed=n)
    expected = precise(x)
    with torch.no_grad():
        of_torch = relative_error(plain(channels, torch.float16)(x), expected)
    y = fused(gpu_db, channels)(x)
    assert y.shape == (n, 512, 2, 2) and y.dtype == torch.float16
    error = relative_error(y, expected)
    assert error <= LIMIT and error <= 2 * of_torch, (error, of_torch)


@pytest.mark.parametrize("graph", [True, False])
def test_right_without_any_tuned_kernel(empty_db, graph):
    x = images(3)
    assert relative_error(fused(empty_db, cuda_graphs=graph)(x), precise(x)) <= LIMIT


def test_graph_and_plain_launches_give_the_same_bits(net, gpu_db):
    x = images(BATCH)
    assert torch.equal(fused(gpu_db, cuda_graphs=False)(x), net(x))


def test_bf16(gpu_db):
    x = images(BATCH, dtype=torch.bfloat16)
    with torch.no_grad():
        of_torch = relative_error(plain(3, torch.bfloat16)(x), precise(x))
    assert relative_error(fused(gpu_db, dtype=torch.bfloat16)(x), precise(x)) <= 2 * of_torch


def test_tuned_batch_is_silent_and_runs_our_kernels(gpu_db):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = fused(gpu_db)
        network(images(BATCH))
    listed = network.explain(images(BATCH))
    assert {row.source for row in listed} == {"tuned"}
    assert any(row.kernel.startswith(("cutlass2_", "sm90_")) for row in listed)


@pytest.mark.parametrize("n", [2, 20, 64, 100, 300, 700])
def test_batches_between_run_as_a_plan_that_was_settled(n):
    if torch.cuda.get_device_name() != "NVIDIA H200":
        pytest.skip("the plans are an H200's")
    network, x = fused(SHIPPED), images(n)
    assert relative_error(network(x), precise(x)) < LIMIT
    sources = [row.source for row in network.explain(x)]
    assert len(sources) <= 10 and len(set(sources)) == 1 and sources[0].startswith("batch "), sources


def test_same_input_same_bits(net):
    x = images(BATCH)
    y = net(x)
    torch.cuda.synchronize()
    for _ in range(50):
        assert torch.equal(net(x), y)


def test_results_are_not_overwritten_by_the_next_call(net):
    inputs = [images(BATCH, seed=seed) for seed in range(10)]
    results = [net(x) for x in inputs]  # queued without waiting
    for x, y in zip(inputs, results, strict=True):
        assert relative_error(y, precise(x)) <= LIMIT


def test_weights_changed_in_place_are_seen(gpu_db):
    network, x = fused(gpu_db), images(BATCH)
    y = network(x)
    with torch.no_grad():
        network.layers[1][0].conv1.weight.mul_(0.5)
        network.layers[2][0].fixup_bias1a.add_(0.5)
    other = se_resnet9_fixup.build().cuda()
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert relative_error(network(x), other.float()(x.float())) <= LIMIT
    assert relative_error(network(x), y) > 1e-2


def test_capture_into_a_callers_graph(net):
    static = images(BATCH, seed=1)
    net(static)  # binds the plan, which a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(static)
    for seed in (2, 3):
        x = images(BATCH, seed=seed)
        static.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, net(x))


def test_two_streams(net):
    assert_streams_do_not_meet(net, 2, 30)


def test_threads_with_streams_of_their_own(net):
    inputs = [images(BATCH, seed=seed) for seed in range(4)]
    expected = [net(x) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                y = net(inputs[i])
                torch.cuda.current_stream().synchronize()
                if not torch.equal(y, expected[i]):
                    wrong.append(i)

    in_threads(work, ((i,) for i in range(len(inputs))))
    assert not wrong


def test_the_callers_stream_is_waited_for(net):
    """Input made by a slow kernel on a side stream, result read on it: no synchronization by anybody."""
    x = images(BATCH)
    expected = net(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        y = net(late) + 0
    stream.synchronize()
    assert torch.equal(y, expected)
