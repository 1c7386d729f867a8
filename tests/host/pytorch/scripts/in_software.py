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
    """Train a model; return the digests of its weights and of the optimizer's state."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(9, 37), torch.nn.BatchNorm1d(37), torch.nn.Tanh(), torch.nn.Linear(37, 3)))
    optimizer = make(model.parameters(), lr=1e-2)
    examples = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
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
    numbers = torch.arange(100.0) * (dist.get_rank() + 1)
    dist.all_reduce(numbers, op=dist.ReduceOp.AVG)
    result.append(digest([numbers]))
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, result)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"ranks": everything}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
