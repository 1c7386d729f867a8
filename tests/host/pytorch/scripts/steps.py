"""Cases of scripts that change groups, types, hooks or optimizers; each case returns its weights.

Run it with ``gradring launch -n 4 steps.py FILE``, or on its own, using only gloo, if ``plain`` is given too.
"""

import copy
import gc
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
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
    module = torch.nn.Linear(len(values), 1, bias=False, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([values]))
    return module


def differentiate(module, *factors):
    """Run a backward pass that produces the given gradients."""
    module(torch.tensor([factors], dtype=next(module.parameters()).dtype)).sum().backward()


def scaler():
    """One rank has an infinite gradient in the first step, and another rank has one in the third step."""
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
    """Three steps of an optimizer on the nodes, followed by three steps of a PyTorch optimizer."""
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
    """A module in a process group that contains only half of the ranks."""
    halves = [dist.new_group(list(range(first, first + RANKS // 2))) for first in (0, RANKS // 2)]
    module = DistributedDataParallel(linear([0.0]), process_group=halves[RANK // (RANKS // 2)])
    differentiate(module, RANK + 1.0)
    return module.module.weight.grad.tolist()


def frozen():
    """Train a parameter that is frozen when DDP wraps the module and is unfrozen afterwards."""
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
    return [layer.weight.tolist() for layer in body]


def types():
    """Modules with parameter types other than float32."""
    means = []
    for dtype in (torch.bfloat16, torch.float64):
        module = DistributedDataParallel(linear([0.0], dtype))
        differentiate(module, RANK + 1.0)
        means.append(module.module.weight.grad.item())
    return means


def loop():
    """Training loop with gradient accumulation, a step that all ranks skip, and gradients that are kept."""
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


def refusal(action):
    """Message of the error that a call raises, up to the first colon; None if it succeeds."""
    try:
        action()
    except ValueError as error:
        return str(error).partition(":")[0]
    return None


def copies():
    """Train copies of modules, with or without a hook of the script, and from a state saved before the first step."""
    means = []
    for hooked in (False, True):
        module = DistributedDataParallel(linear([0.0]))
        if hooked:
            module.register_comm_hook(None, fp16_compress_hook)
        copied = copy.deepcopy(module)
        assert not copied._forward_pre_hooks
        differentiate(copied, RANK + 1.0)
        means.append(copied.module.weight.grad.item())
    optimizer = SGD(module.parameters(), lr=1.0, momentum=0.5)
    state = copy.deepcopy(optimizer.state_dict())
    for again in (False, False, True):
        if again:
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        differentiate(module, RANK + 1.0)
        optimizer.step()
    return [*means, module.module.weight.item()]


def unequal_skips():
    """One rank has infinite gradients in two of the steps, so all ranks skip them."""
    module = DistributedDataParallel(linear([0.0]), find_unused_parameters=True)
    optimizer, scale = SGD(module.parameters(), lr=1.0), torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(5):
        optimizer.zero_grad()
        factor = float("inf") if RANK == 1 and step in (1, 2) else 2.0 ** step
        scale.scale(module(torch.tensor([[factor]])).sum()).backward()
        scale.step(optimizer)
        scale.update()
    return [module.module.weight.item(), scale.get_scale()]


def circle():
    """An optimizer that refers to itself, so that only the garbage collector frees it."""
    module = DistributedDataParallel(linear([0.0]))
    optimizer = SGD(module.parameters(), lr=1.0)
    optimizer.itself = optimizer
    for kind in (None, torch.optim.SGD):
        if kind is not None:
            optimizer = kind(module.parameters(), lr=1.0)
            if RANK:
                gc.collect()
        optimizer.zero_grad()
        differentiate(module, RANK + 1.0)
        optimizer.step()
    return module.module.weight.item()


def own_hook():
    """A hook that the script registers before or after the first pass, with a group of all ranks or half of them."""
    means = []
    halves = [dist.new_group(list(range(first, first + RANKS // 2))) for first in (0, RANKS // 2)]
    for group in (None, halves[RANK // (RANKS // 2)]):
        for late in (False, True):
            module = DistributedDataParallel(linear([0.0]), process_group=group)
            if late:
                module(torch.ones(1, 1))
            module.register_comm_hook(group, fp16_compress_hook)
            differentiate(module, RANK + 1.0)
            means.append(module.module.weight.grad.item())
    optimizer = SGD(module.parameters(), lr=1.0)
    means.append(refusal(lambda: differentiate(module, 1.0)))
    del optimizer
    return means


def uneven_inputs():
    """Ranks have different numbers of inputs: rank r has r + 1 inputs."""
    ends = []
    for whole in (True, False):
        module = DistributedDataParallel(linear([0.0]))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        with Join([module], divide_by_initial_world_size=whole):
            for _ in range(RANK + 1 if whole else 1):
                optimizer.zero_grad()
                text = refusal(lambda: differentiate(module, float(RANKS)))  # noqa: B023, called here
                optimizer.step()
        ends.append(text or module.module.weight.item())
    module = DistributedDataParallel(linear([0.0]))
    optimizer = SGD(module.parameters(), lr=1.0)
    with Join([module]):
        ends.append(refusal(lambda: differentiate(module, 1.0)))
    del optimizer
    return ends


def changed_groups():
    """Parameters that are added or unfrozen after the optimizer has been created."""
    module = DistributedDataParallel(linear([0.0, 0.0]))
    other = torch.nn.Parameter(torch.zeros(2))
    other.requires_grad_(False)
    optimizer = SGD([module.module.weight, other], lr=1.0)
    ends = [refusal(lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]}))]
    differentiate(module, 1.0, 1.0)
    other.requires_grad_(True)
    ends.append(refusal(optimizer.step))
    other.requires_grad_(False)
    optimizer.step()
    optimizer.param_groups[0]["params"].append(other)
    return [*ends, refusal(optimizer.step), module.module.weight.tolist()]


def passes_of_one_rank():
    """One rank runs extra passes outside of a step, in a module with buffers."""
    body = torch.nn.Sequential(torch.nn.BatchNorm1d(1, affine=False), linear([0.0]))
    module = DistributedDataParallel(body)
    optimizer = SGD(module.parameters(), lr=1.0)
    values = torch.tensor([[1.0], [-1.0]])
    if not RANK:
        with torch.no_grad():
            module.module(values)
        with module.no_sync():
            module.module(values)
    for _ in range(2):
        optimizer.zero_grad()
        (module(values) * values).sum().backward()
        optimizer.step()
    return round(body[1].weight.item(), 3)


def two_groups():
    """Two process groups, both of all ranks, sum one after the other."""
    other = dist.new_group()
    values = [torch.tensor([RANK + 1.0]), torch.tensor([10.0 * RANK])]
    works = [dist.all_reduce(values[0], async_op=True), dist.all_reduce(values[1], group=other, async_op=True)]
    for work in works:
        work.wait()
    return [value.item() for value in values]


def not_finite():
    """Rank 1 has other weights; a gradient of rank 2 is NaN in the second pass; and in a step on the nodes, a
    gradient of rank 3 is infinite."""
    weights = []
    for kind, bad, value in ((torch.optim.SGD, 2, float("nan")), (SGD, 3, float("inf"))):
        module = DistributedDataParallel(linear([1.0, 2.0]))
        optimizer = kind(module.parameters(), lr=1.0)
        if bad == 2 and RANK == 1:
            with torch.no_grad():
                module.module.weight += 1
        for step in range(2 if bad == 2 else 1):
            optimizer.zero_grad()
            factors = [1.0, 1.0]
            if bad == RANK and (bad == 3 or step):
                factors[3 - bad] = value
            differentiate(module, *factors)
            optimizer.step()
        weights.append(not bool(module.module.weight.isfinite().all()))
    return weights


for case in (scaler, another_optimizer, groups, frozen, types, loop, copies, unequal_skips, circle, own_hook,
             uneven_inputs, changed_groups, passes_of_one_rank, two_groups, not_finite):
    every = [None] * RANKS
    dist.all_gather_object(every, case())
    results[case.__name__] = every
if not RANK:
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
dist.destroy_process_group()
