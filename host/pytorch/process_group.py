"""Process group ``gradring``: sums of float32 and bfloat16 use a ring, everything else uses gloo.

A Python subclass must derive from ``ProcessGroup``, since the methods of a ``Backend`` cannot be overridden. DDP's
reducer calls ``allreduce`` from C++. Methods that are not overridden reach the gloo backend through PyTorch's own
dispatch.
"""

import datetime
import functools
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future as Answer
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.futures import Future

from host.pytorch.client import client
from host.pytorch.connection import Connection
from host.pytorch.hooks import record_sum
from host.pytorch.messages import RING, AllReduce
from host.pytorch.sharding import Residuals, marked
from host.pytorch.software.requests import GatherShards, KeptAllReduce, ReduceShards
from host.pytorch.tensors import Sum, fits, flat, sum_of, vector_of

__all__ = ["COUNTED", "GlooGroup", "RingGroup", "RingWork", "answer_for_gloo", "create", "install"]


class RingWork(dist.Work):
    """Reduction that completes or fails when the ring has answered.

    ``answers`` are the ring's answers, in order of arrival. After the last one, ``finish`` is called once to write
    the sums to ``tensors`` or raise the ring's error.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], answers: Sequence["Answer[Any]"],
                 finish: Callable[[], None]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._ended: Answer[None] = Answer()
        arrived: Future[None] = Future()

        def write(_arrived: Any) -> list[torch.Tensor]:
            try:
                finish()
            except Exception as error:
                self._ended.set_exception(error)
                raise
            self._ended.set_result(None)
            return self._tensors

        def arrive(_answer: Any) -> None:
            # The future is set in a separate thread, since a callback of the script may wait for the next sum.
            threading.Thread(target=arrived.set_result, args=(None,)).start()

        # C++ also sees an error raised in a callback, but not one set by `Future.set_exception`.
        self._future: Future[list[torch.Tensor]] = arrived.then(write)
        if answers:
            answers[-1].add_done_callback(arrive)
        else:
            arrived.set_result(None)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the tensors contain the sums; raise ``RingError`` if the ring has failed."""
        self._ended.result()
        return True

    def synchronize(self) -> None:
        """Wait for the sums; PyTorch calls this method for asynchronous devices."""
        self.wait()

    def is_completed(self) -> bool:
        return self._ended.done()

    def is_success(self) -> bool:
        return self._ended.done() and self._ended.exception() is None

    def exception(self) -> BaseException | None:
        return self._ended.exception() if self._ended.done() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> "Future[list[torch.Tensor]]":
        return self._future


#: Names of the gloo collectives that are counted.
COUNTED = ("_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
           "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
           "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier",
           "recv", "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
           "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send")

#: Names of the collectives in :data:`COUNTED` that add numbers of several ranks.
_REDUCING = ("_reduce_scatter_base", "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter",
             "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")

#: Reductions with results that do not depend on the order of the numbers, bit for bit.
_EXACT = (dist.ReduceOp.MAX, dist.ReduceOp.MIN)

#: Numbers for the process groups that contain all ranks.
_numbers = itertools.count()


def _tensors(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield all tensors in the arguments of a collective."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)


def _rounds(name: str, arguments: Sequence[Any]) -> bool:
    """Return whether a collective adds floating-point numbers of several ranks, in an order that gloo chooses."""
    if name not in _REDUCING or not any(tensor.is_floating_point() or tensor.is_complex()
                                        for tensor in _tensors(arguments)):
        return False
    operations = [getattr(argument, "reduceOp", argument) for argument in arguments]
    return not any(getattr(operation, "op", operation) in _EXACT for operation in operations
                   if isinstance(operation, (dist.ReduceOp, dist.ReduceOp.RedOpType)))


class GlooGroup(dist.ProcessGroup):
    """Process group over ``plain``, PyTorch's own gloo group; ``counter`` counts its traffic."""

    def __init__(self, plain: dist.ProcessGroup, counter: Connection) -> None:
        super().__init__(plain.rank(), plain.size())
        self._plain, self._counter = plain, counter
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        for device in plain._device_types:
            backend = plain._get_backend(device)
            self._register_backend(device, getattr(dist.ProcessGroup.BackendType, backend.name().upper(),
                                                   dist.ProcessGroup.BackendType.CUSTOM), backend)

    def getBackendName(self) -> str:  # noqa: N802, a name of PyTorch
        return str(self._plain.name())

    def get_group_store(self) -> Any:
        """PyTorch's store for the group."""
        return self._plain.get_group_store()


def _counting(name: str) -> Callable[..., Any]:
    def collective(self: GlooGroup, *arguments: Any, **options: Any) -> Any:
        given = [*arguments, *options.values()]
        size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(given))
        self._counter.count(name.strip("_"), size, rounds=_rounds(name, given))
        return getattr(self._plain, name)(*arguments, **options)

    collective.__name__ = name
    collective.__doc__ = f"``{name}`` over gloo."
    return collective


for _name in COUNTED:
    setattr(GlooGroup, _name, _counting(_name))


class RingGroup(GlooGroup):
    """Process group with a ring: sums of float32 and bfloat16 use the ring, everything else uses gloo.

    Parameters
    ----------
    plain : ProcessGroup
        PyTorch's own gloo group.
    ring : Connection
        Connection to the ring of the group's ranks.
    number : int
        Number of the group among the groups on this ring, the same on all ranks.
    ends : bool
        Whether the connection ends with this group.
    """

    def __init__(self, plain: dist.ProcessGroup, ring: Connection, number: int, *, ends: bool = False) -> None:
        super().__init__(plain, ring)
        self.ring, self.number, self._ends = ring, number, ends
        self._residuals: dict[tuple[str, int], Residuals] = {}

    def shutdown(self) -> None:
        """End the group, when PyTorch destroys it."""
        if self._ends:
            self.ring.finish()
            self.ring.disconnect()
        super().shutdown()

    def getBackendName(self) -> str:  # noqa: N802, a name of PyTorch
        return RING

    def allreduce(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
        """Sum a float32 or bfloat16 tensor over the ring; reduce anything else over gloo."""
        sent = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        operation = _operation(dist.AllreduceOptions, *arguments, **options)
        work = self._all_reduce(sent, operation) if len(sent) == 1 else None
        return super().allreduce(tensors, *arguments, **options) if work is None else work

    def allreduce_coalesced(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
        """Sum float32 and bfloat16 tensors over the ring, one after another; reduce anything else over gloo."""
        work = self._all_reduce(tensors, _operation(dist.AllreduceCoalescedOptions, *arguments, **options))
        return super().allreduce_coalesced(tensors, *arguments, **options) if work is None else work

    def reduce_scatter(self, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Sum lists of one tensor per rank over the ring; reduce anything else over gloo."""
        single = isinstance(outputs, torch.Tensor)
        pairs = [(outputs, inputs)] if single else [*zip(outputs, inputs, strict=False)]
        work = self._reduce_scatter(pairs, *arguments, **options) if single or len(outputs) == len(inputs) else None
        return super().reduce_scatter(outputs, inputs, *arguments, **options) if work is None else work

    def allgather(self, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Gather weights that have a lossy codec over the ring, and anything else over gloo."""
        both = [*zip(outputs, inputs, strict=False)] if isinstance(inputs, (list, tuple)) else [(outputs, inputs)]
        work = self._gather(*both[0]) if len(both) == 1 else None
        return super().allgather(outputs, inputs, *arguments, **options) if work is None else work

    def _sum(self, operation: Any, tensors: Sequence[torch.Tensor]) -> Sum | None:
        """Return the sum if the ring can make it; raises ValueError if neither the ring nor gloo can."""
        chosen = sum_of(operation, self.size())
        if chosen is None or (fits(tensors) and tensors):
            return chosen
        if chosen.factor is not None:
            types = ", ".join(sorted({f"{tensor.dtype} on {tensor.device.type}" for tensor in tensors}))
            raise ValueError(f"Tensors of PREMUL_SUM must be of float32 or bfloat16 on cpu, not {types}: multiply "
                             f"them first, and use SUM")
        return None

    def _residual(self, kind: str, count: int, rows: int) -> Any:
        """Residuals of a vector of ``rows`` shards of ``count`` elements, or None if none are kept."""
        mark = marked()
        if mark is None or mark.weights or not (self.ring.shards and self.ring.keeps):
            return None
        key, widths = mark.key(kind), mark.widths(count)
        return None if widths is None else self._residuals.setdefault(key, Residuals()).array(
            mark.owners, widths, rows)

    def _all_reduce(self, tensors: Sequence[torch.Tensor], operation: Any) -> RingWork | None:
        """Sum tensors over the ring; return None if there are none or the ring does not support it."""
        chosen = self._sum(operation, tensors)
        if chosen is None:
            return None
        parts = []
        for tensor in filter(torch.Tensor.numel, tensors):
            record_sum(tensor)
            values = vector_of([tensor], chosen, copy=True)
            request = AllReduce(values=values, group=self.number) if not self.ring.shards else KeptAllReduce(
                values=values, group=self.number, residuals=self._residual("all_reduce", values.size, 1))
            parts.append((tensor.detach(), self.ring.begin(request)))
        return _work(tensors, parts, chosen)

    def _reduce_scatter(self, pairs: Sequence[tuple[Any, Any]], options: Any = None, timeout: Any = None,
                        **named: Any) -> RingWork | None:
        """Sum pairs of an output, and of an input for each rank or a single one, which has all of them one after
        another. Return None if the ring does not support it."""
        operation = _operation(dist.ReduceScatterOptions, options, **named)
        inputs = [[shards] if isinstance(shards, torch.Tensor) else list(shards) for _, shards in pairs]
        outputs = [output for output, _ in pairs]
        every = [*outputs, *itertools.chain(*inputs)]
        chosen = self._sum(operation, every) if self.ring.shards else None
        if chosen is None or not all(_are_shards(output, shards, self.size())
                                     for output, shards in zip(outputs, inputs, strict=True)):
            return None
        parts = []
        for output, shards in zip(outputs, inputs, strict=True):
            if output.numel():
                values = vector_of(shards, chosen, copy=False)
                parts.append((output.detach(), self.ring.begin(ReduceShards(
                    values=values, ranks=self.size(), group=self.number,
                    residuals=self._residual("reduce_scatter", output.numel(), self.size())))))
        return _work(outputs, parts, chosen)

    def _gather(self, output: Any, shard: torch.Tensor) -> RingWork | None:
        """Gather weights with a lossy codec: one tensor, or one for each rank. Return None if they have none."""
        mark, outputs = marked(), [output] if isinstance(output, torch.Tensor) else list(output)
        if (mark is None or not mark.weights or not self.ring.codes_weights or not fits([shard, *outputs])
                or not _are_shards(shard, outputs, self.size())):
            return None
        if not shard.numel():
            return RingWork(outputs, [], lambda: None)
        values = torch.empty(self.size(), shard.numel())
        values[self.rank()] = torch.from_numpy(flat(shard))
        answer = self.ring.begin(GatherShards(values=flat(values), ranks=self.size(), group=self.number))

        def finish() -> None:
            rows = torch.from_numpy(answer.result()).view(len(outputs), -1)
            for tensor, row in zip(outputs, rows, strict=True):
                tensor.detach().copy_(row.view(tensor.shape))

        return RingWork(outputs, [answer], finish)


def _are_shards(shard: torch.Tensor, vector: Sequence[torch.Tensor], ranks: int) -> bool:
    """Whether tensors have the type of a rank's shard and together the length of all ranks' shards."""
    return (len(vector) in (1, ranks) and all(tensor.dtype == shard.dtype for tensor in vector)
            and all(tensor.numel() * len(vector) == shard.numel() * ranks for tensor in vector))


def _work(tensors: Sequence[torch.Tensor], parts: Sequence[tuple[torch.Tensor, "Answer[Any]"]],
          chosen: Sum) -> RingWork:
    """Return the work that stores sums in tensors when the ring has answered."""
    def finish() -> None:
        for tensor, answer in parts:
            chosen.store(answer.result(), tensor)

    return RingWork(tensors, [answer for _, answer in parts], finish)


def _scattering(name: str, *, several: bool) -> Callable[..., Any]:
    plain = getattr(GlooGroup, name)

    def collective(self: RingGroup, output: Any, shards: Any, *arguments: Any, **options: Any) -> Any:
        pairs = [*zip(output, shards, strict=False)] if several else [(output, shards)]
        fits_pairs = not several or len(output) == len(shards)
        work = self._reduce_scatter(pairs, *arguments, **options) if fits_pairs else None
        return plain(self, output, shards, *arguments, **options) if work is None else work

    collective.__name__ = name
    collective.__doc__ = f"``{name}`` over the ring for sums of float32 and bfloat16, and otherwise over gloo."
    return collective


def _gathering(name: str) -> Callable[..., Any]:
    plain = getattr(GlooGroup, name)

    def collective(self: RingGroup, output: Any, shard: Any, *arguments: Any, **options: Any) -> Any:
        work = self._gather(output, shard)
        return plain(self, output, shard, *arguments, **options) if work is None else work

    collective.__name__ = name
    collective.__doc__ = f"``{name}`` over the ring for weights with a lossy codec, and otherwise over gloo."
    return collective


for _name in ("_reduce_scatter_base", "reduce_scatter_single"):
    setattr(RingGroup, _name, _scattering(_name, several=False))
for _name in ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"):
    setattr(RingGroup, _name, _scattering(_name, several=True))
for _name in ("_allgather_base", "all_gather_single"):
    setattr(RingGroup, _name, _gathering(_name))


def _operation(kind: Any, options: Any = None, timeout: Any = None, *, opts: Any = None, op: Any = None) -> Any:
    """Return the reduction operation from any form of arguments that ``ProcessGroup`` accepts."""
    chosen = next((form for form in (options, opts, op) if form is not None), kind())
    return getattr(chosen, "reduceOp", chosen)


def create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> GlooGroup:
    """Create a process group when PyTorch requests one."""
    connection = client()
    default = not dist.is_initialized()
    whole = default or size == dist.get_world_size()
    if whole:
        connection.join(rank, size, timeout.total_seconds())
    gloo = functools.partial(_gloo, rank=rank, size=size, timeout=timeout, one_machine=connection.one_machine)
    plain = dist.ProcessGroup(store, rank, size)
    plain._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    plain._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo(store))
    ring = connection if whole else connection.of_some()
    if ring is None:
        return GlooGroup(plain, connection)
    ends = default or not whole
    if ends:
        ring.connect(lambda: gloo(dist.PrefixStore(RING, store)), rank, size,
                     number=rank if default else dist.get_rank())
    return RingGroup(plain, ring, next(_numbers) if whole else 0, ends=ends)


def _gloo(store: Any, *, rank: int, size: int, timeout: datetime.timedelta, one_machine: bool) -> Any:
    """Create a gloo backend."""
    if one_machine:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        # The name of this machine may resolve to a different address.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        gloo = dist.ProcessGroupGloo(store, rank, size, options)
    else:
        # Gloo chooses the interface, for example by GLOO_SOCKET_IFNAME.
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    gloo._set_sequence_number_for_group()
    return gloo


_GLOO = "gloo"

#: PyTorch functions that check for a gloo group before they use gloo features that a ring group also has. Keyed by
#: module; function names are listed if other functions in the module check for a different reason.
_ASKING = {("torch.distributed.distributed_c10d", "monitored_barrier"), ("torch.distributed.nn.functional", None),
           ("torch.distributed._shard.sharded_tensor.api", None)}


def install(*, replace: bool) -> None:
    """Register the backend as PyTorch's default in ``init_process_group()``; report named backends to the launcher,
    and count gloo traffic. With ``replace``, the ring replaces gloo if requested by name."""
    dist.Backend.register_backend(RING, create, devices=["cpu"])
    dist.Backend.default_device_backend_map["cpu"] = RING
    make = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def helper(size: int, rank: int, ranks: list[int], backend: Any, *arguments: Any, **options: Any) -> Any:
        names = dist.BackendConfig(backend).get_device_backend_map()
        named = backend != dist.Backend.UNDEFINED and RING not in names.values()
        whole = not ranks or len(ranks) == dist.get_world_size()
        if named and replace and names.get("cpu") == _GLOO:
            return make(size, rank, ranks, dist.Backend(RING), *arguments, **options)
        if named and whole:
            client().join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), math.inf,
                          backend=", ".join(sorted(set(names.values()))))
        try:
            group, store = make(size, rank, ranks, backend, *arguments, **options)
        except (AssertionError, RuntimeError, ValueError) as error:
            if not named or set(names.values()) <= {_GLOO}:
                raise
            raise ValueError(f"Backend must be {RING} for the ring, not {backend}, which is not available: leave the "
                             f"name out of init_process_group(), or say {RING}") from error
        if type(group) is dist.ProcessGroup and names.get("cpu") == _GLOO:
            group = _exchange(group, GlooGroup(group, client()))
        return group, store

    distributed_c10d._new_process_group_helper = helper
    answer_for_gloo()


def _exchange(group: dist.ProcessGroup, counting: GlooGroup) -> GlooGroup:
    """Register a group that counts its collectives, in place of PyTorch's group."""
    world, name = distributed_c10d._world, group.group_name
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[counting] = table.pop(group)
    for tagged in world.tags_to_pg.values():
        tagged[:] = [counting if member is group else member for member in tagged]
    counting._set_group_name(name)
    counting._set_group_desc(group.group_desc)
    distributed_c10d._unregister_process_group(name)
    distributed_c10d._register_process_group(name, counting)
    return counting


def answer_for_gloo() -> None:
    """Make a ring group pass the gloo checks in PyTorch's functions."""
    get_backend = distributed_c10d.get_backend

    @functools.wraps(get_backend)
    def answer(group: Any = None) -> Any:
        name = get_backend(group)
        caller = sys._getframe(1)
        module = caller.f_globals.get("__name__")
        asking = {(module, None), (module, caller.f_code.co_name)} & _ASKING
        return dist.Backend.GLOO if asking and isinstance(group or dist.group.WORLD, GlooGroup) else name

    distributed_c10d.get_backend = dist.get_backend = answer
