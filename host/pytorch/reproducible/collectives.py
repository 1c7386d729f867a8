"""Exact collectives on integers, in a group of ranks or in a single process."""

import torch
import torch.distributed as dist

__all__ = ["Ranks"]


class Ranks:
    """Ranks of a process group; without ``torch.distributed``, one rank.

    Parameters
    ----------
    group : ProcessGroup or None
        By default the group of all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._several = dist.is_available() and dist.is_initialized()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return dist.get_world_size(self._group) if self._several else 1

    @property
    def rank(self) -> int:
        """Number of this rank in the group."""
        return dist.get_rank(self._group) if self._several else 0

    def largest(self, values: torch.Tensor) -> None:
        """Replace integers by the largest of all ranks."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group)

    def sum(self, values: torch.Tensor) -> None:
        """Replace integers by the sum of all ranks."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM, group=self._group)
