"""Process groups of all ranks on a simulated ring. In these tests, this process is the only rank."""

import datetime
from concurrent.futures import Future

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from host.pytorch import process_group  # noqa: E402


class Ring:
    """Stub of a client of the ring, which records its requests."""

    def __init__(self):
        self.asked = []
        self.counted = {}

    one_machine, shards, codes_weights = True, False, False

    def join(self, rank, ranks, timeout):
        """Do nothing, as this process is the only rank."""

    def connect(self, backend, rank, ranks, *, number):
        """Connect the ranks with each other."""

    def disconnect(self):
        """End the connection."""

    def count(self, name, size, *, rounds):
        self.counted.setdefault(name, []).append((size, rounds))

    def begin(self, request):
        self.asked.append(request)
        answer = Future()
        answer.set_result(request.values)
        return answer


def test_numbers(monkeypatch):
    """Process groups are numbered in the order of their creation, and each sum contains the number of its group."""
    ring = Ring()
    monkeypatch.setattr(process_group, "client", lambda: ring)
    first, second = (process_group.create(dist.HashStore(), 0, 1, datetime.timedelta(seconds=60)) for _ in range(2))
    for group in (second, first):
        group.allreduce([torch.ones(2)]).wait()
    assert second.number == first.number + 1
    assert [request.group for request in ring.asked] == [second.number, first.number]


def test_sums_over_gloo(monkeypatch):
    """A collective over gloo sets a flag in the counts only if it adds floating-point numbers."""
    ring = Ring()
    monkeypatch.setattr(process_group, "client", lambda: ring)
    group = process_group.create(dist.HashStore(), 0, 1, datetime.timedelta(seconds=60))
    doubles, integers = torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.int32)
    most = dist.AllreduceOptions()
    most.reduceOp = dist.ReduceOp.MAX
    for tensor, options in ((doubles, ()), (integers, ()), (torch.ones(4), (most,)), (doubles, (dist.ReduceOp.SUM,))):
        group.allreduce([tensor], *options).wait()
    assert ring.counted.pop("allreduce") == [(16, True), (12, False), (16, False), (16, True)]
    group.reduce_scatter([torch.zeros(2)], [[torch.ones(2)]]).wait()
    group._reduce_scatter_base(torch.zeros(2), torch.ones(2), dist.ReduceScatterOptions()).wait()
    group.broadcast([doubles]).wait()
    group.allgather([[torch.zeros(2)]], [torch.ones(2)]).wait()
    assert {name: rounds for name, [(_, rounds)] in ring.counted.items()} == {
        "reduce_scatter": True, "reduce_scatter_base": True, "broadcast": False, "allgather": False}
    assert ring.asked == []
