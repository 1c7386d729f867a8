"""Words of a sum: the integers of a rank's addends in blocks, and the checksums that prove the sum."""

from collections.abc import Callable, Iterable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import GROUP, PACKED_WIDTH, Scales

__all__ = ["BLOCK", "Terms"]

#: Elements of a block, which has a checksum, and is small enough for a cache.
BLOCK = 2 ** 17
#: Words of a block's proof: two checksums in halves of 16 bits, so that sums over ranks do not overflow.
_PROOF = 4
#: Words that follow all proofs: the number of addends and the digest.
_END = 2
#: Modulus of the digest of exponents; no flipped bit is a multiple of it.
_PRIME = 65_521


class Terms:
    """Terms of a sum that one rank contributes.

    The words are those of all blocks, then the proofs of all blocks, the number of the rank's addends, and the digest
    of the exponents.

    Parameters
    ----------
    fields : Tensor
        Exponent fields of all groups, equal on all ranks; at least one.
    bits : int
        Bits of each addend.
    width : int
        Bits of a sum. With at most 16, a word holds two.
    integers : function
        Integers of each of this rank's addends, from the number of a block and the factors of its groups.
    count : int
        Number of this rank's addends.
    """

    def __init__(self, fields: torch.Tensor, bits: int, width: int,
                 integers: Callable[[int, Scales], Iterable[torch.Tensor]], *, count: int) -> None:
        self._bits, self._width, self._integers, self._count = bits, width, integers, count
        self._packed = width <= PACKED_WIDTH
        self._up = _blocks(arithmetic.quantizing_scales(fields, bits))
        self._down = _blocks(arithmetic.rounding_scales(fields, bits))
        weights = torch.arange(1, len(fields) + 1, device=fields.device)
        self._digest = ((fields * weights).sum() % _PRIME).to(torch.int32)
        self.words = self.size(range(len(self._up)))

    def with_fields(self, fields: torch.Tensor) -> "Terms":
        """The same terms with other exponents."""
        return Terms(fields, self._bits, self._width, self._integers, count=self._count)

    def _sizes(self, blocks: Iterable[int]) -> list[int]:
        elements = [len(self._up[block][0]) * GROUP for block in blocks]
        return [count // 2 if self._packed else count for count in elements]

    def size(self, blocks: Sequence[int]) -> int:
        """Number of words of some blocks, with their proofs and the last words."""
        return sum(self._sizes(blocks)) + _PROOF * len(blocks) + _END

    def split(self, words: torch.Tensor, blocks: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Words of each of some blocks, by default of all."""
        blocks = range(len(self._up)) if blocks is None else blocks
        return list(words[:-_PROOF * len(blocks) - _END].split(self._sizes(blocks)))

    def encode(self, blocks: Sequence[int], parts: Sequence[torch.Tensor], words: torch.Tensor) -> None:
        """Write the words of some blocks, and their proofs."""
        sums = []
        for block, part in zip(blocks, parts, strict=True):
            self._encode(block, part)
            sums.append(arithmetic.partial_sums(part))
        proof = arithmetic.checksums(sums)
        words[-_PROOF * len(parts) - _END:-_END] = torch.cat([proof & 0xFFFF, proof >> 16], 1).view(-1)
        words[-2] = self._count
        words[-1] = self._digest

    @staticmethod
    def count_of(words: torch.Tensor) -> int:
        """Number of addends of all ranks, from the sum of their words."""
        return int(words[-2])

    def _encode(self, block: int, part: torch.Tensor) -> None:
        target = part.new_empty(2 * len(part)) if self._packed else part
        empty = True
        for integers in self._integers(block, self._up[block]):
            if empty:
                target.copy_(integers)
            else:
                target += integers.to(torch.int32)
            empty = False
        if empty:
            target.zero_()
        if self._packed:
            arithmetic.pack(target, part)

    def verdicts(self, parts: Sequence[torch.Tensor], words: torch.Tensor, ranks: int) -> torch.Tensor:
        """For each block, 1 if its sum differs from the sum of its checksums or ranks differ in exponents, else 0."""
        low, high = words[-_PROOF * len(parts) - _END:-_END].view(-1, 2, 2).to(torch.int64).unbind(1)
        expected = (low + (high << 16)) & 0xFFFF_FFFF
        actual = arithmetic.checksums([arithmetic.partial_sums(part) for part in parts])
        wrong = (actual != expected).any(1) | (words[-1] != self._digest * ranks)
        return wrong.to(torch.int32)

    def finish(self, block: int, part: torch.Tensor, result: torch.Tensor) -> None:
        """Write the sums of a block as binary32."""
        integers = arithmetic.unpack(part) if self._packed else part
        arithmetic.round_sum(integers, self._down[block], result)


def _blocks(factors: Scales) -> list[Scales]:
    """Factors of each block."""
    first, second = (factor.split(BLOCK // GROUP) for factor in factors)
    return list(zip(first, second, strict=True))
