"""Exact collectives on integers, in a group of ranks or in a single process."""

import hashlib
from collections.abc import Callable

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
        self._start(values, "MAX")()

    def sum(self, values: torch.Tensor) -> Callable[[], None]:
        """Begin to replace integers by the sum of all ranks; return a function that waits for the end."""
        return self._start(values, "SUM")

    def _start(self, values: torch.Tensor, operation: str) -> Callable[[], None]:
        """Begin a reduction; return a function that waits for its end."""
        if self.size == 1:
            return lambda: None
        work = dist.all_reduce(values, op=getattr(dist.ReduceOp, operation), group=self._group, async_op=True)

        def wait() -> None:
            if work is not None:
                work.wait()

        return wait

    def agree(self, own: bytes, device: torch.device, text: str, problem: ValueError | None = None
              ) -> Callable[[], None]:
        """Begin to compare signatures; return a function that waits for the end.

        It raises an error on all ranks unless they have the same signature, and none has a problem.

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
