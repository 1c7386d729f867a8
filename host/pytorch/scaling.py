"""``torch.amp.GradScaler`` with optimizers on the nodes.

Their gradients are those of each rank, so one rank may find an infinity that the others do not have. All ranks
must skip the step then, and lower the scale, as they do where the infinity is in the mean.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["install"]


def install() -> None:
    """Let ranks agree on whether a gradient is finite, from now on."""
    unscale = torch.amp.GradScaler._unscale_grads_

    @functools.wraps(unscale)
    def agree(self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        found = unscale(self, optimizer, *arguments, **options)
        if getattr(optimizer, "on_nodes", False):
            largest = torch.stack([value.cpu().reshape(()) for value in found.values()] or [torch.zeros(())]).max()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            for value in found.values():
                value.fill_(largest)
        return found

    torch.amp.GradScaler._unscale_grads_ = agree
