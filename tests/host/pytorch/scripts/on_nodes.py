"""Optimizers that run on the nodes, together with features of DistributedDataParallel that scripts use."""

import copy
import re
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradring.torch


class Branches(nn.Module):
    """Model with a module that only some ranks use, one that no rank uses, and a frozen one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.base, self.some, self.none = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(4, 4)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x, branch):
        x = self.frozen(torch.tanh(self.base(x)))
        return (self.some(x) if branch else x).square().mean()


def inputs(step):
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


def flat(parameters):
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy().copy()


def refused(text, action):
    with pytest.raises(Exception, match=f"^{re.escape(text)}"):
        action()


def replayed(path):
    """Train with AdamW, a schedule, two parameter groups and gradient accumulation; save and load the state."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3)))
    first, second = list(model.module[0].parameters()), list(model.module[2].parameters())
    groups = [{"params": first}, {"params": second, "lr": 0.02, "weight_decay": 0.1}]
    optimizer = gradring.torch.AdamW(groups, lr=0.01, clip=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    record = {"weights": [flat(first + second)], "gradients": [], "rates": []}

    def steps(numbers):
        for step in numbers:
            optimizer.zero_grad()
            with model.no_sync():
                model(inputs(step)).square().sum().backward()
            model(inputs(step + 100)).square().sum().backward()
            record["gradients"].append(np.concatenate([flat(parameter.grad for parameter in first + second)]))
            record["rates"].append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            record["weights"].append(flat(first + second))
            schedule.step()

    steps(range(3))
    saved = [copy.deepcopy(part.state_dict()) for part in (model, optimizer, schedule)]
    steps(range(3, 5))
    ends = record["weights"][-1]
    for part, state in zip((model, optimizer, schedule), saved, strict=True):
        part.load_state_dict(state)
    for name in record:
        del record[name][-2:]
    steps(range(3, 5))
    assert (record["weights"][-1].view(np.uint32) == ends.view(np.uint32)).all()
    state = optimizer.state_dict()
    assert state["state"][0]["step"].item() == 5
    assert state["state"][2]["exp_avg"].shape == second[0].shape
    np.savez(f"{path}/rank{dist.get_rank()}.npz", **{name: np.stack(values) for name, values in record.items()})
    refused("clip_grad_value_ must have gradients that are summed", lambda: nn.utils.clip_grad_value_(first, 1.0))
    refused("clip_grad_norm_ must have gradients that are summed", lambda: nn.utils.clip_grad_norm_(first, 1.0))
    refused("Groups of an optimizer on the nodes must be given when it is made",
            lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))
    refused("State must be one that an optimizer of gradring.torch has saved",
            lambda: optimizer.load_state_dict({"state": {}, "param_groups": []}))


def unused():
    """A parameter that one rank does not use has a zero gradient there; parameters that no rank uses do not
    change."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    plain = copy.deepcopy(model.module)
    parts = [[*model.module.base.parameters(), *model.module.some.parameters()], [*model.module.none.parameters()]]
    optimizer = gradring.torch.Adam([{"params": parts[0]}, {"params": parts[1]}], lr=0.1)
    before = flat(parts[1])
    model(inputs(0), dist.get_rank() == 0).backward()
    optimizer.step()
    assert (flat(parts[1]) == before).all()
    # The mean gradient over all ranks, computed in this process.
    losses = [plain(torch.randn(5, 8, generator=torch.Generator().manual_seed(rank)), rank == 0)
              for rank in range(dist.get_world_size())]
    (sum(losses) / len(losses)).backward()
    torch.optim.Adam(plain.parameters(), lr=0.1).step()
    for name, parameter in plain.named_parameters():  # the orders of sums and roundings differ
        assert torch.allclose(parameter, model.module.get_parameter(name), rtol=1e-4, atol=1e-5), name

    frozen = model.module.frozen.weight.clone()
    assert torch.equal(frozen, plain.frozen.weight)
    together = gradring.torch.Adam(parts[0] + parts[1])
    refused("Parameters of a group must all have a gradient on some rank, or none of them; parameter 4 of group 0, "
            "of shape (4, 4), parameter 5 of group 0, of shape (4,) has none on any",
            together.step)


def shared():
    """The nodes update one part of a model, and a PyTorch optimizer updates the rest with averaged gradients."""
    torch.manual_seed(4)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3)))
    plain = copy.deepcopy(model.module)
    optimizers = [gradring.torch.Adam(model.module[0].parameters(), lr=0.01),
                  torch.optim.SGD(model.module[2].parameters(), lr=0.1)]
    theirs = [torch.optim.Adam(plain[0].parameters(), lr=0.01), torch.optim.SGD(plain[2].parameters(), lr=0.1)]
    for step in range(3):
        every = [torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + rank))
                 for rank in range(dist.get_world_size())]
        (sum(plain(batch).square().sum() for batch in every) / len(every)).backward()
        model(inputs(step)).square().sum().backward()
        for optimizer in (*optimizers, *theirs):
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in plain.named_parameters():
        assert torch.allclose(parameter, model.module.get_parameter(name), rtol=1e-4, atol=1e-5), name
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, flat(model.parameters()).tobytes())
    assert len(set(everyone)) == 1


def constructors():
    parameter = [nn.Parameter(torch.ones(3))]
    refused("maximize must be left out", lambda: gradring.torch.SGD(parameter, maximize=True))
    refused("amsgrad must be left out", lambda: gradring.torch.Adam(parameter, amsgrad=True))
    refused("Parameters on the nodes must be float32 on the CPU, not torch.float64",
            lambda: gradring.torch.SGD([nn.Parameter(torch.ones(3, dtype=torch.float64))]))
    refused("Group must have a parameter that requires a gradient",
            lambda: gradring.torch.SGD([nn.Parameter(torch.ones(3), requires_grad=False)]))
    refused("Learning rate must be a finite number", lambda: gradring.torch.AdamW(parameter, lr=-1.0))


dist.init_process_group("gradring")
constructors()
replayed(sys.argv[1])
unused()
shared()
dist.destroy_process_group()
