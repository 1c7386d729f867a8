"""Exact collectives on integers, in a group of ranks or in a single process."""

import hashlib

import torch
import torch.distributed as dist

__all__ = ["Ranks", "signature"]


def signature(*values: object) -> bytes:
    """Eight bytes that depend on values, which are compared by their representations."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).digest()


class Ranks:
    """Ranks of a process group; without ``torch.distributed``, one rank.

    Parameters
    ----------
    group : ProcessGroup or None
        By default the group of all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        if group is not None and self.rank < 0:
            raise ValueError("This rank must be in the process group that sums: give it a group of its own, or no "
                             "sums")

    @property
    def _several(self) -> bool:
        return bool(dist.is_available() and dist.is_initialized())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return dist.get_world_size(self._group) if self._several else 1

    @property
    def rank(self) -> int:
        """Number of this rank in the group; negative if it is not in the group."""
        return dist.get_rank(self._group) if self._several else 0

    def largest(self, values: torch.Tensor) -> None:
        """Replace integers by the largest of all ranks."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group)

    def sum(self, values: torch.Tensor) -> None:
        """Replace integers by the sum of all ranks."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM, group=self._group)

    def agree(self, own: bytes, device: torch.device, text: str, problem: ValueError | None = None) -> None:
        """Raise an error on all ranks unless they have the same signature, and none has a problem.

        Parameters
        ----------
        own : bytes
            Result of :func:`signature` on this rank.
        device : torch.device
        text : str
            Message of the ValueError if signatures differ.
        problem : ValueError, optional
            Error that this rank raises; the other ranks raise a RuntimeError.
        """
        if self.size > 1:
            upper = torch.tensor(list(own), dtype=torch.uint8, device=device)
            both = torch.cat([upper, 255 - upper, upper.new_tensor([problem is not None])])
            self.largest(both)
            values = both.tolist()
            if values[-1] and problem is None:
                raise RuntimeError("Another rank cannot take part in this sum: see its message")
            if problem is None and values[:8] != [255 - value for value in values[8:16]]:
                raise ValueError(text)
        if problem is not None:
            raise problem
