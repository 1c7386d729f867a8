"""The exit of a rank ends the current operation: all ranks are notified, and the main thread is interrupted."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host.pytorch.client import RingClient
from host.pytorch.jobs import WatchedJobs
from host.pytorch.messages import AllReduce
from host.pytorch.server import Patience, RingServer
from sim.verilated.processes import EndedError, ended_by_signals

REASON = "Rank 1 has ended"


class Build:
    """Stub of jobs with an operation that takes longer than the test."""

    seconds = 60.0

    def answer(self, requests):
        limit = time.monotonic() + self.seconds
        while time.monotonic() < limit:
            time.sleep(0.01)
        return requests[0].values

    def save(self, request):
        return {"job": request.job}


def serve(server, limit):
    while time.monotonic() < limit:
        server.poll(0.05)


def test_interrupted(tmp_path):
    begun, ended = time.monotonic(), []
    jobs = WatchedJobs(Build(), ended=lambda: REASON if time.monotonic() > begun + 0.3 else None,
                       tell=lambda reason: server.interrupt(reason), end=lambda: ended.append(1), look=0.05)
    server = RingServer(tmp_path / "ring", ranks=2, jobs=jobs, patience=Patience())
    clients = [RingClient(str(tmp_path / "ring")) for _ in range(2)]
    request = AllReduce(values=np.ones(4, np.float32))

    def ask(rank):
        clients[rank].join(rank, 2, 1800)
        clients[rank].ask(request)

    with ThreadPoolExecutor(2) as pool:
        try:
            waiting = [pool.submit(ask, rank) for rank in range(2)]
            with ended_by_signals(), pytest.raises(EndedError):
                serve(server, begun + 30)
            assert [str(future.exception(10)) for future in waiting] == [REASON] * 2
        finally:
            server.close()
            for client in clients:
                client.close()
    assert jobs.interrupted
    assert ended
    assert time.monotonic() < begun + 2


def test_undisturbed():
    jobs = WatchedJobs(Build(), ended=lambda: None, tell=pytest.fail, end=pytest.fail, look=0.01)
    jobs._jobs.seconds = 0.1
    assert (jobs.answer([AllReduce(values=np.ones(4, np.float32))]) == 1).all()
    assert not jobs.interrupted
