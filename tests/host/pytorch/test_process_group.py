"""Test process groups of all ranks (here, only of this process) on a simulated ring."""

import datetime
from concurrent.futures import Future

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from host.pytorch import process_group  # noqa: E402


class Ring:
    """Stub of a client that records its requests."""

    def __init__(self):
        self.asked = []

    def join(self, rank, ranks, timeout):
        """Join a group of all ranks."""

    def begin(self, request):
        self.asked.append(request)
        answer = Future()
        answer.set_result(request.values)
        return answer


def test_numbers(monkeypatch):
    """Groups are numbered in order of creation, and each sum carries its group's number."""
    ring = Ring()
    monkeypatch.setattr(process_group, "client", lambda: ring)
    first, second = (process_group._create(dist.HashStore(), 0, 1, datetime.timedelta(seconds=60)) for _ in range(2))
    for group in (second, first):
        group.allreduce([torch.ones(2)]).wait()
    assert second.number == first.number + 1
    assert [request.group for request in ring.asked] == [second.number, first.number]
