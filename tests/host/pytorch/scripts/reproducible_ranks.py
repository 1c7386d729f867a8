"""Reproducible sums in groups of 1 to 4 ranks over gloo; rank 0 prints the results of comparisons."""

import copy
import itertools
import json
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradring.torch import reproducible
from sim.golden.features.reproducible.sums import sum_of

SIZES = (1, 2, 3, 4)
#: Sizes of DDP's buckets, in MB.
BUCKETS = (0.00001, 0.001, 0.01, 1, 25)


def network(seed):
    """A small random network, with parameters of odd sizes, and a batch of inputs for each of four ranks."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    sizes = [draw.randint(1, 40) for _ in range(draw.randint(2, 4))]
    layers = [module for pair in itertools.pairwise(sizes) for module in (nn.Linear(*pair), nn.Tanh())]
    model = nn.Sequential(*layers)
    return draw, model, torch.randn(4, 3, sizes[0]) * 2.0 ** draw.randint(-30, 30)


def gradients(model, inputs):
    """Gradients of a model for one batch, as a single vector."""
    model.zero_grad()
    model(inputs).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def expected(model, inputs, width):
    """Averages of the gradients of several batches, according to the golden model."""
    rows = [torch.cat([item.flatten() for item in gradients(copy.deepcopy(model), part)]) for part in inputs]
    lengths = [parameter.numel() for parameter in model.parameters()]
    sums = sum_of(torch.stack(rows).numpy().view(np.uint32), width=width, lengths=lengths)
    return sums.view(np.float32) / np.float32(len(inputs))


def models(groups, rank, count):
    """Compare DDP's averages for random models with the golden model's, for two bucket sizes and orders of ranks."""
    compared = 0
    for seed in range(count):
        draw, model, inputs = network(seed)
        size, width = draw.choice((1, 2, 4)), draw.choice((12, 16, 24, 32))
        golden = expected(model, inputs[:size], width)
        for bucket in draw.sample(BUCKETS, 2):
            order = draw.sample(range(size), size)
            if rank >= size:
                continue
            ddp = DistributedDataParallel(copy.deepcopy(model), process_group=groups[size], bucket_cap_mb=bucket)
            ddp.register_comm_hook(reproducible.Reducer(width=width, group=groups[size]), reproducible.average)
            for _ in range(2):  # DDP rebuilds its buckets after the first step
                actual = torch.cat([item.flatten() for item in gradients(ddp, inputs[order[rank]])]).numpy()
                assert (actual.view(np.uint32) == golden.view(np.uint32)).all(), (seed, bucket, order)
            compared += 1
    return compared


def train(group, *, headroom, width):
    """Train for six steps of 8 microbatches each; return the weights, the number of skipped steps, and a random
    number."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(9, 33), nn.Dropout(0.3), nn.ReLU(), nn.LayerNorm(33), nn.Linear(33, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = reproducible.Microbatches(model, 8, seed=5, width=width, headroom=headroom, group=group)
    for step in range(6):
        for _ in batches(step):
            scale = 1e6 if step == 3 else 1.0
            (scale * model(torch.randn(4, 9)).square().sum()).backward()
        if batches.reduce():
            optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return weights.view(torch.int32).tolist(), batches.skipped, torch.rand(()).item()


def faults(group):
    """If a word of a sum is wrong once, all ranks sum its block again; if it is still wrong, they raise an error."""
    reducer = reproducible.Reducer(width=16, group=group)
    ranks, total, flips = reducer.ranks, reducer.ranks.sum, []
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(dist.get_rank(group)))
    right = values.clone()
    reducer.all_reduce(right)

    def wrong(words):
        wait = total(words)

        def end():
            wait()
            if flips and ranks.rank == 1:
                words[flips.pop()] ^= 1 << 20

        return end

    ranks.sum = wrong
    flips[:] = [140_000]
    again = values.clone()
    reducer.all_reduce(again)
    assert torch.equal(again, right)
    assert reducer.counts.retried == 1
    flips[:] = [7, 7]
    try:
        reducer.all_reduce(values)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def misuse(group):
    """Return the errors of both ranks of a group whose arguments, steps or weights differ, or in which one rank
    fails."""
    rank = dist.get_rank(group)

    def summed(*sizes, width=32, kind=torch.float32):
        tensors = [torch.ones(size, dtype=kind) for size in sizes]
        return lambda: reproducible.Reducer(width=width, group=group).all_reduce(tensors)

    def trained(step=0, bias=0.0, count=2, **options):
        def call():
            torch.manual_seed(0)
            model = nn.Linear(3, 2)
            model.bias.data += bias
            batches = reproducible.Microbatches(model, count, group=group, **options)
            for _ in batches(step):
                model(torch.ones(1, 3)).sum().backward()
            batches.reduce()

        return call

    calls = {
        "width": summed(8, width=(16, 32)[rank]), "shapes": summed((33, 64)[rank]),
        "number": summed(*[20] * (rank + 1)),
        "type": summed(8, kind=(torch.float32, torch.float64)[rank]), "step": trained(step=rank),
        "weights": trained(bias=float(rank)), "seed": trained(seed=rank), "count": trained(count=2 + rank),
        "headroom": trained(headroom=(None, 4)[rank])}
    said = {}
    for name, call in calls.items():
        try:
            call()
            error = None
        except (ValueError, RuntimeError) as caught:
            error = f"{type(caught).__name__}: {caught}"
        said[name] = [None, None]
        dist.all_gather_object(said[name], error, group=group)
    return said


def main(count):
    rank = dist.get_rank()
    groups = {size: dist.new_group(list(range(size))) for size in SIZES}
    result = {"models": models(groups, rank, count)}
    for name, options in (("kept", {"headroom": None, "width": 32}), ("narrow", {"headroom": None, "width": 16}),
                          ("integers", {"headroom": 4, "width": 32})):
        result[name] = [train(groups[size], **options) if rank < size else None for size in SIZES]
    result["faults"] = faults(groups[2]) if rank < 2 else None
    result["misuse"] = misuse(groups[2]) if rank < 2 else None
    if rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "launched":
        dist.init_process_group()
        trained = train(None, headroom=None, width=32)
        if dist.get_rank() == 0:
            with open(sys.argv[2], "w", encoding="utf-8") as file:
                json.dump(trained, file)
        sys.exit()
    _, number, store, models_count = sys.argv
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(number), world_size=4)
    main(int(models_count))
    dist.barrier()
    dist.destroy_process_group()
