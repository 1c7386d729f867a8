"""Test cases for torch.distributed collectives and process group methods."""

import torch
import torch.distributed as dist
from collective_support import ENOUGH, FEW, OPERATIONS, attempt, case, empties, one, ranks, several, untouched, waited
from torch.distributed import distributed_c10d as c10d

# Cases for functions of torch.distributed.

@case()
def all_reduce(group, make):
    results = []
    for operation in OPERATIONS:
        with attempt(results):
            results.append(tensor := one(group, make))
            dist.all_reduce(tensor, op=operation, group=group)
    with attempt(results):
        results.append(tensor := one(group, make))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        results.append(work.get_future().wait())
        work.wait()
        results += [work.is_completed(), work.result()]
    for tensor in (make(0, 0), make(6, 2).reshape(2, 3), make(1, 3).reshape(()), make(6, 1)[::2]):
        with attempt(results):
            results.append(tensor)
            dist.all_reduce(tensor, group=group)
    return results


@case(types=[torch.float32])
def all_reduce_out_of_step(group, make):
    """A rank that requests a sum before the other ranks blocks only when it waits for the result."""
    rank, _ = ranks(group)
    tensor, message = one(group, make), make(2, 7)
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.send(message, group=group, group_dst=1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(message, group=group, group_src=0)
        dist.all_reduce(tensor, group=group)
    return tensor, message


@case(types=[torch.float32, torch.int64])
def all_reduce_in_callback(group, make):
    """The callback of a sum requests another sum and waits for it, as PyTorch's PowerSGD hook does."""
    def another(future):
        return dist.all_reduce(future.value()[0], group=group, async_op=True).get_future().wait()

    return dist.all_reduce(one(group, make), group=group, async_op=True).get_future().then(another).wait()


@case(types=[torch.float32, torch.int64])
def all_reduce_coalesced(group, make):
    tensors = [make(4, 1), make(2, 2), make(0, 0)]
    dist.all_reduce_coalesced(tensors, group=group)
    waited(dist.all_reduce_coalesced(tensors, op=dist.ReduceOp.MAX, group=group, async_op=True))
    return tensors


@case(types=[torch.float32, torch.int64])
def _coalescing_manager(group, make):
    results = [one(group, make), make(3, 2)]
    with dist._coalescing_manager(group):
        for tensor in results:
            dist.all_reduce(tensor, group=group)
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for tensor in results:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    gathered = [make(6 * group.size(), 0) for _ in range(2)]
    with attempt(results), dist._coalescing_manager(group):
        for tensor in gathered:
            dist.all_gather_single(tensor, one(group, make), group=group)
    scattered = [make(3, 0) for _ in range(2)]
    with attempt(results), dist._coalescing_manager(group):
        for tensor in scattered:
            dist.reduce_scatter_single(tensor, make(3 * group.size(), 1), group=group)
    with attempt(results), dist._coalescing_manager(group, device=torch.device("cpu")):
        dist.broadcast(results[0], group=group, group_src=0)
    return results, gathered, scattered


@case()
def all_gather(group, make):
    outputs = empties(group, make, 6)
    dist.all_gather(outputs, one(group, make), group=group)
    again = empties(group, make, 6)
    waited(dist.all_gather(again, one(group, make), group=group, async_op=True))
    return outputs, again


@case(types=[torch.float32])
def all_gather_coalesced(group, make):
    outputs = [empties(group, make, 6), empties(group, make, 2)]
    dist.all_gather_coalesced([list(column) for column in outputs], [one(group, make), make(2, 1)], group=group)
    return outputs


@case("all_gather_single")
@case("all_gather_into_tensor", "_all_gather_base", types=FEW)
def gathered(name, group, make):
    output = make(6 * group.size(), 0)
    getattr(dist, name)(output, one(group, make), group=group)
    again = make(6 * group.size(), 0).reshape(group.size(), 6)
    waited(getattr(dist, name)(again, one(group, make), group=group, async_op=True))
    return output, again


@case(types=[torch.float32])
def all_gather_object(group, make):
    outputs = [None] * group.size()
    dist.all_gather_object(outputs, {"rank": group.rank()}, group=group)
    return outputs


@case("reduce_scatter_single")
@case("reduce_scatter_tensor", "_reduce_scatter_base", types=FEW)
def scattered(name, group, make):
    results = []
    for operation in OPERATIONS:
        with attempt(results):
            results.append(output := make(3, 0))
            getattr(dist, name)(output, make(3 * group.size(), 1 + group.rank()), op=operation, group=group)
    with attempt(results):
        results.append(output := make(3, 0))
        waited(getattr(dist, name)(output, make(3 * group.size(), 1), group=group, async_op=True))
    return results


@case()
def reduce_scatter(group, make):
    results = []
    for operation in OPERATIONS:
        # Before it raises an error (e.g. for averages of complex32), gloo writes data that differs from call to call.
        with attempt(results):
            dist.reduce_scatter(output := make(3, 0), several(group, make), op=operation, group=group)
            results.append(output)
    return results


@case()
def all_to_all(group, make):
    outputs = empties(group, make)
    dist.all_to_all(outputs, several(group, make), group=group)
    return outputs


@case()
def all_to_all_single(group, make):
    rank, size = ranks(group)
    output = make(2 * size, 0)
    dist.all_to_all_single(output, make(2 * size, rank), group=group)
    uneven = make(size * (rank + 1), 0)
    waited(dist.all_to_all_single(uneven, make(size * (size + 1) // 2, rank), [rank + 1] * size,
                                  [index + 1 for index in range(size)], group=group, async_op=True))
    return output, uneven


@case()
def broadcast(group, make):
    tensor = one(group, make)
    dist.broadcast(tensor, group=group, group_src=1)
    again = one(group, make)
    waited(dist.broadcast(again, group=group, group_src=0, async_op=True))
    return tensor, again


@case(types=[torch.float32])
def broadcast_object_list(group, make):
    values = [group.rank(), "text", make(2, group.rank())]
    dist.broadcast_object_list(values, group=group, group_src=1)
    return values


@case()
def reduce(group, make):
    results = []
    for operation in OPERATIONS:
        with attempt(results):
            tensor = one(group, make)
            dist.reduce(tensor, op=operation, group=group, group_dst=1)
            if group.rank() == 1:  # only rank 1 gets a defined result
                results.append(tensor)
    return results


@case()
def gather(group, make):
    outputs = empties(group, make, 6) if group.rank() == 1 else None
    dist.gather(one(group, make), outputs, group=group, group_dst=1)
    return outputs


@case(types=[torch.float32])
def gather_object(group, make):
    outputs = [None] * group.size() if group.rank() == 0 else None
    dist.gather_object(make(2, group.rank()), outputs, group=group, group_dst=0)
    return outputs


@case()
def scatter(group, make):
    output = make(3, 0)
    dist.scatter(output, several(group, make) if group.rank() == 0 else None, group=group, group_src=0)
    return output


@case(types=[torch.float32])
def scatter_object_list(group, make):
    outputs = [None]
    dist.scatter_object_list(outputs, ["a", 2, {}][:group.size()] if group.rank() == 0 else None, group=group,
                             group_src=0)
    return outputs


@case()
def send(group, make):
    return passed(group, make, dist.send, dist.recv)


@case()
def recv(group, make):
    """Receive a message from any rank."""
    received = make(6, 0)
    if group.rank() == 0:
        dist.send(one(group, make), group=group, group_dst=1)
    elif group.rank() == 1:
        dist.recv(received, group=group)
    return received


@case("isend", "irecv", types=[torch.float32, torch.int8])
def posted(name, group, make):
    return passed(group, make, lambda *arguments, **options: waited(dist.isend(*arguments, **options)),
                  lambda *arguments, **options: waited(dist.irecv(*arguments, **options)))


def passed(group, make, send, recv):
    received = make(6, 0)
    if group.rank() == 0:
        send(one(group, make), group=group, group_dst=1, tag=3)
    elif group.rank() == 1:
        recv(received, group=group, group_src=0, tag=3)
    return received


@case("send_object_list", "recv_object_list", types=[torch.float32])
def objects(name, group, make):
    received = [None, None]
    if group.rank() == 0:
        dist.send_object_list([make(2, 1), "text"], group=group, group_dst=1)
    elif group.rank() == 1:
        dist.recv_object_list(received, group=group, group_src=0)
    return received


@case(types=[torch.float32, torch.int16])
def batch_isend_irecv(group, make):
    rank, size = ranks(group)
    received = make(6, 0)
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, one(group, make), group=group, group_peer=(rank + 1) % size),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size)]):
        work.wait()
    return received


@case("barrier", "monitored_barrier", types=[torch.float32])
def barriers(name, group, make):
    if name == "barrier":
        waited(dist.barrier(group=group, async_op=True))
    return getattr(dist, name)(group=group)


@case("get_rank", "get_world_size", "get_process_group_ranks", "get_node_local_rank", "supports_complex",
      types=[torch.float32])
def facts(name, group, make):
    return getattr(dist, name)(*{"get_node_local_rank": [], "supports_complex": [dist.ReduceOp.MAX]}.get(
        name, [group]))


@case("get_group_rank", "get_global_rank", types=[torch.float32])
def numbers(name, group, make):
    return [getattr(dist, name)(group, rank) for rank in range(group.size())]


@case("new_group", "new_subgroups", "new_subgroups_by_enumeration", types=[torch.float32, torch.int32])
def groups(name, group, make):
    """Groups of only some ranks are created with the backend of the tested group, but use gloo."""
    backend = c10d._world.pg_map[group][0]
    with untouched(group):
        made = {"new_group": lambda: dist.new_group([0, 1], backend=backend),
                "new_subgroups": lambda: dist.new_subgroups(1, backend=backend)[0],
                "new_subgroups_by_enumeration": lambda: dist.new_subgroups_by_enumeration(
                    [[0, 1], [2]], backend=backend)[0]}[name]()
    if not isinstance(made, dist.ProcessGroup):
        return None
    tensor = one(made, make)
    dist.all_reduce(tensor, group=made)
    dist.barrier(group=made)
    dist.destroy_process_group(made)
    return tensor


@case("split_group", "shrink_group", types=[torch.float32])
def refused(name, group, make):
    if name == "split_group":
        return dist.split_group(group, [[0, 1], [2]])
    return dist.shrink_group([2], group=group)


@case(types=[torch.float32])
def _set_pg_timeout(group, make):
    c10d._set_pg_timeout(ENOUGH, group)


@case(types=[torch.float32])
def _time_estimator(group, make):
    with c10d._time_estimator(group, torch.device("cpu")):
        pass


# Cases for methods of ProcessGroup.

@case(types=[torch.float32, torch.bfloat16])
def allreduce(group, make):
    """Every argument, whether in a list, on its own or with options, is replaced by its sum or maximum over the
    ranks."""
    results = [one(group, make) for _ in range(4)]
    waited(group.allreduce([results[0]]))
    waited(group.allreduce(results[1], dist.ReduceOp.SUM))
    waited(group.allreduce([results[2]], op=dist.ReduceOp.MAX))
    options = dist.AllreduceOptions()
    waited(group.allreduce([results[3]], opts=options))
    with attempt(results):
        results += (pair := [make(4, 1), make(4, 2)])
        waited(group.allreduce(pair))
    with attempt(results):
        waited(group.allreduce([]))
    return results


@case(types=[torch.float32])
def allreduce_coalesced(group, make):
    results = [make(4, 1), make(2, 2)]
    waited(group.allreduce_coalesced(results))
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.MAX
    waited(group.allreduce_coalesced(results, opts=options))
    with attempt(results):
        waited(group.allreduce_coalesced([]))
    return results


@case("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced",
      "alltoall", "alltoall_base", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
      "recv_anysource", "_allgather_base", types=[torch.float32])
def methods(name, group, make):
    size = group.size()
    arguments = {
        "allgather": lambda: ([empties(group, make, 6)], [one(group, make)]),
        "allgather_coalesced": lambda: ([empties(group, make, 6)], [one(group, make)]),
        "alltoall": lambda: (empties(group, make), several(group, make)),
        "alltoall_base": lambda: (make(2 * size, 0), make(2 * size, group.rank()), [], []),
        "reduce_scatter_single_coalesced": lambda: ([make(3, 0)], [make(3 * size, 1)]),
        "reduce_scatter_tensor_coalesced": lambda: ([make(3, 0)], [make(3 * size, 1)]),
        "_allgather_base": lambda: (make(6 * size, 0), one(group, make)),
    }.get(name, lambda: ([make(6 * size, 0)], [one(group, make)]))()
    if name == "recv_anysource":
        if group.rank() == 0:
            waited(group.send([make(6, 4)], 1, 5))
        elif group.rank() == 1:
            arguments = ([make(6, 0)],)
            waited(group.recv_anysource(*arguments, 5))
    else:
        waited(getattr(group, name)(*arguments))
    return arguments


@case("rank", "size", "abort", "shutdown", "get_group_store", "set_timeout", "bound_device_id", "_get_backend",
      "_get_sequence_number_for_group", types=[torch.float32])
def members(name, group, make):
    if name in ("abort", "shutdown"):  # uses a separate group
        with untouched(group):
            group = dist.new_group(backend=c10d._world.pg_map[group][0])
        tensor = one(group, make)
        dist.all_reduce(tensor, group=group)
        getattr(group, name)()
        return tensor
    member = getattr(group, name)
    arguments = {"set_timeout": [ENOUGH], "_get_backend": [torch.device("cpu")]}.get(name, [])
    value = member(*arguments) if callable(member) else member
    return type(value).__name__ if name in ("get_group_store", "_get_backend",
                                            "_get_sequence_number_for_group") else str(value)
