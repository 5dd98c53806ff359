"""FusedResNet among streams, threads, devices, captures and tracers, on a GPU."""

import copy
import gc
import threading
import time

import pytest
import torch
from comparison import relative_error
from gpu_network import BATCH, LIMIT, assert_streams_do_not_meet, fused, images, precise
from processes import in_threads, process

from fused_resnet import InputError
from fused_resnet.call import ONE_TENSOR
from fused_resnet.networks import se_resnet9_fixup

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]


@pytest.fixture(scope="module")
def net(gpu_db):
    return fused(gpu_db)


@pytest.fixture(scope="module", params=[True, False], ids=["graph", "launches"])
def either(request, gpu_db):
    return fused(gpu_db, cuda_graphs=request.param)


def slow(x):
    """x, made late on the current stream."""
    late = torch.zeros_like(x)
    torch.cuda._sleep(3_000_000)
    return late.copy_(x)


def alike(y, expected):
    """Nearer than another's memory would come. Not the same bits: for layers on its own operators torch chooses among
    cuDNN's algorithms in each thread anew."""
    return relative_error(y, expected) < LIMIT


@torch.no_grad()
def of_its_weights(net, x):
    """Return the plain network's result in float32 with the weights that a module has now."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return copy.deepcopy(net._plain).float().eval()(x.float())


# -- streams and threads -------------------------------------------------------------------


def test_streams_that_nobody_orders_do_not_meet(either):
    """Without graphs too: the kernels of two runs may be on the device at once, in memory of their own."""
    assert_streams_do_not_meet(either, 3, 50)


def test_threads_on_one_stream_and_on_their_own(either):
    inputs = [images(n, seed=n) for n in (BATCH, 1, 3, BATCH)]
    expected = [either(x) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(i, stream):
        with torch.cuda.stream(stream):
            for _ in range(40):
                if not alike(either(inputs[i]), expected[i]):
                    wrong.append(i)

    own = [torch.cuda.Stream() for _ in inputs]
    for streams in (own, [torch.cuda.default_stream()] * len(inputs)):
        in_threads(work, enumerate(streams))
    assert not wrong


def test_the_first_that_a_thread_does_on_a_gpu(either):
    x, found = images(BATCH), []
    y = either(x)
    thread = threading.Thread(target=lambda: found.append(either(x)))
    thread.start()
    thread.join()
    assert len(found) == 1 and alike(found[0], y)


def test_plans_that_are_taken_away_while_they_run(gpu_db):
    """Two plans for four shapes and three threads: memory of a run must not be given to the next plan too early."""
    network = fused(gpu_db, max_plans=2)
    inputs = [images(n, seed=n) for n in (BATCH, 1, 3, 5)]
    expected = [network(x) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(start):
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(12):
                j = (start + i) % len(inputs)
                if not alike(network(slow(inputs[j])), expected[j]):
                    wrong.append(j)

    in_threads(work, ((i,) for i in range(3)))
    assert not wrong


def test_plans_give_their_memory_back(gpu_db):
    network = fused(gpu_db, max_plans=2)
    for n in (64, 65):
        network(images(n))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for n in range(66, 74):
        network(images(n))
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < before * 1.3


def test_two_networks_side_by_side(gpu_db):
    one, other = fused(gpu_db), fused(gpu_db)
    with torch.no_grad():
        other.stem[1].weight.mul_(1.5)
    x = images(BATCH)
    ys = [(one(x), other(x)) for _ in range(10)]
    assert all(torch.equal(a, ys[0][0]) and torch.equal(b, ys[0][1]) for a, b in ys)
    assert relative_error(ys[0][0], ys[0][1]) > 0.01


def test_a_write_that_torch_does_not_count_is_seen_after_a_moment(gpu_db):
    net, x = fused(gpu_db), images(BATCH)
    net(x)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.data.mul_(0.5)
    with pytest.warns(UserWarning, match="a write that torch does not count"):
        expected, until = of_its_weights(net, x), time.monotonic() + 5.0
        while not alike(net(x), expected) and time.monotonic() < until:  # some kernels read a weight as it is now
            time.sleep(0.002)
    assert alike(net(x), expected)


@pytest.mark.parametrize("change", ["fused optimizer", "other memory"])
def test_changes_that_torch_tells_of_are_seen_at_once(gpu_db, change):
    net, x = fused(gpu_db), images(BATCH)
    net(x)
    if change == "fused optimizer":
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        torch.optim.SGD(net.parameters(), lr=1e-3, fused=True).step()
    else:
        for parameter in net.parameters():
            parameter.data = parameter.data * 0.5
    assert alike(net(x), of_its_weights(net, x))


def test_samples_of_weights_are_compared_beside_a_capture(gpu_db):
    net, x = fused(gpu_db), images(BATCH)
    expected, graph = net(x).clone(), torch.cuda.CUDAGraph()
    time.sleep(0.01)  # so that the next call compares them
    with torch.cuda.graph(graph):
        y = net(x)
    graph.replay()
    assert alike(y, expected)


@torch.no_grad()
def test_changes_of_weights_do_not_fill_the_pools_of_all_streams(gpu_db):
    """torch keeps freed memory for the stream on which it was allocated. Here each change of the weights is met first
    on another stream, whose thread binds the plans anew."""
    network = fused(gpu_db)
    inputs = [images(n, seed=n) for n in (BATCH, 1, 3)]
    expected = []
    for _ in range(2):
        expected.append([network(x) for x in inputs])
        network.stem[1].weight.neg_()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    streams = [torch.cuda.Stream() for _ in range(4)]
    reserved, wrong = [], []

    def work(stream, wanted):
        with torch.cuda.stream(stream):
            results = [network(x) for x in inputs]
        stream.synchronize()
        wrong.extend(y for y, other in zip(results, wanted, strict=True) if not alike(y, other))

    for change in range(6):
        network.stem[1].weight.neg_()
        torch.cuda.synchronize()
        first = change % len(streams)
        for stream in streams[first:] + streams[:first]:
            in_threads(work, [(stream, expected[(change + 1) % 2])])
        gc.collect()
        reserved.append(torch.cuda.memory_reserved())
    assert not wrong
    assert reserved[5] - reserved[1] <= 2**22, reserved


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_weights_are_not_overwritten_while_a_run_reads_them(gpu_db, closed):
    """By the weights of a network that is bound in the same memory."""
    one, other, x = fused(gpu_db), fused(gpu_db), images(BATCH)
    with torch.no_grad():
        other.stem[1].weight.mul_(1.5)
    expected = one(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        one(x)  # binds this stream's context: the next run is launched and not waited for
        torch.cuda.synchronize()
        torch.cuda._sleep(300_000_000)
        y = one(x)
    if closed:
        one.rebind()
    del one
    other(x)
    torch.cuda.synchronize()
    assert alike(y, expected)


# -- several GPUs --------------------------------------------------------------------------

several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


@several
@pytest.mark.parametrize("graph", [True, False])
def test_a_second_gpu_while_the_first_is_current(gpu_db, graph):
    x = images(BATCH)
    expected = fused(gpu_db, cuda_graphs=graph)(x)
    network = fused(gpu_db, cuda_graphs=graph).to("cuda:1")
    assert torch.cuda.current_device() == 0
    y = network(x.to("cuda:1"))
    assert y.device == torch.device("cuda:1") and torch.equal(y.to("cuda:0"), expected)
    with pytest.raises(InputError, match=r"on cuda:0.*on cuda:1"):
        network(x)


@several
@pytest.mark.parametrize("graph", [True, False])
def test_each_gpu_from_threads_of_its_own(gpu_db, graph):
    one = fused(gpu_db, cuda_graphs=graph)
    networks = [one, copy.deepcopy(one).to("cuda:1")]
    x = images(BATCH)
    expected = one(x).cpu()
    wrong = []

    def work(i):
        own = x.to(f"cuda:{i}")
        for _ in range(40):
            if not alike(networks[i](slow(own)).cpu(), expected):
                wrong.append(i)

    in_threads(work, ((i % 2,) for i in range(4)))
    assert not wrong


@several
def test_a_module_moved_from_gpu_to_gpu_and_back(gpu_db):
    network, x = fused(gpu_db), images(BATCH)
    expected = network(x)
    there = network.to("cuda:1")(x.to("cuda:1"))
    assert torch.equal(network.to("cuda:0")(x), expected) and torch.equal(there.cpu(), expected.cpu())


@several
def test_a_capture_on_the_second_gpu(gpu_db):
    network, x = fused(gpu_db).to("cuda:1"), images(BATCH).to("cuda:1")
    expected = network(x)
    graph = torch.cuda.CUDAGraph()
    # A stream of its own: the one that torch captures on by itself belongs to the first GPU that anything captured on.
    with torch.cuda.device(1), torch.cuda.graph(graph, stream=torch.cuda.Stream(1)):
        y = network(x)
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize(1)
    assert relative_error(y, expected) <= LIMIT


@several
@torch.no_grad()
def test_data_parallel(gpu_db):
    """Its replicas are made anew for each call, and share what is bound, for weights as they are."""
    network, x = fused(gpu_db), images(2 * BATCH)
    parallel = torch.nn.DataParallel(network, device_ids=[0, 1])
    for scale in (1.0, 1.5):
        network.stem[1].weight.mul_(scale)
        other = se_resnet9_fixup.build()
        other.load_state_dict(network.state_dict())
        expected = other.cuda()(x.float())
        for _ in range(3):
            assert relative_error(parallel(x), expected) <= LIMIT
        assert sorted(inputs[0][2].index for _, _, inputs in network._cache.contexts) == [0, 1]


# -- layouts and outputs -------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, BATCH])
def test_channels_last_inputs(either, n):
    x = images(n)
    y = either(x.to(memory_format=torch.channels_last))
    assert relative_error(y, precise(x)) <= LIMIT
    assert torch.equal(y, either(x.to(memory_format=torch.channels_last)))


def test_no_kernel_is_launched_for_a_channels_last_input(net):
    x = images(BATCH)
    other = x.to(memory_format=torch.channels_last)
    net(other)
    contexts = [(inputs[0], context) for (_, _, inputs), context in net._cache.contexts.items()]
    plans = {given[3]: context.plan for given, context in contexts if given[0] == x.shape}
    first = next(item for item in plans[False].bound if "input" in item.layer.buffers.values())
    assert not plans[False].copied
    assert first.step.function or first.choice.candidate.launch["channels_last"] == 1


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_a_result_goes_where_it_is_told(either, order):
    x = images(BATCH)
    out = torch.full((BATCH, 512, 2, 2), float("nan"), device="cuda").half().contiguous(memory_format=order)
    assert either(x, out=out) is out and torch.equal(out, either(x))


def test_places_that_are_not_aligned(either):
    x = images(BATCH)
    shifted = torch.cat([torch.zeros(1, device="cuda").half(), x.flatten()])[1:].view(x.shape)
    out = torch.empty(BATCH * 2048 + 1, device="cuda").half()[1:].view(BATCH, 2, 2, 512).permute(0, 3, 1, 2)
    assert torch.equal(either(shifted, out=out), either(x))


# -- captures -------------------------------------------------------------------


def test_a_captured_run_has_memory_of_its_own(either):
    """Replays on one stream while direct calls run on another."""
    x, other = images(BATCH, seed=1), images(BATCH, seed=2)
    y, y_other = either(x), either(other)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = either(x)
    stream = torch.cuda.Stream()
    for _ in range(30):
        graph.replay()
        kept = captured.clone()
        with torch.cuda.stream(stream):
            direct = either(other)
        torch.cuda.synchronize()
        assert torch.equal(kept, y) and torch.equal(direct, y_other)


def test_a_capture_outlives_its_plan(gpu_db):
    network = fused(gpu_db, max_plans=1)
    x = images(BATCH)
    y = network(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = network(x)
    network(images(1))
    network(images(2))  # the plan is gone from the module's list
    filler = [torch.full((2**20,), float("nan"), device="cuda") for _ in range(20)]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, y) and filler


def test_nothing_is_bound_within_a_capture(gpu_db):
    network, x = fused(gpu_db), images(BATCH)
    torch.cuda.synchronize()
    with pytest.raises(InputError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        network(x)
    torch.cuda.synchronize()
    assert relative_error(network(x), precise(x)) <= LIMIT


# -- torch -------------------------------------------------------------------


class Holder(torch.nn.Module):
    """A model with the network inside."""

    def __init__(self, network):
        super().__init__()
        self.encoder = network
        self.head = torch.nn.Linear(512, 5).cuda().half()

    def forward(self, x):
        return self.head(self.encoder(2 * x).mean((2, 3)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compiled_without_a_graph_break(net, mode):
    holder = Holder(net).eval()
    compiled = torch.compile(holder, fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(5):
            x = images(BATCH, seed=seed)
            torch.testing.assert_close(compiled(x), holder(x), rtol=1e-2, atol=1e-2)


def test_exported_and_checked_by_torch(net):
    holder = Holder(net).eval()
    batch = {"x": {0: torch.export.Dim("n", min=1, max=256)}}
    program = torch.export.export(holder, (images(2),), dynamic_shapes=batch)
    with torch.no_grad():
        for n in (BATCH, 3):
            torch.testing.assert_close(program.module()(images(n)), holder(images(n)))
    torch.library.opcheck(torch.ops.fused_resnet.run.default, ([images(BATCH)], net._number, ONE_TENSOR))


def test_autocast(net, gpu_db):
    x = images(BATCH)
    y = net(x)
    with torch.autocast("cuda"):
        assert torch.equal(net(x), y) and torch.equal(net(x.float()), y)
        single = fused(gpu_db, dtype=torch.float32)
        assert single(x).dtype == torch.float32
        assert relative_error(single(x), precise(x)) <= LIMIT


def test_modes(net):
    x = images(BATCH)
    y = net(x)
    with torch.inference_mode():
        assert torch.equal(net(x), y)
    with torch.no_grad():
        assert torch.equal(net(x), y)
    with pytest.raises(InputError, match="gradient"):
        net(x.clone().requires_grad_())


def test_stress(gpu_db):
    for calls, *words in ((2000,), (2000, "--no-graph"), (100, "--plans", 3)):
        done = process("tests/campaigns/stress.py", "--db", gpu_db, "--calls", calls, "--batches", "1,2,8", *words)
        few = calls < 1000  # in which torch's allocator is still finding out how much it keeps
        assert (few or done.returncode == 0) and f"{calls} calls from 4 threads, 0 wrong" in done.stdout, (
            done.stdout + done.stderr
        )


def test_the_host_cost_of_a_call(gpu_db):
    done = process("benchmarks/programs/bench_host.py", "--db", gpu_db, "--batch", BATCH, "--calls", 200, "--loads", 1)
    assert done.returncode == 0 and "with a CUDA graph" in done.stdout, done.stderr
