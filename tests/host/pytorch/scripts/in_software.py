"""Train two models with DDP, one of them with an optimizer on the ring, and write digests of each rank's results."""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradring.torch


def digest(tensors):
    """Digest of the bits of tensors."""
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def train(make):
    """Train a model, going on from a saved state halfway; return the digests of its weights and of its state."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(9, 37), torch.nn.BatchNorm1d(37), torch.nn.Tanh(), torch.nn.Linear(37, 3)))
    decayed, *rest = model.parameters()
    groups = [{"params": [decayed], "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = make(groups, lr=1e-2)
    examples = torch.Generator().manual_seed(dist.get_rank())
    for step in range(6):
        if step == 3:
            state = optimizer.state_dict()
            optimizer = make(groups, lr=1e-2)
            optimizer.load_state_dict(state)
        inputs = torch.randn(8, 9, generator=examples)
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :3].sin()).square().mean().backward()
        optimizer.step()
    state = optimizer.state_dict()["state"]
    return [digest(model.parameters()), digest(state[index]["exp_avg"] for index in sorted(state))]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gradring")
    result = [train(torch.optim.AdamW), train(gradring.torch.AdamW)]
    whole = dist.new_group()
    numbers = [torch.arange(100.0 * count) * (dist.get_rank() + 1) for count in range(4)]
    works = [dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=whole, async_op=True) for tensor in numbers]
    for work in works:
        work.wait()
    result += [digest(numbers), train(gradring.torch.AdamW)]
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, result)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"ranks": everything}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
