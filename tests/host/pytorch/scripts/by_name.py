"""Script that trains for one step with the backend named by its first argument."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(sys.argv[1])
model = DistributedDataParallel(torch.nn.Linear(20, 5))
model(torch.ones(2, 20)).sum().backward()
assert dist.get_backend(dist.new_group([0], backend=sys.argv[1])) == dist.get_backend()
dist.destroy_process_group()
