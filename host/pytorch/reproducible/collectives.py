"""Exact collectives on integers, over a process group or in a single process."""

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist

__all__ = ["Ranks", "signature"]


def signature(*values: object) -> bytes:
    """Return an 8-byte digest of the ``repr`` of the values."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).digest()


class Ranks:
    """The ranks of a process group, or a single rank without ``torch.distributed``.

    Parameters
    ----------
    group : ProcessGroup or None
        Process group; by default, the group of all ranks.
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
        """Number of ranks in the group."""
        return dist.get_world_size(self._group) if self._several else 1

    @property
    def rank(self) -> int:
        """Index of this rank in the group; negative if it is not in the group."""
        return dist.get_rank(self._group) if self._several else 0

    def largest(self, values: torch.Tensor) -> None:
        """Replace each integer by its maximum over all ranks."""
        self._start(values, "MAX")()

    def sum(self, values: torch.Tensor) -> Callable[[], None]:
        """Start to replace each integer by its sum over all ranks; return a function that waits for the sums."""
        return self._start(values, "SUM")

    def _start(self, values: torch.Tensor, operation: str) -> Callable[[], None]:
        """Start a reduction; return a function that waits until it is done."""
        if self.size == 1:
            return lambda: None
        work = dist.all_reduce(values, op=getattr(dist.ReduceOp, operation), group=self._group, async_op=True)

        def wait() -> None:
            if work is not None:
                work.wait()

        return wait

    def agree(self, own: bytes, device: torch.device, text: str, problem: ValueError | None = None
              ) -> Callable[[], None]:
        """Start to compare the signatures of all ranks; return a function that waits for the result.

        The returned function raises an error on all ranks if their signatures differ or if any rank has a problem.

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
        upper = torch.tensor(list(own), dtype=torch.uint8, device=device)
        both = torch.cat([upper, 255 - upper, upper.new_tensor([problem is not None])])
        wait = self._start(both, "MAX")

        def end() -> None:
            wait()
            if problem is not None:
                raise problem
            values = both.tolist()
            if values[-1]:
                raise RuntimeError("Another rank cannot take part in this sum: see its message")
            if values[:8] != [255 - value for value in values[8:16]]:
                raise ValueError(text)

        return end
