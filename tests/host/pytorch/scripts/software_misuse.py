"""Mistakes with a ring in software, each in a new process group; each rank's messages are written to a file."""

import json
import os
import sys

import torch
import torch.distributed as dist

import gradring.torch
from host.driver.diagnosis import RingError


def begin(name):
    """Create a process group; a store that torchrun serves cannot be used twice."""
    dist.init_process_group("gradring", init_method=f"file://{sys.argv[1]}.{name}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))


def message(action):
    """Return the message of the error that an action raises."""
    try:
        action()
    except RingError as error:
        return str(error)
    return None


def steps(*, lr=0.1, seed=0, count=2):
    """Make steps of an optimizer, all but the first with another learning rate."""
    torch.manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(70))
    optimizer = gradring.torch.SGD([parameter], lr=0.1)
    for _ in range(count):
        parameter.grad = torch.ones(70)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = lr


def after(action):
    """Message of a sum after an action that fails."""
    message(action)
    return message(lambda: dist.all_reduce(torch.ones(4)))


def kept(optimizer, parameter):
    """Make a step with an optimizer of an earlier process group."""
    parameter.grad = torch.ones(70)
    optimizer.step()


def main():
    torch.set_num_threads(1)
    rank, result = int(os.environ["RANK"]), {}
    cases = {
        "rate": lambda: message(lambda: steps(lr=0.2 + 0.1 * (rank == 1))),
        "weights": lambda: message(lambda: steps(seed=rank)),
        "lengths": lambda: message(lambda: dist.all_reduce(torch.ones(4 + (rank == 2)))),
        "skipped": lambda: message(lambda: steps(count=3 - (rank == 2)) or dist.all_reduce(torch.ones(4))),
        "afterwards": lambda: after(lambda: steps(seed=rank)),
        "right": lambda: message(steps)}
    parameter = torch.nn.Parameter(torch.zeros(70))
    optimizer = gradring.torch.SGD([parameter], lr=0.5)
    for name, case in cases.items():
        begin(name)
        result[name] = case()
        if name == "right":
            kept(optimizer, parameter)
        dist.destroy_process_group()
    begin("kept")
    kept(optimizer, parameter)
    result["weight"] = float(parameter[69])
    dist.destroy_process_group()
    with open(f"{sys.argv[1]}.{rank}", "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
