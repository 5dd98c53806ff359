"""A cluster of Dask that compiles and measures: results, and what happens if one of its processes is lost.

All processes are real ones of this machine.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from dask_cluster import DaskProcesses, Proxy
from processes import HANG, wait_until
from repository import ROOT

from autotune.cluster import DaskCluster, connected, dask_cluster, remote_child
from autotune.cluster.compile_service import compile_unit
from autotune.cluster.messages import CompileRequest
from autotune.codegen import Unit
from autotune.codegen.build_queue import BuildQueue
from autotune.core import Deadline, WorkerError
from autotune.core.errors import Fault, fault_counts, forget_faults
from autotune.ir import parse
from autotune.measure import Worker
from autotune.runtime import Candidate

pytest.importorskip("distributed")
pytestmark = [pytest.mark.process, pytest.mark.compile]

PROBLEM = parse("conv2d n=1 h=6 w=6 c=8 k=8 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu")
TORCH = Candidate("aten", '{"memory_format": "contiguous"}', "")


@pytest.fixture(autouse=True)
def no_faults():
    """Begin as a run does."""
    forget_faults()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Leave a scheduler on a busy machine the time to start."""
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", HANG)


@pytest.fixture
def dask(tmp_path):
    """A scheduler without workers."""
    with DaskProcesses(tmp_path) as processes:
        yield processes


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """An empty folder for what is built here."""
    monkeypatch.setenv("AUTOTUNE_GENERATED", str(tmp_path / "generated"))


def units(kernel, count):
    values = [(block, pixels) for block in (8, 16, 32) for pixels in (1, 2, 3, 4)]
    return [
        Unit((kernel("cpu_conv2d", {"block_k": block, "block_pixels": pixels, "unroll_c": 1}, "relu"),))
        for block, pixels in values[:count]
    ]


def begun(cluster, wanted):
    """A queue of units, some of which are not compiled yet, and the results of the others."""
    queue, results = BuildQueue(1, cluster.start_batch), []
    queue.add(wanted)
    wait_until(lambda: results.extend(queue.finished()) or results)
    return queue, results


def built(queue, seconds=120.0):
    """Wait for all units of a queue; return their results."""
    found = []

    def done():
        found.extend(queue.finished())
        return not queue.pending

    wait_until(done, seconds)
    return found


# -- compiling ---------------------------------------------------------------------------------------------------------


def test_a_unit_is_compiled_on_a_worker_and_its_binary_lies_here(dask, generated, cpu_kernel):
    dask.start_worker("compile=2")
    with connected(dask.address) as cluster:
        wait_until(lambda: cluster.compilers == 2)
        wanted = units(cpu_kernel, 3)
        queue = BuildQueue(2, cluster.start_batch)
        queue.add(wanted)
        results = built(queue)
        assert {result.unit for result in results} == set(wanted)
        assert all(result.path.read_bytes().startswith(b"\x7fELF") and result.seconds > 0 for result in results)
        again = BuildQueue(2, cluster.start_batch)
        again.add(wanted)
        assert all(result.seconds == 0 for result in built(again))  # they are on this disk


def test_a_machine_with_other_sources_says_nothing_about_the_kernels(generated, cpu_kernel):
    (unit,) = units(cpu_kernel, 1)
    request = CompileRequest.of(unit, 60.0)
    for other, words in ((replace(request, key="x"), "other sources"), (replace(request, protocol=0), "version 0")):
        answer = compile_unit(other)
        assert answer.binary is None and answer.killed and words in answer.error


@pytest.mark.daily(2, "faults of a cluster")
def test_the_errors_of_a_compiler_come_back(dask, generated, cpu_kernel, tmp_path):
    compiler = tmp_path / "g++"
    version = 'case "$*" in *-dumpfullversion*) exec g++ "$@" ;; esac'
    compiler.write_text(f'#!/bin/sh\n{version}\necho "x.cpp:3: error: no luck" >&2; exit 1\n')
    compiler.chmod(0o755)
    dask.start_worker("compile=1", CXX=str(compiler))
    with connected(dask.address) as cluster:
        queue = BuildQueue(1, cluster.start_batch)
        queue.add(units(cpu_kernel, 1))
        (result,) = built(queue)
        assert result.path is None and "no luck" in result.error and not result.killed


@pytest.mark.daily(2, "faults of a cluster")
def test_units_of_a_killed_worker_are_compiled_by_another(dask, generated, cpu_kernel):
    first = dask.start_worker("compile=1")
    with connected(dask.address) as cluster:
        wait_until(lambda: cluster.compilers == 1)
        queue, results = begun(cluster, units(cpu_kernel, 6))
        dask.end(first)
        assert queue.pending
        dask.start_worker("compile=1")
        results += built(queue)
        assert len(results) == 6 and all(result.path for result in results)
    assert fault_counts() == {Fault.COMPILE_WORKER_LOST: 1}


@pytest.mark.daily(2, "faults of a cluster")
def test_units_of_a_worker_that_hangs_are_given_to_another(dask, generated, cpu_kernel):
    hanging = dask.start_worker("compile=2")
    cluster = DaskCluster(dask.address, late_seconds=2.0)
    try:
        wait_until(lambda: cluster.compilers == 2)
        os.kill(hanging.pid, signal.SIGSTOP)
        queue = BuildQueue(2, cluster.start_batch)
        queue.add(units(cpu_kernel, 2))
        dask.start_worker("compile=2")
        results = built(queue)
        assert len(results) == 2 and all(result.path for result in results)
        assert fault_counts()[Fault.COMPILE_WORKER_SILENT] >= 1
    finally:
        cluster.close()


@pytest.mark.daily(2, "faults of a cluster")
def test_a_scheduler_that_is_started_again_gets_the_units_once_more(dask, generated, cpu_kernel):
    dask.start_worker("compile=1")
    with connected(dask.address) as cluster:
        wait_until(lambda: cluster.compilers == 1)
        queue, results = begun(cluster, units(cpu_kernel, 4))
        dask.end(dask.scheduler)
        dask.start_scheduler()
        dask.start_worker("compile=1")
        results += built(queue)
        assert len(results) == 4 and all(result.path for result in results)
    assert Fault.SCHEDULER_LOST in fault_counts()


@pytest.mark.daily(2, "faults of a cluster")
def test_a_connection_that_is_cut_is_made_again(dask, generated, cpu_kernel):
    dask.start_worker("compile=1")
    with connected(dask.address) as direct:
        wait_until(lambda: direct.compilers == 1)
    port = int(dask.address.rpartition(":")[2])
    with Proxy(port) as proxy, connected(f"tcp://127.0.0.1:{proxy.port}") as cluster:
        queue, results = begun(cluster, units(cpu_kernel, 5))
        assert proxy.cut() and queue.pending
        results += built(queue)
        assert len(results) == 5 and all(result.path for result in results)
    assert Fault.SCHEDULER_LOST in fault_counts()


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_a_trial_is_measured_on_a_worker(dask):
    worker = dask.start_worker("measure=1")
    with connected(dask.address) as cluster:
        wait_until(cluster.devices)
        with Worker("cpu", child=cluster.child(0)) as measuring:
            assert measuring.facts().name == cluster.devices()[0].name
            assert psutil.pid_exists(measuring.pid)
            for _ in range(3):
                measuring.send(PROBLEM, TORCH)
            assert [measuring.receive().status for _ in range(3)] == ["ok"] * 3
            pid = measuring.pid
        wait_until(lambda: not psutil.pid_exists(pid))
        assert worker.poll() is None


@pytest.mark.daily(2, "faults of a cluster")
def test_trials_of_a_killed_worker_are_measured_by_another(dask):
    first = dask.start_worker("measure=1")
    with connected(dask.address) as cluster:
        wait_until(cluster.devices)
        with Worker("cpu", child=cluster.child(0)) as measuring:
            measuring.start()
            dask.start_worker("measure=1")
            wait_until(lambda: len(cluster.devices()) == 2)
            dask.end(first)
            for _ in range(2):
                measuring.send(PROBLEM, TORCH)
            assert [measuring.receive().status for _ in range(2)] == ["ok"] * 2
    assert fault_counts()[Fault.MEASURE_WORKER_LOST] == 1


@pytest.mark.daily(2, "faults of a cluster")
def test_a_worker_that_hangs_is_not_blamed_on_the_candidate(dask, monkeypatch):
    monkeypatch.setattr(remote_child, "SILENCE_SECONDS", 5.0)
    hanging = dask.start_worker("measure=1")
    with connected(dask.address) as cluster:
        wait_until(cluster.devices)
        with Worker("cpu", deadline=20.0, child=cluster.child(0)) as measuring:
            measuring.start()
            dask.start_worker("measure=1")
            wait_until(lambda: len(cluster.devices()) == 2)
            os.kill(hanging.pid, signal.SIGSTOP)
            measuring.send(PROBLEM, TORCH)
            assert measuring.receive().status == "ok"
    assert fault_counts()[Fault.MEASURE_WORKER_SILENT] == 1


@pytest.mark.daily(2, "faults of a cluster")
def test_a_candidate_that_hangs_is_timed_out_and_the_worker_stays(dask):
    worker = dask.start_worker("measure=1")
    with connected(dask.address) as cluster:
        wait_until(cluster.devices)
        with Worker("cpu", deadline=1.0, child=cluster.child(0)) as measuring:
            measuring.start()
            os.kill(measuring.pid, signal.SIGSTOP)
            measuring.send(PROBLEM, TORCH)
            assert measuring.receive().status == "timed_out"
            assert fault_counts() == {Fault.CANDIDATE_HUNG: 1}
            measuring.deadline = HANG
            measuring.send(PROBLEM, TORCH)
            assert measuring.receive().status == "ok"
        assert worker.poll() is None


@pytest.mark.daily(2, "faults of a cluster")
def test_the_measuring_process_ends_with_a_run_that_is_killed(dask):
    dask.start_worker("measure=1")
    code = (
        "import time; from autotune.cluster import connected; from autotune.measure import Worker\n"
        f"with connected({dask.address!r}) as cluster:\n"
        "    while not cluster.devices(): time.sleep(0.1)\n"
        "    worker = Worker('cpu', child=cluster.child(0)); worker.start()\n"
        "    print(worker.pid, flush=True); time.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    pid = int(run.stdout.readline())
    assert psutil.pid_exists(pid)
    run.kill()
    run.wait()
    wait_until(lambda: not psutil.pid_exists(pid))


@pytest.mark.daily(2, "faults of a cluster")
def test_without_a_worker_that_measures_a_run_ends_with_one_sentence(dask, monkeypatch):
    with connected(dask.address) as cluster:
        assert cluster.devices() == [] and cluster.compilers == 0
        monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1.0)
        measuring = Worker("cpu", child=cluster.child(0), until=Deadline.after(30))
        with pytest.raises(WorkerError, match="has no worker that measures"):
            measuring.start()


# -- the cluster as a whole --------------------------------------------------------------------------------------------


@pytest.mark.daily(2, "faults of a cluster")
def test_other_sources_of_a_worker_are_told_in_one_sentence(dask, cpu_target, tmp_path):
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "mine.py").write_text("# another family\n")
    dask.start_worker("compile=1", AUTOTUNE_FAMILIES=str(tmp_path / "families"))
    with connected(dask.address) as cluster:
        wait_until(lambda: cluster.compilers)
        with pytest.raises(WorkerError, match=r"worker at tcp://\S+ has project .* and this process .*: install"):
            cluster.require_versions(cpu_target)


@pytest.mark.daily(2, "faults of a cluster")
def test_a_worker_without_this_project_is_told_in_one_sentence(dask, tmp_path):
    (tmp_path / "autotune").mkdir()
    (tmp_path / "autotune" / "__init__.py").write_text("raise ImportError('nothing is here')\n")
    dask.start_worker("measure=1", PYTHONPATH=str(tmp_path))
    with connected(dask.address) as cluster, pytest.raises(WorkerError, match="cannot run this project's code"):
        wait_until(cluster.devices)


def test_where_there_is_no_scheduler_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(WorkerError, match="no Dask scheduler answers at tcp://127"), connected("tcp://127.0.0.1:9"):
        pass
    with pytest.raises(WorkerError, match=r"at absent\.json: there is no such file"), connected("absent.json"):
        pass
    assert time.monotonic() - started < 30


@pytest.fixture
def certificate(tmp_path):
    """A certificate for this machine that signs itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "autotune test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return [str(path) for path in paths]


@pytest.mark.daily(2, "faults of a cluster")
def test_a_cluster_with_tls_admits_who_has_a_certificate(tmp_path, certificate, generated, cpu_kernel):
    dask = pytest.importorskip("dask")
    cert, key = certificate
    with DaskProcesses(tmp_path, tls=("--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key)) as processes:
        processes.start_worker("compile=1")
        names = {"ca-file": cert, "client.cert": cert, "client.key": key}
        settings = {f"distributed.comm.tls.{name}": value for name, value in names.items()}
        with dask.config.set(settings), connected(processes.address) as cluster:
            queue = BuildQueue(1, cluster.start_batch)
            queue.add(units(cpu_kernel, 1))
            assert all(result.path for result in built(queue))
        with pytest.raises(WorkerError, match="no Dask scheduler answers at tls"), connected(processes.address):
            pass
