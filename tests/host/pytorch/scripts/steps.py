"""Cases in which what a backward pass or a step must do changes while a script runs; each saves its weights.

Run by ``gradring launch -n 4 steps.py FILE``, and by itself with gloo only where ``plain`` is given as well.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NODES = "plain" not in sys.argv
dist.init_process_group(None if NODES else "gloo")
RANK, RANKS = dist.get_rank(), dist.get_world_size()
if NODES:
    import gradring.torch

SGD = gradring.torch.SGD if NODES else torch.optim.SGD
Adam = gradring.torch.Adam if NODES else torch.optim.Adam
results = {}


def linear(values, dtype=torch.float32):
    """A module with one weight for each value."""
    module = torch.nn.Linear(len(values), 1, bias=False, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([values]))
    return module


def differentiate(module, *factors):
    """A backward pass with these gradients."""
    module(torch.tensor([factors], dtype=next(module.parameters()).dtype)).sum().backward()


def scaler():
    """An infinity on one rank in the first step, and on another one in the third."""
    module = DistributedDataParallel(linear([1.0]))
    optimizer, scale = SGD(module.parameters(), lr=1.0), torch.amp.GradScaler("cpu", init_scale=4.0)
    for step, infinite in enumerate((1, None, 0, None)):
        optimizer.zero_grad()
        factor = torch.tensor([[float("inf") if infinite == RANK else 4.0 ** step * (RANK + 1)]])
        scale.scale(module(factor).sum()).backward()
        scale.step(optimizer)
        scale.update()
    return [module.module.weight.item(), scale.get_scale()]


def another_optimizer():
    """Three steps of an optimizer on the nodes, and three of another one following its end."""
    module = DistributedDataParallel(linear([1.0, 2.0]))
    optimizer = Adam(module.parameters(), lr=0.5)
    for kind in (None, torch.optim.SGD):
        if kind is not None:
            del optimizer
            optimizer = kind(module.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            differentiate(module, RANK + 1.0, -2.0)
            optimizer.step()
    return module.module.weight.tolist()


def groups():
    """A module in a group of half of the ranks."""
    halves = [dist.new_group(list(range(first, first + RANKS // 2))) for first in (0, RANKS // 2)]
    module = DistributedDataParallel(linear([0.0]), process_group=halves[RANK // (RANKS // 2)])
    differentiate(module, RANK + 1.0)
    return module.module.weight.grad.tolist()


def frozen():
    """A parameter that is frozen before the first pass, and trained later."""
    body = torch.nn.Sequential(linear([1.0, 2.0]), linear([4.0]))
    body[0].weight.requires_grad_(False)
    module = DistributedDataParallel(body, find_unused_parameters=True)
    body[1].weight.requires_grad_(True)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.25)
    for step in range(4):
        body[1].weight.requires_grad_(step != 1)
        optimizer.zero_grad()
        if step != 1:
            differentiate(module, RANK * 2.0, 2.0)
        optimizer.step()
    return [one.weight.tolist() for one in body]


def types():
    """Modules of other types than float32."""
    means = []
    for dtype in (torch.bfloat16, torch.float64):
        module = DistributedDataParallel(linear([0.0], dtype))
        differentiate(module, RANK + 1.0)
        means.append(module.module.weight.grad.item())
    return means


def loop():
    """Accumulation, a loss that is skipped everywhere, and a hook of the script."""
    module = DistributedDataParallel(linear([1.0, 1.0]))
    optimizer = SGD(module.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step != 1)
        with module.no_sync():
            for _ in range(1 + RANK % 2):
                differentiate(module, 1.0, RANK + 1.0)
        differentiate(module, 1.0, 2.0)
        if step != 1:
            optimizer.step()
    return module.module.weight.tolist()


for case in (scaler, another_optimizer, groups, frozen, types, loop):
    every = [None] * RANKS
    dist.all_gather_object(every, case())
    results[case.__name__] = every
if not RANK:
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
dist.destroy_process_group()
