"""Script in which one rank skips a step, either before or after its backward pass."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradring.torch

dist.init_process_group()
torch.manual_seed(0)
module = torch.nn.Linear(2, 1)
if sys.argv[1] == "buffers":  # their next forward pass broadcasts buffers over gloo
    module = torch.nn.Sequential(module, torch.nn.BatchNorm1d(1, affine=False))
if sys.argv[1] != "plain":
    module = DistributedDataParallel(module)
kind = torch.optim.SGD if sys.argv[1] == "buffers" else gradring.torch.SGD
optimizer = kind(module.parameters(), lr=0.5)
for step in range(3):
    loss = module(torch.ones(2, 2)).sum()
    bad = step == 1 and dist.get_rank() == 1
    if bad and sys.argv[1] != "late":
        continue
    loss.backward()
    if bad:
        continue
    optimizer.step()
    optimizer.zero_grad()
