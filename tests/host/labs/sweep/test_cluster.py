"""Sweeps on a Dask cluster: a worker that is killed, failures, and schedulers that do not respond."""

import contextlib
import json
import os
import signal
import socketserver
import struct
import subprocess
import sys
import threading
import time

import pytest

from hdl.config.forms import from_dict
from host.labs.sweep import cluster, execution
from host.labs.sweep.jobs import Job, JobKind, SweepError, load, store
from tests.host.rings import CONFIGS, library

distributed = pytest.importorskip("distributed")

#: Program that runs a scheduler and two workers, each with a nanny, until its standard input is closed.
CLUSTER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, protocol="tcp") as cluster:
        print(cluster.scheduler_address, *(worker.pid for worker in cluster.workers.values()), flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Start a cluster; return the address of its scheduler and the process IDs of its workers."""
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER)
    root = os.pathsep.join(filter(None, [str(cluster.Path(__file__).parents[4]), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.DEVNULL)
    try:
        address, *workers = process.stdout.readline().split()
        yield address, [int(worker) for worker in workers]
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.stdout.close()
        process.wait()


def run_of(nodes, seed, config):
    """Job that trains for one epoch on a ring of default nodes."""
    return Job(kind=JobKind.RUN, name=f"run-{nodes}-{seed}", needs=("build",),
               parameters={"workload": "digits", "nodes": nodes, "epochs": 1, "configuration": config,
                           "training": {"seed": seed}})


def rows_of(folder, jobs):
    """Results of the jobs, except for durations."""
    rows = [load(folder, job) for job in jobs]
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


def test_a_worker_is_killed(started, tmp_path):
    """If a worker is killed, all rows are the same as in a local sweep, and no result is computed twice."""
    address, workers = started
    config = {"masking": True}
    assert from_dict(config) == CONFIGS["default"]
    library(CONFIGS["default"])
    build = Job(kind=JobKind.BUILD, name="build", parameters={"configuration": config})
    runs = [run_of(nodes, seed, config) for nodes, seed in ((2, 0), (2, 1), (3, 0), (4, 0))]
    made, killed = {}, []

    def stamps():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("cluster/*.json")}

    def kill(state):
        made.update({name: stamp for name, stamp in stamps().items() if name not in made})
        if not killed and state.done >= 2 and state.running:
            os.kill(workers[0], signal.SIGKILL)
            killed.append(state.done)

    ended = []
    failures = execution.execute([build, *runs], tmp_path / "cluster", tick=kill,
                                 engine=cluster.ClusterEngine(address, tmp_path / "cluster"),
                                 ended=lambda done: ended.append(done.job.name))
    assert failures == []
    assert killed, "no worker was killed"
    assert sorted(ended) == ["build", *(run.name for run in runs)]
    now = stamps()
    assert {name: now[name] for name in made} == made
    assert len(now) == 1 + len(runs)
    assert execution.execute(runs, tmp_path / "local", processes=2) == []
    rows = rows_of(tmp_path / "cluster", runs)
    assert rows == rows_of(tmp_path / "local", runs)
    assert all(row["bit_exact"] for row in rows)
    # The second run finds all results and computes nothing.
    assert execution.execute([build, *runs], tmp_path / "cluster", engine=None,
                             ended=lambda *_: pytest.fail("a job was done again")) == []


def test_failures(started, tmp_path, monkeypatch):
    odd = Job(kind=JobKind.BUILD, name="build-odd", parameters={"configuration": {"lanes": 3}})
    run = Job(kind=JobKind.RUN, name="run-odd", parameters={}, needs=("build-odd",))
    engine = cluster.ClusterEngine(started[0], tmp_path)
    assert engine.cores == 2
    failures = execution.execute([odd, run], tmp_path, engine=engine)
    assert {failure.job.name: failure.error for failure in failures} == {
        "build-odd": "NodeConfig.lanes must be 1, 2, 4 or 8, not 3", "run-odd": "build-odd has failed"}
    assert list(tmp_path.glob("*.json")) == []


def test_results_of_a_task_that_is_done_again(tmp_path, monkeypatch):
    """If the cluster repeats a task, and its result is already in the folder, the result is not computed again."""
    job = Job(kind=JobKind.COUNT, name="count", parameters={"unit": "stream.skid_buffer"})
    store(tmp_path, job, {"ff": 1}, 1.0)
    order = json.loads(json.dumps(cluster.order_of(job)))
    assert cluster._task(order, str(tmp_path))["error"] is None
    assert load(tmp_path, job) == {"ff": 1}
    changed = cluster._task({**order, "digest": "other"}, str(tmp_path))
    assert changed["error"] == "Sources have changed since the sweep began; start it again"


def test_no_scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_ANSWERS", 1)
    with pytest.raises(SweepError, match=r"^Scheduler tcp://127\.0\.0\.1:9 must be one of Dask that answers: "):
        cluster.ClusterEngine("tcp://127.0.0.1:9", tmp_path)


class Http(socketserver.BaseRequestHandler):
    """Web server, which rejects the sweep's request as invalid."""

    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n" + bytes(1000))


class Bytes(socketserver.BaseRequestHandler):
    """Server that sends a frame in Dask's format with an invalid message."""

    def handle(self):
        self.request.sendall(struct.pack("<QQQ", 16, 1, 8) + b"\xc1" * 8)


class Silence(socketserver.BaseRequestHandler):
    """Server that reads everything it is sent and never answers."""

    def handle(self):
        while self.request.recv(1000):
            pass


@pytest.mark.parametrize("handler", [Http, Bytes, Silence])
def test_another_program(monkeypatch, capfd, tmp_path, handler):
    """If the port belongs to another program, a one-line message says so, and nothing else is printed."""
    monkeypatch.setattr(cluster, "_ANSWERS", 1)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address, began = "tcp://{}:{}".format(*server.server_address), time.monotonic()
        with pytest.raises(SweepError) as caught:
            cluster.ClusterEngine(address, tmp_path)
        server.shutdown()
    assert time.monotonic() < began + 30
    assert str(caught.value).startswith(f"Scheduler {address} must be one of Dask that answers: ")
    assert "\n" not in str(caught.value)
    assert "".join(capfd.readouterr()) == ""


def test_a_worker_is_no_scheduler(started, tmp_path):
    with distributed.Client(started[0], set_as_default=False) as client:
        worker = next(iter(client.scheduler_info()["workers"]))
    with pytest.raises(SweepError, match=r"must be one of Dask that answers: it is a Worker$"):
        cluster.ClusterEngine(worker, tmp_path)


def test_no_dask(monkeypatch):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^Dask must be installed for sweeps on many machines: pip install "):
        cluster.needed()
