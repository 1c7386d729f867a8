"""Accumulate gradients as integers, with exponents that the previous step has determined."""

from collections.abc import Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import BLOCK, GROUP, SPECIAL
from host.pytorch.reproducible.layout import Layout, zeros
from host.pytorch.reproducible.reducer import Reducer
from host.pytorch.reproducible.terms import Terms

__all__ = ["Accumulator"]


class Accumulator:
    """Sum of this rank's gradients, which are converted to integers of ``bits`` bits each.

    The exponent of a group of elements is ``headroom`` above the group's largest exponent in the previous step, and
    falls by at most one per step. A step has no sum if an element is too large, an infinity or a NaN.

    Attributes
    ----------
    fields : Tensor or None
        Exponent fields of all groups for the next step; None until a step has determined them.
    """

    def __init__(self, layout: Layout, headroom: int, bits: int) -> None:
        self._layout, self._headroom, self._bits = layout, headroom, bits
        self.fields: torch.Tensor | None = None
        self._added = 0
        self._measured = torch.ones(layout.length // GROUP, dtype=torch.uint8, device=layout.device)
        self._vector, self._total = layout.vector(), layout.vector(torch.int32)
        self._scratch = zeros(min(BLOCK, layout.length), torch.float32, layout.device)
        self._factors = torch.empty_like(self._measured, dtype=torch.int32)

    def begin(self, measured: torch.Tensor) -> None:
        """Set the exponents of the next step from this step's exponent fields, the maxima over all ranks."""
        fields = (measured.to(torch.int32) + self._headroom).clamp_(max=SPECIAL - 1)
        if self.fields is not None:
            fields = torch.maximum(fields, self.fields.to(torch.int32) - 1)
        self.fields = fields.to(torch.uint8)

    def clear(self) -> None:
        """Discard all gradients of a step."""
        self._added = 0
        self._measured.fill_(1)
        self._total.zero_()

    def add(self, gradients: Sequence[torch.Tensor]) -> None:
        """Convert the gradients of a microbatch to integers and add them."""
        assert self.fields is not None
        self._added += 1
        self._layout.gather(gradients, self._vector)
        parts = self._vector.split(BLOCK)
        for part, measured in zip(parts, self._measured.split(BLOCK // GROUP), strict=True):
            torch.maximum(measured, arithmetic.exponent_fields(part), out=measured)
        if bool((self._measured > self.fields).any()):
            return  # The step has no sum: an element is too large, an infinity or a NaN.
        scales = arithmetic.quantizing_scales(self.fields, self._bits, BLOCK // GROUP, self._factors)
        for part, factors, total in zip(parts, scales, self._total.split(BLOCK), strict=True):
            total += arithmetic.quantize(part, factors, self._bits, self._scratch[:len(part)]).to(torch.int32)

    def reduce(self, reducer: Reducer, result: torch.Tensor, addends: int, present: torch.Tensor) -> bool:
        """Write the sum of all ranks' gradients into a vector; return False if the step has no sum.

        The bytes in ``present`` are replaced by their maxima over all ranks.
        """
        assert self.fields is not None
        fields, groups = self.fields, len(self._measured)
        most = torch.cat([self._measured, present])
        reducer.ranks.largest(most)
        measured = most[:groups]
        present.copy_(most[groups:])
        done = not bool((measured > fields).any())
        if done:
            terms = Terms(fields, self._bits, reducer.width, [self._total], count=self._added,
                          memory=reducer.memory(self._layout))
            reducer.sum(terms, addends, result, self._layout)
            done = bool(result.isfinite().all())
        # Groups with an infinity or a NaN keep their exponents, since their largest finite elements are unknown.
        usual = (fields.to(torch.int32) - self._headroom).clamp_(min=1).to(torch.uint8)
        self.begin(torch.where(measured == SPECIAL, usual, measured))
        return done
