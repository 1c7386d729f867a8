"""Collectives of vectors of one shard per rank on a ring in software; each rank's results are written to a file."""

import json
import os
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradring.torch
from host.driver.diagnosis import RingError
from host.pytorch.sharding import Residuals
from sim.golden import ring as golden
from sim.golden.codecs import CODECS, RAW
from tests.host.pytorch.scripts.shards import ring_order, shards_of

OPERATIONS = {"SUM": dist.ReduceOp.SUM, "AVG": dist.ReduceOp.AVG, "PREMUL_SUM": dist.ReduceOp.PREMUL_SUM(0.3)}
COUNT = 37


def begin(name):
    """Create a process group; a store that torchrun serves cannot be used twice."""
    dist.init_process_group("gradring", init_method=f"file://{sys.argv[1]}.{name}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))


def bits_of(vectors, name):
    """Addends of a sum, as bit patterns."""
    return (vectors.float() * np.float32(0.3) if name == "PREMUL_SUM" else vectors.float()).numpy().view(np.uint32)


def result_of(total, vectors, name):
    """Tensor of the type of the vectors with a sum or mean."""
    values = torch.from_numpy(total.copy().view(np.float32))
    return (values / len(vectors) if name == "AVG" else values).to(vectors.dtype)


def expected(vectors, name):
    """Sum of this rank's shard on the golden ring; vectors have shape (ranks, ranks, count)."""
    bits, rank = ring_order(bits_of(vectors, name)), dist.get_rank()
    total, _ = golden.reduce_scatter(bits, gradient_codec=CODECS[RAW])
    return result_of(shards_of(total, vectors.shape[2])[rank, rank], vectors, name)


def expected_everywhere(vectors, name):
    """Sum of whole vectors on the golden ring."""
    total, _ = golden.all_reduce(bits_of(vectors, name).reshape(len(vectors), -1), gradient_codec=CODECS[RAW])
    return result_of(total, vectors, name)


def calls(vector, operation, group):
    """The forms of a reduce-scatter: name, function that makes the call, and its outputs."""
    ranks, kind = group.size(), vector.dtype
    tables = vector.view(ranks, -1)

    def output():
        return torch.full((COUNT,), 9, dtype=kind)

    def options():
        chosen = dist.ReduceScatterOptions()
        chosen.reduceOp = operation
        return chosen

    def coalesced(result):
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            dist.reduce_scatter_single(result, vector, op=operation)
            dist.reduce_scatter_single(torch.empty_like(result), vector, op=operation)
        manager.wait()

    def functions(result):
        result.copy_(functional.reduce_scatter_tensor(vector, "avg", 0, group))

    forms = {
        "single": lambda result: dist.reduce_scatter_single(result, vector, op=operation),
        "tensor": lambda result: dist.reduce_scatter_tensor(result, vector, op=operation),
        "base": lambda result: group._reduce_scatter_base(result, vector, options()).wait(),
        "list": lambda result: dist.reduce_scatter(result, list(tables), op=operation),
        "asynchronous": lambda result: dist.reduce_scatter_single(result, vector, op=operation, async_op=True).wait(),
        "method": lambda result: group.reduce_scatter([result], [list(tables)], options()).wait(),
        "coalesced": coalesced}
    if operation == dist.ReduceOp.AVG:
        forms["functional"] = functions
    for name, form in forms.items():
        result = output()
        form(result)
        yield name, result


def same(a, b):
    return bool(a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16)))


def forms():
    result, group, rank = {}, dist.group.WORLD, dist.get_rank()
    for kind in (torch.float32, torch.bfloat16):
        vectors = torch.randn(3, 3, COUNT, generator=torch.Generator().manual_seed(1)).to(kind)
        for name, operation in OPERATIONS.items():
            right = expected(vectors, name)
            for form, value in calls(vectors[rank].reshape(-1), operation, group):
                result[f"{form} {name} {kind}"] = same(value, right)
            reduced = vectors[rank].clone()
            dist.all_reduce(reduced, op=operation)
            result[f"all_reduce {name} {kind}"] = same(reduced.reshape(-1), expected_everywhere(vectors, name))
    return result


def others():
    """Collectives that PyTorch's sharded modules use, and that a ring does not change."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    result = {}
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=1)
    result["broadcast"] = bool((tensor == 1).all())
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    result["objects"] = objects == [{"rank": number} for number in range(ranks)]
    listed = [{"from": rank}]
    dist.broadcast_object_list(listed, src=2)
    result["object list"] = listed == [{"from": 2}]
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % ranks)
    received = torch.empty(1)
    dist.recv(received, (rank - 1) % ranks)
    sent.wait()
    result["send"] = received.item() == (rank - 1) % ranks
    exchanged = torch.empty(ranks)
    dist.all_to_all_single(exchanged, torch.arange(ranks) + 10.0 * rank)
    result["all to all"] = exchanged.tolist() == [10.0 * number + rank for number in range(ranks)]
    doubles = torch.empty(2, dtype=torch.float64)
    dist.reduce_scatter_single(doubles, torch.arange(2.0 * ranks, dtype=torch.float64), op=dist.ReduceOp.AVG)
    result["float64"] = doubles.tolist() == [2.0 * rank, 2.0 * rank + 1]
    shard = torch.tensor([-0.0, float("nan"), 1e-45, float(rank)])
    whole = torch.empty(4 * ranks)
    dist.all_gather_single(whole, shard)
    result["gather"] = same(whole.view(ranks, 4)[rank], shard)
    result["module of some ranks"] = module_of_some()
    dist.barrier()
    return result


def module_of_some():
    """Whether a module of ranks 0 and 2 has the means of their gradients, on their own ring."""
    rank, group = dist.get_rank(), dist.new_group([0, 2])
    if rank == 1:
        return True
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(9, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    inputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(rank))
    model(inputs).square().sum().backward()
    own = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    both = [torch.empty_like(own), torch.empty_like(own)]
    dist.all_gather(both, own, group=group)
    model.zero_grad()
    module = DistributedDataParallel(model, process_group=group)
    module(inputs).square().sum().backward()
    means = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return bool(torch.equal(means, both[0] * 0.5 + both[1] * 0.5))


def message(action):
    """Return the message of the error that an action raises, without PyTorch's addition."""
    try:
        action()
    except (RingError, RuntimeError, ValueError) as error:
        return str(error).partition("\nException raised from")[0]
    return None


def scatter(count, *, kind=torch.float32, operation=dist.ReduceOp.SUM, group=None):
    ranks = dist.get_world_size(group)
    dist.reduce_scatter_single(torch.zeros(count, dtype=kind), torch.ones(ranks * count, dtype=kind), op=operation,
                               group=group)


def some():
    """Mistake in a group of ranks 1 and 2, which does not concern rank 0."""
    group, rank = dist.new_group([1, 2]), dist.get_rank()
    return message(lambda: scatter(4 + (rank == 2), group=group)) if rank else None


def on_nodes(wrap):
    """Message of an optimizer of gradring.torch for parameters in shards."""
    model = torch.nn.Linear(9, 8)
    wrapped = wrap(model)
    return message(lambda: gradring.torch.SGD(wrapped.parameters(), lr=1))


def mistakes():
    rank, scaled = int(os.environ["RANK"]), OPERATIONS["PREMUL_SUM"]
    cases = {"float64": lambda: message(lambda: scatter(4, kind=torch.float64, operation=scaled)),
             "integers": lambda: message(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=scaled)),
             "operation": lambda: message(lambda: scatter(4, operation=dist.ReduceOp.BAND)),
             "lengths": lambda: message(lambda: scatter(4 + (rank == 2))), "some": some,
             "fully_shard": lambda: on_nodes(fully_shard), "flat": lambda: on_nodes(
                 lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"))),
             "original": lambda: on_nodes(lambda model: FullyShardedDataParallel(
                 model, device_id=torch.device("cpu"), use_orig_params=True))}
    result = {}
    for name, case in cases.items():
        begin(name)
        result[name] = case()
        dist.destroy_process_group()
    return result


class Owner:
    """A parameter."""


def residuals():
    """Residuals of parameters that take part in collectives together, or not."""
    a, b, c = Owner(), Owner(), Owner()
    kept, result = Residuals(), {}
    first = kept.array([a, b], [3, 5], 2)
    first[...] = np.arange(16)
    result["same"] = kept.array([a, b], [3, 5], 2).base is first.base
    only = kept.array([b], [5], 2).copy()
    result["fewer"] = only.tolist() == [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]
    more = kept.array([c, b, a], [1, 5, 3], 2).reshape(2, 9)
    result["more"] = more.tolist() == [[0, 3, 4, 5, 6, 7, 0, 1, 2], [0, 11, 12, 13, 14, 15, 8, 9, 10]]
    result["other shape"] = not kept.array([a], [4], 2).any()
    return result


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin("forms")
    result = {"forms": forms(), "others": others(), "residuals": residuals()}
    dist.destroy_process_group()
    result["mistakes"] = mistakes()
    with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
