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
        infinities = unscale(self, optimizer, *arguments, **options)
        if getattr(optimizer, "on_nodes", False):
            values = [value.cpu().reshape(()) for value in infinities.values()]
            largest = torch.stack(values or [torch.zeros(())]).max()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            for value in infinities.values():
                value.fill_(largest)
        return infinities

    torch.amp.GradScaler._unscale_grads_ = agree
