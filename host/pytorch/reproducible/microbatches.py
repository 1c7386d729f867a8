"""Training with bits that do not depend on the number of ranks: the gradient of each microbatch is an addend."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from host.pytorch.reproducible import arithmetic, model_state
from host.pytorch.reproducible.accumulator import Accumulator
from host.pytorch.reproducible.arithmetic import checked_integer
from host.pytorch.reproducible.collectives import signature
from host.pytorch.reproducible.layout import Layout
from host.pytorch.reproducible.reducer import Reducer

__all__ = ["Microbatches"]


class Microbatches:
    """Distribute the microbatches of each step among ranks, and average their gradients::

        batches = Microbatches(model, count=16)
        for step in range(steps):
            for index in batches(step):                  # this rank's share of the 16
                loss(model, *data(step, index)).backward()
            batches.reduce()                             # .grad is the mean of all 16
            optimizer.step()

    Each microbatch has its own random seed, and its gradient is a separate addend. Weights therefore have the same
    bits for any number of ranks. A rank may also have no microbatches. Without ``torch.distributed``, one process
    does all the work. All ranks must start with equal weights.

    Parameters
    ----------
    model : torch.nn.Module
        Model without ``DistributedDataParallel``, which would sum gradients itself.
    count : int
        Total number of microbatches per step on all ranks.
    seed : int
        Seed. The random numbers of a microbatch depend on it, on the step and on the microbatch's index.
    headroom : int or None
        If None, the gradients of this rank's microbatches are kept until the step ends. Otherwise they are added as
        integers immediately, with exponents that are ``headroom`` above the largest exponents of the previous step
        and fall by at most one per step. A step is skipped if a gradient is too large for its exponent, or if the sum
        is not finite.
    width, group
        Arguments of the :class:`~host.pytorch.reproducible.reducer.Reducer`.

    Attributes
    ----------
    reducer : Reducer
    skipped : int
        Number of steps that were skipped.
    """

    def __init__(self, model: torch.nn.Module, count: int, *, seed: int = 0, headroom: int | None = None,
                 width: int = 32, group: object = None) -> None:
        model_state.check_modules(model)
        if headroom is not None:
            headroom = checked_integer("Headroom, unless it is None,", headroom, 0, 16)
        self.reducer = Reducer(width=width, group=group)
        self._count = checked_integer("Number of microbatches", count, 1, 2 ** (self.reducer.width - 2))
        bits = arithmetic.addend_bits(self.reducer.width, self._count)
        self._model, self._seed, self._headroom = model, seed, headroom
        self._parameters = model_state.trainable(model)
        self._layout = Layout(self._parameters)
        self._integers = None if headroom is None else Accumulator(self._layout, headroom, bits)
        # Vectors of kept gradients, which later steps reuse, and the number of vectors in use.
        self._vectors: list[torch.Tensor] = []
        self._kept = 0
        self._present = torch.zeros(len(self._parameters), dtype=torch.uint8, device=self._layout.device)
        self._initial: str | None = None  # digest of weights and buffers before the first step
        self._before: model_state.Versions | None = None
        self._step = 0
        # Number of this rank's microbatches that the step has not yet processed; None between steps.
        self._left: int | None = None
        self.skipped = 0

    @property
    def share(self) -> range:
        """Microbatches of this rank. The numbers of microbatches of the ranks differ by at most 1."""
        rank, size = self.reducer.ranks.rank, self.reducer.ranks.size
        return range(rank * self._count // size, (rank + 1) * self._count // size)

    @property
    def _running(self) -> Accumulator | None:
        """The accumulator, once a step has determined its exponents; None while gradients are kept."""
        return None if self._integers is None or self._integers.fields is None else self._integers

    def __call__(self, step: int) -> Iterator[int]:
        """Yield this rank's microbatches of a step; after each, take the gradients that it has added to the
        parameters.

        Raises ValueError if parameters have been replaced, or if a module's results depend on the distribution of
        microbatches among ranks.
        """
        model_state.check_same(self._parameters, model_state.trainable(self._model))
        model_state.check_statistics(self._model)
        self._kept, self._step, share = 0, checked_integer("Step", step, 0, 2 ** 62), self.share
        self._present.zero_()
        if self._integers is not None:
            self._integers.clear()
        if self._initial is None:
            self._initial = model_state.digest(self._model)
        self._before = model_state.Versions(self._model)
        self._left = len(share)
        self._clear()
        for index in share:
            self._sow(index)
            yield index
            self._take()
            self._left = share.stop - 1 - index

    def reduce(self) -> bool:
        """Set ``.grad`` of the parameters to the mean over all microbatches; return False if the step is skipped.

        ``.grad`` is None if the step is skipped, and for a parameter without a gradient from any microbatch.
        Afterwards, all ranks draw the same random numbers.

        Raises
        ------
        ValueError
            If microbatches of the step have not been processed, ranks differ in their arguments, steps or initial
            weights, or weights or buffers have changed within the step.
        RuntimeError
            If another rank has raised such an error, or the checksum of a block is wrong twice.
        """
        self._agree()
        total = self._layout.vector()
        done = True
        if (running := self._running) is not None:
            done = running.reduce(self.reducer, total, self._count, self._present)
        else:
            fields, special = self.reducer.reduce_vectors(
                self._vectors[:self._kept], addends=self._count, layout=self._layout, result=total,
                present=self._present)
            if self._integers is not None:
                self._integers.begin(fields)
                done = not special and bool(total.isfinite().all())
        self._finish(total, done)
        return done

    def _finish(self, total: torch.Tensor, done: bool) -> None:
        """End a step: set gradients from the sum, or to None if the step is skipped."""
        means = [torch.empty_like(parameter) for parameter in self._parameters]
        total /= self._count
        self._layout.scatter(total, means)
        for parameter, mean, present in zip(self._parameters, means, self._present.tolist(), strict=True):
            parameter.grad = mean if done and present else None
        self.skipped += not done
        self._sow(self._count)
        self._kept, self._left, self._initial = 0, None, ""

    def _agree(self) -> None:
        """Raise an error on all ranks unless each has processed its microbatches of the same step."""
        problem = None
        try:
            self._check_taken()
            arithmetic.check_subnormals(self._layout.device)
        except ValueError as error:
            problem = error
        self.reducer.ranks.agree(
            signature(self._count, self.reducer.width, self._headroom, self._seed, self._step, self._layout.shapes,
                      self._running is not None, self._initial), self._layout.device,
            "Ranks must take the same step of the same model, with the same count, seed, headroom and width, and "
            "begin with equal weights", problem)()

    def _check_taken(self) -> None:
        if self._left is None or self._before is None:
            raise ValueError("Microbatches of a step must be taken before reduce(): none has been since the last one")
        if self._left:
            raise ValueError(f"Microbatches of a step must all have been taken before reduce(), not all but "
                             f"{self._left}")
        if any(parameter.grad is not None for parameter in self._parameters):
            raise ValueError("Gradients must be computed within the loop over microbatches, not after it")
        self._before.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for later steps: exponents, if there is a headroom, and the number of skipped steps."""
        fields = None if self._integers is None else self._integers.fields
        return {"fields": None if fields is None else fields.clone(), "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; raise ValueError if it does not fit the model or the headroom."""
        fields = state["fields"]
        groups = self._layout.length // arithmetic.GROUP
        if fields is not None and (self._integers is None or fields.shape != (groups,)):
            raise ValueError("State must be of microbatches of the same model, with a headroom, or without exponents")
        if self._integers is not None:
            self._integers.fields = None if fields is None else fields.to(self._layout.device).clone()
        self.skipped = int(state["skipped"])

    def _take(self) -> None:
        """Take over the gradients of a microbatch, and clear ``.grad``."""
        gradients = []
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._present[number] = 1
            gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        self._layout.check(gradients)
        if (running := self._running) is not None:
            running.add(gradients)
        else:
            if self._kept == len(self._vectors):
                self._vectors.append(self._layout.vector())
            self._layout.gather(gradients, self._vectors[self._kept])
            self._kept += 1
        self._clear()

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _sow(self, index: int) -> None:
        """Seed PyTorch's random number generators for a microbatch."""
        text = f"{self._seed} {self._step} {index}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))
