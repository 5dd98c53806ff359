"""What the engine tells the driver at each launch, by a driver that only listens; and what it sees of weights."""

import ctypes
import json
import os
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from repository import ROOT

from autotune.core import paths
from autotune.runtime.engine import StateWatch, same_objects

RUNS = """
import ctypes, os, sys
from autotune.runtime.engine import DeviceImage, EngineError, Graph, Program
driver = ctypes.CDLL("libcuda.so.1")
image = DeviceImage(open(sys.argv[1], "rb").read(), 0)
kernels = [image.prepare(f"k{i}", b"") for i in range(4)]
slots = [None, None, 70, 71, 0]
pointers = [[-1, -3, 80], [-3, -4, 81], [-5, -4, 82], [-4, -2, 83]]
def run(what, *arguments):
    try:
        what.run(*arguments)
    except EngineError as error:
        print("error", error, flush=True)
    driver.driver_report()
"""


FORKS = """
import ctypes, json, os, sys, tempfile, traceback
import autotune.runtime.engine  # with torch, whose import takes seconds
for line in sys.stdin:
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            failed = 0
            try:
                exec(json.loads(line), {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
                failed = 1
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # what the driver has printed
            os._exit(failed)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        print(json.dumps([status, out.read().decode()]), flush=True)
"""


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    """(code) -> what the driver heard, a list of words for each line, while the code made `run` of things."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    source = ROOT / "tests" / "kernels" / "driver.cpp"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{paths.templates()}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", FORKS, str(library)]  # any whole ELF file is an image
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT) as forks:

        def heard(code):
            print(json.dumps(RUNS + code), file=forks.stdin, flush=True)
            status, said = json.loads(forks.stdout.readline())
            assert status == 0, said
            return [line.split() for line in said.splitlines()]

        yield heard


def told(kernel, *pointers):
    """A kernel's parameters in the driver's words: two tensor maps, of the first two operands, and all pointers."""
    addresses = [*pointers, *[0] * (16 - len(pointers))]
    return [f"k{kernel}", *(str(address) for address in (*addresses[:2], *addresses))]


def kernels_told(x, y):
    return [told(0, x, 70, 80), told(1, 70, 71, 81), told(2, 0, 71, 82), told(3, 71, y, 83)]


@pytest.mark.compile
def test_each_launch_has_its_runs_addresses_and_what_stays_is_made_once(listening):
    heard = listening("""
program, late = Program(slots), Program()
for kernel, places in zip(kernels, pointers):
    program.add(kernel, places)
    late.add(kernel, places)
driver.driver_report()
run(program, 5, [10, 20])
run(program, 6, [11, 21])
run(late, 7, [12, 22, 70, 71, 0])
run(Program(), 7, [12])
""")
    before, *after = heard
    assert before == ["encoded", "4"]  # of the two kernels that no run tells anything
    expected = []
    for stream, x, y, encoded in ((5, 10, 20, 4), (6, 11, 21, 4), (7, 12, 22, 8)):
        expected += [["launch", str(stream), *words] for words in kernels_told(x, y)]
        expected.append(["encoded", str(encoded)])
    assert after == [*expected, ["encoded", "0"]]


@pytest.mark.compile
def test_kernels_that_may_be_early_are_so_if_they_wait_by_themselves(listening):
    heard = listening("""
program = Program(slots)
for kernel, places in zip(kernels, pointers):
    program.add(kernel, places, overlap=kernel is not kernels[3])
run(program, 5, [10, 20])
""")
    assert [words[0] for words in heard] == ["launch", "early", "launch", "launch", "encoded"]


@pytest.mark.compile
def test_a_graph_tells_the_kernels_whose_addresses_change(listening):
    heard = listening("""
graph = Graph(0, slots)
for kernel, places in zip(kernels, pointers):
    graph.add(kernel, places, [])
for x, y in [(10, 20), (10, 20), (10, 21), (11, 22)]:
    run(graph, 5, [x, y])
""")
    expected = []
    for x, y, encoded in ((10, 20, 8), (10, 20, 0), (10, 21, 2), (11, 22, 4)):
        words = [word for words in kernels_told(x, y) for word in words]
        expected += [["graph", "5", *words], ["encoded", str(encoded)]]
    assert heard == expected


@pytest.mark.compile
def test_after_an_error_a_graph_has_the_addresses_of_its_next_run(listening):
    heard = listening("""
graph = Graph(0, slots)
for kernel, places in zip(kernels, pointers):
    graph.add(kernel, places, [])
run(graph, 5, [10, 20])
os.environ["DRIVER_FAILS"] = "k3"
run(graph, 5, [11, 21])
del os.environ["DRIVER_FAILS"]
run(graph, 5, [10, 20])
""")
    first, failed, last = heard[0], heard[2], heard[4]
    assert first[0] == "graph" and last == first
    assert failed[0] == "error" and "told by the test" in " ".join(failed)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("error", "after", "runs"),
    [(1, [0, 1], True), (801, [0, 1], True), (2, [0, 1], False), (1, [0], False)],
    ids=["invalid value", "not supported", "no memory", "one predecessor"],
)
def test_a_graph_is_built_again_only_where_the_driver_refuses_programmatic_joins(listening, error, after, runs):
    heard = listening(f"""
os.environ["DRIVER_EDGE_ERROR"] = "{error}"
graph = Graph(0, slots)
graph.add(kernels[0], pointers[0], [])
graph.add(kernels[2], pointers[2], [])
graph.add(kernels[1], pointers[1], {after}, overlap=True)
run(graph, 5, [10, 20])
""")
    assert heard[0] == ["programmatic", "edge"]
    assert heard[1][0] == ("graph" if runs else "error")
    if not runs:
        assert f"(CUDA error {error})" in " ".join(heard[1])


@pytest.mark.compile
def test_a_captured_graph_runs_between_copies_whose_addresses_change(listening):
    heard = listening("""
os.environ["DRIVER_EDGES"] = "1"
graph = Graph(0, slots)
first = graph.add(kernels[0], pointers[0], [])
given = graph.add_copy(500, -1, 64, [])
captured = graph.add_captured(4096, [first, given])
graph.add_copy(-2, 600, 32, [captured])
graph.add(kernels[1], pointers[1], [captured], overlap=True)
for x, y in [(10, 20), (10, 20), (11, 22)]:
    run(graph, 5, [x, y])
""")
    edges = [["edge", *numbers] for numbers in ("13", "23", "34", "35")]
    assert heard[:4] == edges and ["programmatic", "edge"] not in heard
    for (x, y), words in zip([("10", "20"), ("10", "20"), ("11", "22")], heard[4::2], strict=True):
        captured = ["copy", x, "500", "64", "captured", "4096", "copy", "600", y, "32"]
        assert words == ["graph", "5", *told(0, x, 70, 80), *captured, *told(1, 70, 71, 81)]
    assert heard[5::2] == [["encoded", "4"], ["encoded", "0"], ["encoded", "2"]]


@pytest.mark.compile
def test_a_run_that_gives_too_few_addresses_says_so(listening):
    heard = listening("""
for thing in (Program(slots), Graph(0, slots)):
    for kernel, places in zip(kernels, pointers):
        thing.add(*((kernel, places) if isinstance(thing, Program) else (kernel, places, [])))
    run(thing, 5, [10, 20])
    run(thing, 5, [10])
""")
    errors = [" ".join(words) for words in heard if words[0] == "error"]
    assert errors == ["error a run gives 1 addresses, and slot 1 has none"] * 2


@pytest.mark.compile
@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("c must be a multiple of 8", "c must be a multiple of 8"),
        (None, "its shape, its dtype or the launch values are not supported"),
        ("\x01c", "its shape, its dtype or the launch values are not supported"),
    ],
    ids=["a reason", "an older binary", "an older binary that began to write parameters"],
)
def test_a_kernel_that_refuses_a_problem_says_why(listening, reason, said):
    heard = listening(f"""
from autotune.runtime.engine import RefusedError
if {reason!r}:
    os.environ["DRIVER_REASON"] = {reason!r}
try:
    image.prepare("refuses_c", b"")
except RefusedError as error:
    print(error)
""")
    assert [" ".join(words) for words in heard] == [f"refuses_c refuses the problem: {said}"]


# -- weights -------------------------------------------------------------------


def change_in_place(owner):
    with torch.no_grad():
        owner["a"].add_(1)


CHANGES = {
    "a tensor changed in place": change_in_place,
    "a tensor changed through a view": lambda owner: owner["a"].detach().view(-1).zero_(),
    "another object of the same value": lambda owner: owner.update(a=torch.nn.Parameter(owner["a"].detach().clone())),
    "one that was missing": lambda owner: owner.update(none=torch.zeros(1)),
    "one that goes missing": lambda owner: owner.update(a=None),
    "a name more": lambda owner: owner.update(z=None),
    "a name less": lambda owner: owner.pop("none"),
    "two that change places": lambda owner: owner.update(a=owner["b"], b=owner["a"]),
    "another child": lambda owner: owner.update(child=torch.nn.Identity()),
}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_watch_sees(change, kind):
    owner = kind(a=torch.nn.Parameter(torch.rand(3)), b=torch.rand(2), none=None, child=torch.nn.Identity())
    watch = StateWatch([{}, owner, {"other": torch.rand(1)}])
    assert watch.unchanged()
    change(owner)
    assert not watch.unchanged()
    assert StateWatch([{}, owner]).unchanged()


def test_a_watch_sees_what_comes_into_an_empty_dictionary():
    owner = {}
    watch = StateWatch([owner])
    assert watch.unchanged()
    owner["child"] = torch.nn.Identity()
    assert not watch.unchanged()


UNRECORDED = {
    "other memory by .data": lambda p: setattr(p, "data", torch.rand(3)),
    "the same memory at another offset": lambda p: setattr(p, "data", p.data.as_strided((3,), (1,), 4)),
    "a parameter of a vector": lambda p: torch.nn.utils.vector_to_parameters(torch.rand(3), [p]),
    "exchanged tensors": lambda p: torch.utils.swap_tensors(p, torch.nn.Parameter(torch.rand(3))),
    "shared memory": lambda p: p.share_memory_(),
}


@pytest.mark.parametrize("change", UNRECORDED.values(), ids=UNRECORDED)
def test_a_watch_sees_that_a_tensor_has_other_memory(change):
    parameter = torch.nn.Parameter(torch.rand(8).narrow(0, 2, 3))
    watch = StateWatch([{"p": parameter}])
    assert watch.unchanged()
    change(parameter)
    assert not watch.unchanged()
    assert StateWatch([{"p": parameter}]).unchanged()


FIRST_WATCH = """
import torch
from autotune.runtime.engine import StateWatch
tensors, random = {{"p": torch.ones(3), "q": torch.nn.Parameter(torch.ones(3))}}, torch.get_rng_state()
with {mode}:
    watch = StateWatch([tensors])
assert torch.equal(torch.get_rng_state(), random)
asked, ask = [], torch.Tensor.data_ptr
torch.Tensor.data_ptr = lambda tensor: (asked.append(tensor), ask(tensor))[1]
assert watch.unchanged() and not asked
"""


@pytest.mark.compile
@pytest.mark.parametrize("mode", ["torch.inference_mode()", "torch.device('meta')", "torch.no_grad()"])
def test_the_first_watch_of_a_process_learns_to_read_tensors_in_any_mode(listening, mode):
    """Without what it learns, each look at a tensor is a call of Python, of tens of microseconds."""
    assert not listening(FIRST_WATCH.format(mode=mode))


def test_a_watch_reads_versions_and_addresses_of_all_kinds_of_tensors():
    base = torch.rand(4, 6)
    tensors = {
        "view": base[1:, 2:],
        "strided": base.t(),
        "half": torch.rand(3).half(),
        "empty": torch.empty(0),
        "meta": torch.empty(3, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "buffer": torch.tensor(1),
    }
    for name, tensor in tensors.items():
        watch = StateWatch([{"t": tensor}])
        assert watch.unchanged(), name
        tensor.zero_()
        assert not watch.unchanged(), name


def write_by_numpy(p):
    p.detach().numpy()[...] = 1


def write_by_storage(p):
    p.untyped_storage().fill_(3)


def write_by_address(p):
    ctypes.memset(p.data_ptr(), 1, p.numel() * p.element_size())


WRITES = {
    ".data": lambda p: p.data.mul_(2),
    "numpy": write_by_numpy,
    "dlpack": lambda p: torch.from_dlpack(p.detach()).neg_(),
    "storage": write_by_storage,
    "address": write_by_address,
}


@pytest.mark.parametrize("shape", [(3,), (64, 9, 3, 3), (1024, 512)], ids=str)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_watch_sees_values_that_are_written_without_a_record(write, shape):
    tensors = [torch.rand(shape), torch.rand(256, 256), torch.rand(7)]
    watch = StateWatch([{str(i): tensor for i, tensor in enumerate(tensors)}])
    watch.watch_values([(one.data_ptr(), one.numel() * one.element_size()) for one in tensors], -1)
    assert watch.unchanged()
    write(tensors[0])
    assert not watch.unchanged() and not watch.is_late


def test_a_watch_sees_each_byte_of_small_tensors():
    small, large = torch.rand(1000), torch.rand(500_000)
    watch = StateWatch([{"small": small, "large": large}])
    watch.watch_values([(one.data_ptr(), 4 * one.numel()) for one in (large, small)], -1)
    for i in (0, 500, 999):
        kept = float(small[i])
        small.numpy()[i] += 1
        assert not watch.unchanged()
        small.numpy()[i] = kept
        assert watch.unchanged()


@pytest.mark.compile
def test_samples_of_a_gpu_are_compared_once_a_millisecond_and_found_changed_later(listening):
    told = listening("""
import time, torch
from autotune.runtime.engine import StateWatch
weight = torch.rand(512, 512)
watch = StateWatch([{"weight": weight}])
watch.watch_values([(weight.data_ptr(), 4 * weight.numel())], 0)
assert watch.unchanged() and not watch.is_late
time.sleep(0.002)
assert watch.unchanged() and watch.unchanged()
weight.numpy()[...] = 0
time.sleep(0.002)
assert watch.unchanged()  # compares behind the call
assert not watch.unchanged() and watch.is_late
""")
    assert [one for one, _ in told] == ["record", "compare", "compare"]
    assert {number for _, number in told} == {str(32 * 1024 // 16)}


def test_tensors_that_count_no_changes_are_watched_as_objects():
    with torch.inference_mode():
        owner = {"a": torch.rand(3)}
        watch = StateWatch([owner])
        owner["a"].zero_()
        assert watch.unchanged()
        owner["a"] = torch.rand(3)
        assert not watch.unchanged()


def test_a_watch_takes_dictionaries_only():
    with pytest.raises((TypeError, RuntimeError)):
        StateWatch([[1]])


def cell(value):
    return (lambda: value).__closure__[0]


class Owner:
    name = 1.0


def reads():
    """Return reads of all kinds of owners, and for each a change and the change back."""
    attributes, values, holder, tensor = {"a": 1.0}, [1, 2], cell(3), torch.zeros(2)
    return {
        "an item": (attributes, "a", 1.0, lambda: attributes.update(a=2.0), lambda: attributes.update(a=1.0)),
        "an item of another type": (
            attributes,
            "a",
            1.0,
            lambda: attributes.update(a=1),
            lambda: attributes.update(a=1.0),
        ),
        "an item that is gone": (attributes, "a", 1.0, attributes.clear, lambda: attributes.update(a=1.0)),
        "a list": (values, None, (1, 2), lambda: values.append(3), values.pop),
        "an item of a list": (values, None, (1, 2), lambda: values.__setitem__(0, 7), lambda: values.__setitem__(0, 1)),
        "a closure": (
            holder,
            None,
            3,
            lambda: setattr(holder, "cell_contents", 4),
            lambda: setattr(holder, "cell_contents", 3),
        ),
        "a class": (Owner, "name", 1.0, lambda: setattr(Owner, "name", 2.0), lambda: setattr(Owner, "name", 1.0)),
        "a tensor": ({"t": tensor}, "t", tensor, lambda: tensor.add_(1), None),
    }


@pytest.mark.parametrize("name", reads())
@pytest.mark.parametrize("seldom", [True, False])
def test_a_watch_sees_a_value_that_was_read(name, seldom):
    owner, key, value, change, change_back = reads()[name]
    watch = StateWatch([])
    of_dictionary = seldom and isinstance(owner, dict)
    watch.add([], [(owner, key, value)] if of_dictionary else [], [] if of_dictionary else [(owner, key, value)])
    assert watch.unchanged() and watch.unchanged()
    change()
    assert not watch.unchanged() and not watch.unchanged()
    if change_back:
        change_back()
        assert watch.unchanged()


def test_a_watch_sees_a_key_that_was_absent_and_equal_values():
    owner = {"other": (1, "a", 2.5)}
    watch = StateWatch([])
    watch.add([], [(owner, "key"), (owner, "other", (1, "a", 2.5))], [])
    owner["other"] = (1, "".join("a"), 5 / 2)
    assert watch.unchanged()
    owner["key"] = None
    assert not watch.unchanged()


def test_a_change_between_the_read_and_the_watch_is_seen():
    owner = {"a": 1.0}
    watch = StateWatch([owner])
    owner["a"] = 2.0
    other = StateWatch([])
    other.add([], [(owner, "a", 1.0)], [])
    assert not watch.unchanged() and not other.unchanged()


def test_same_objects_compares_identities_and_skips_none():
    one, other, x = torch.zeros(1), torch.zeros(1), torch.ones(2)
    assert same_objects((one, x, one), (one, None, one)) and same_objects((), ())
    assert not same_objects((other, x, one), (one, None, one))
    assert not same_objects((one, x), (one, None, one))
