"""The process group ``gradring``: sums of float32 over a simulated ring, everything else over gloo.

A subclass in Python must be one of ``ProcessGroup``: methods of a ``Backend`` cannot be overridden there. DDP's
reducer calls its ``allreduce`` from C++.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from host.pytorch.client import RingClient, client
from host.pytorch.messages import AllReduce

__all__ = ["NAME", "RingGroup", "register"]

NAME = "gradring"

#: Collectives of gloo; ``allreduce`` and its forms have methods of their own.
_DELEGATED = ("_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
              "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall",
              "alltoall_base", "barrier", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter",
              "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
              "scatter", "send")


def _bytes(arguments: Iterable[Any]) -> int:
    """Bytes of all tensors among some arguments."""
    total = 0
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            total += argument.numel() * argument.element_size()
        elif isinstance(argument, (list, tuple)):
            total += _bytes(argument)
    return total


def _done(result: Any) -> Any:
    """A collective that is over."""
    future: Future[Any] = Future()
    future.set_result(result)
    return c10d._create_work_from_future(future)  # type: ignore[attr-defined]


class RingGroup(dist.ProcessGroup):
    """Ranks in a process group; that of all ranks has the ring.

    Parameters
    ----------
    rank, size : int
    gloo : ProcessGroupGloo
        Group of the same ranks, for everything else.
    ring : RingClient, optional
        The connection to the ring, in the group of all ranks.
    counter : RingClient
        The connection that counts what goes over gloo.
    """

    def __init__(self, rank: int, size: int, gloo: Any, ring: RingClient | None, counter: RingClient) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._gloo, self._ring, self._counter = rank, size, gloo, ring, counter

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802, a name of PyTorch
        return NAME

    @property
    def pg_name(self) -> str:
        """Name of the group in PyTorch's registry."""
        return str(dist.distributed_c10d._world.pg_names[self])

    @property
    def group_name(self) -> str:
        return self.pg_name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Sum or average float32 numbers over the ring; anything else over gloo."""
        options = dist.AllreduceOptions() if opts is None else opts
        # `reduceOp` is an object of its own kind, which equals none of the operations; its `op` does.
        operation = getattr(options.reduceOp, "op", options.reduceOp)
        if self._ring is None or operation not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) or any(
                tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.layout != torch.strided
                for tensor in tensors):
            self._counter.count("allreduce", _bytes(tensors))
            return self._gloo.allreduce(tensors, options)
        for tensor in tensors:
            if tensor.numel():
                values = np.ascontiguousarray(tensor.detach().numpy(), np.float32).reshape(-1)
                sums = torch.from_numpy(self._ring.ask(AllReduce(values=values)))
                if operation == dist.ReduceOp.AVG:
                    sums /= self._size
                tensor.detach().copy_(sums.reshape(tensor.shape))
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Several sums, one after the other."""
        return self.allreduce(tensors, opts)


def _delegate(name: str) -> Callable[..., Any]:
    def collective(self: RingGroup, *arguments: Any, **options: Any) -> Any:
        self._counter.count(name.strip("_"), _bytes([*arguments, *options.values()]))
        return getattr(self._gloo, name)(*arguments, **options)

    collective.__name__ = name
    collective.__doc__ = f"``{name}`` over gloo."
    return collective


for _name in _DELEGATED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(RingGroup, _name, _delegate(_name))


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> RingGroup:
    """Make a process group, as PyTorch asks for it."""
    connection = client()
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # All ranks are on this machine, whatever its name stands for.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    gloo = dist.ProcessGroupGloo(store, rank, size, options)
    whole = not dist.is_initialized() or size == dist.get_world_size()
    if whole:
        connection.join(rank, size, timeout.total_seconds())
    return RingGroup(rank, size, gloo, connection if whole else None, connection)


def register(*, default: bool) -> None:
    """Make the backend known to PyTorch.

    Parameters
    ----------
    default : bool
        Whether ``init_process_group()`` without a name is to take it.
    """
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    if default:
        dist.Backend.default_device_backend_map["cpu"] = NAME
