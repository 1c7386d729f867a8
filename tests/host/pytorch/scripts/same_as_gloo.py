"""Run PyTorch's DistributedDataParallel tutorial with digits, both over the ring and over gloo."""

import json
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def model(group):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
                                   process_group=group)


def main(path):
    dist.init_process_group()
    assert dist.group.WORLD.name() == "gradring"
    gloo = dist.new_group(backend="gloo")
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=1))
    models = [model(None), model(gloo)]
    optimizers = [torch.optim.SGD(item.parameters(), lr=0.2, momentum=0.9) for item in models]
    losses = []
    for inputs, labels in loader:
        step_losses = []
        for item, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(item(inputs), labels)
            loss.backward()
            optimizer.step()
            step_losses.append(loss.item())
        losses.append(step_losses)
    weights = torch.cat([parameter.detach().flatten() for parameter in models[0].parameters()])
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    assert all(torch.equal(item.view(torch.int32), weights.view(torch.int32)) for item in everyone)

    # Sums of other types, other operations, and groups of only some ranks use gloo.
    rank, size = dist.get_rank(), dist.get_world_size()
    number = torch.tensor([rank])
    dist.all_reduce(number)
    assert number.item() == size * (size - 1) // 2
    largest = torch.tensor([float(rank)])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert largest.item() == size - 1
    mean = torch.full((3, 2), float(rank)).t()  # is not contiguous
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean.eq((size - 1) / 2).all()
    pair = dist.new_group([0, 1])
    if rank < 2:
        number = torch.ones(1)
        dist.all_reduce(number, group=pair)
        assert number.item() == 2
    dist.barrier()
    if rank == 0:
        with open(path, "w") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


main(sys.argv[1])
