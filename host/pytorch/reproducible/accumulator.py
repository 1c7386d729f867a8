"""Accumulation of gradients in integers, whose exponents the previous step has determined."""

from collections.abc import Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import GROUP, SPECIAL
from host.pytorch.reproducible.layout import Layout
from host.pytorch.reproducible.reducer import Reducer
from host.pytorch.reproducible.terms import BLOCK, Terms

__all__ = ["Accumulator"]


class Accumulator:
    """Sum of this rank's gradients as integers of ``bits`` bits each.

    The exponent of a group is ``headroom`` bits above the largest of the previous step, and falls by at most one bit
    per step. A step in which an element is too large, an infinity or a NaN has no sum.
    """

    def __init__(self, layout: Layout, headroom: int, bits: int) -> None:
        self._layout, self._headroom, self._bits = layout, headroom, bits
        groups = layout.length // GROUP
        self._fields: torch.Tensor | None = None
        self._measured = torch.ones(groups, dtype=torch.uint8, device=layout.device)
        self._vector = torch.zeros(layout.length, device=layout.device)
        self._total = torch.zeros(layout.length, dtype=torch.int32, device=layout.device)

    @property
    def ready(self) -> bool:
        """Whether a step has determined exponents."""
        return self._fields is not None

    def begin(self, measured: torch.Tensor) -> None:
        """Prepare for the next step, from the exponent fields that all ranks have agreed on in this one."""
        fields = (measured.to(torch.int32) + self._headroom).clamp_(max=SPECIAL - 1)
        if self._fields is not None:
            fields = torch.maximum(fields, self._fields.to(torch.int32) - 1)
        self._fields = fields.to(torch.uint8)
        self.clear()

    def clear(self) -> None:
        """Forget all gradients of a step."""
        self._measured.fill_(1)
        self._total.zero_()

    def add(self, gradients: Sequence[torch.Tensor]) -> None:
        """Add the integers of a microbatch's gradients."""
        assert self._fields is not None
        self._layout.gather(gradients, self._vector)
        parts = self._vector.split(BLOCK)
        for part, measured in zip(parts, self._measured.split(BLOCK // GROUP), strict=True):
            torch.maximum(measured, arithmetic.exponent_fields(part), out=measured)
        if bool((self._measured > self._fields).any()):
            return  # The step has no sum: an element is too large, or special.
        for part, fields, total in zip(parts, self._fields.split(BLOCK // GROUP), self._total.split(BLOCK),
                                       strict=True):
            factors = arithmetic.quantizing_scales(fields, self._bits)
            total += arithmetic.quantize(part, factors, self._bits).to(torch.int32)

    def reduce(self, reducer: Reducer, means: Sequence[torch.Tensor], count: int) -> bool:
        """Write the means of ``count`` microbatches of all ranks into tensors; return False if there is no sum."""
        assert self._fields is not None
        fields = self._fields
        reducer.ranks.largest(self._measured)
        done = not bool((self._measured > fields).any())
        if done:
            totals = self._total.split(BLOCK)
            terms = Terms(fields, self._bits, reducer.width, lambda block, _: [totals[block]])
            reducer.sum(terms, self._vector, self._layout)
            self._vector /= count
            self._layout.scatter(self._vector, means)
        # The largest finite element of a group with an infinity is unknown.
        usual = (fields.to(torch.int32) - self._headroom).clamp_(min=1).to(torch.uint8)
        self.begin(torch.where(self._measured == SPECIAL, usual, self._measured))
        return done
