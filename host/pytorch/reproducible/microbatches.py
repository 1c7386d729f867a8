"""Training with bits that do not depend on the number of ranks: the unit that is rounded is a microbatch."""

import hashlib
from collections.abc import Iterator

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.accumulator import Accumulator
from host.pytorch.reproducible.layout import Layout
from host.pytorch.reproducible.reducer import Reducer

__all__ = ["Microbatches"]


class Microbatches:
    """Deal the microbatches of each step among ranks, and average their gradients::

        batches = Microbatches(model, count=16)
        for step in range(steps):
            for index in batches(step):                  # this rank's share of the 16
                loss(model, *data(step, index)).backward()
            batches.reduce()                             # .grad is the mean of all 16
            optimizer.step()

    Every microbatch has its own random seed, and its gradient is an addend of its own, so weights have the same bits
    for any number of ranks that divides the work in any way; a rank may also be without microbatches. Without
    ``torch.distributed``, one process does all the work.

    Parameters
    ----------
    model : torch.nn.Module
        Not in ``DistributedDataParallel``, which sums gradients itself.
    count : int
        Microbatches in a step, of all ranks together.
    seed : int
        Random numbers of a microbatch depend on this seed, the step and the index of the microbatch.
    headroom : int or None
        With None, gradients of this rank's microbatches are kept until the step ends. With a number of bits, they are
        added to integers at once, below exponents of the previous step and this number of bits above them. A step in
        which a gradient is too large for these is skipped, as is one with an infinity or a NaN.
    width, group
        As of a :class:`~host.pytorch.reproducible.reducer.Reducer`.

    Attributes
    ----------
    skipped : int
        Number of steps that were skipped.
    """

    def __init__(self, model: torch.nn.Module, count: int, *, seed: int = 0, headroom: int | None = None,
                 width: int = 32, group: object = None) -> None:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            raise ValueError(f"Model must not be in {type(model).__name__}, which sums gradients itself: give its "
                             f"module")
        if headroom is not None and (not isinstance(headroom, int) or not 0 <= headroom <= 16):
            raise ValueError(f"Headroom must be None or an integer between 0 and 16, not {headroom!r}")
        self._bits = arithmetic.addend_bits(width, count)
        self._model, self._count, self._seed = model, count, seed
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._layout = Layout(self._parameters)
        self.reducer = Reducer(width=width, group=group)
        self._integers = None if headroom is None else Accumulator(self._layout, headroom, self._bits)
        self._kept: list[list[torch.Tensor]] = []
        self._step = 0
        # Microbatches of this rank that are still to be taken; None between steps.
        self._left: int | None = None
        self.skipped = 0

    @property
    def share(self) -> range:
        """Microbatches of this rank: one of as many parts as there are ranks, of lengths that differ by at most 1."""
        rank, size = self.reducer.ranks.rank, self.reducer.ranks.size
        return range(rank * self._count // size, (rank + 1) * self._count // size)

    def __call__(self, step: int) -> Iterator[int]:
        """Yield this rank's microbatches of a step, and take the gradients that each has left in parameters.

        Raises ValueError if a module's results depend on the distribution of microbatches.
        """
        self._check()
        self._kept.clear()
        self._step, share = step, self.share
        self._left = len(share)
        self._clear()
        for index in share:
            self._sow(index)
            yield index
            gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                         for parameter in self._parameters]
            if self._integers is not None and self._integers.ready:
                self._integers.add(gradients)
            else:
                self._kept.append(gradients)
            self._clear()
            self._left = share.stop - 1 - index

    def reduce(self) -> bool:
        """Replace ``.grad`` of parameters by the mean over all microbatches; return False if the step is skipped.

        ``.grad`` of a skipped step is None. Afterwards, random numbers are equal on all ranks.
        """
        if self._left is None:
            raise ValueError("Microbatches of a step must be taken before reduce(): none has been since the last one")
        if self._left:
            raise ValueError(f"Microbatches of a step must all have been taken before reduce(), not all but "
                             f"{self._left}")
        means = [torch.empty_like(parameter) for parameter in self._parameters]
        done = True
        if self._integers is not None and self._integers.ready:
            done = self._integers.reduce(self.reducer, means, self._count)
        else:
            fields, special = self.reducer.reduce(self._kept, addends=self._count, into=means, divisor=self._count)
            if self._integers is not None:
                self._integers.begin(fields)
                done = not special
        self._kept.clear()
        for parameter, mean in zip(self._parameters, means, strict=True):
            parameter.grad = mean if done else None
        self.skipped += not done
        self._sow(self._count)
        self._left = None
        return done

    def _check(self) -> None:
        """Raise ValueError for modules with statistics of the microbatches that a rank happens to have."""
        for name, module in self._model.named_modules():
            if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.training and (
                    module.track_running_stats or isinstance(module, torch.nn.SyncBatchNorm)):
                raise ValueError(f"Running statistics of {name} ({type(module).__name__}) depend on the microbatches "
                                 f"of a rank: use track_running_stats=False, another normalization, or eval()")

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _sow(self, index: int) -> None:
        """Seed the random numbers of a microbatch."""
        text = f"{self._seed} {self._step} {index}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))
