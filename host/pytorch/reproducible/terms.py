"""Words of a sum: the integers of a rank's addends in blocks, and the checksums that prove the sum."""

import itertools
from collections.abc import Iterable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import GROUP, PACKED_WIDTH

__all__ = ["BLOCK", "Terms", "memory_size"]

#: Elements of a block, which has a checksum, and is small enough for a cache.
BLOCK = 2 ** 17
#: Most blocks in a chunk: those of a chunk are encoded while the sum of the chunk before is under way.
_CHUNK = 64
#: Words of a block's proof: two checksums in halves of 16 bits, so that sums over ranks do not overflow.
_PROOF = 4
#: Words that follow the proofs of a chunk: the number of addends and the digest.
_END = 2


def _memories(groups: int) -> list[int]:
    return [groups, groups, min(BLOCK, groups * GROUP)]


def memory_size(groups: int) -> int:
    """Number of int32 that the terms of a sum use beside its words."""
    return sum(_memories(groups))


class Terms:
    """Terms of a sum that one rank contributes.

    The words of a chunk of blocks are those of each block, then the proofs of all, the number of the rank's addends,
    and the digest of the exponents.

    Parameters
    ----------
    fields : Tensor
        Exponent fields of all groups, equal on all ranks; at least one.
    bits : int
        Bits of each addend.
    width : int
        Bits of a sum. With at most 16, a word holds two.
    addends : sequence of Tensor
        This rank's addends: finite elements as binary32, or integers as int32.
    count : int
        Number of this rank's addends; integers may be sums of several.
    memory : Tensor
        A vector of :func:`memory_size` int32, which the terms use.
    """

    def __init__(self, fields: torch.Tensor, bits: int, width: int, addends: Sequence[torch.Tensor], *,
                 count: int, memory: torch.Tensor) -> None:
        self._bits, self._width, self._addends, self._count = bits, width, addends, count
        self._packed = width <= PACKED_WIDTH
        self._memory = memory
        up, down, scratch = memory.split(_memories(len(fields)))
        self._up = arithmetic.quantizing_scales(fields, bits, BLOCK // GROUP, up)
        # Integers that are unpacked are 2**16 times as large.
        self._down = arithmetic.rounding_scales(fields, bits + 16 * self._packed, BLOCK // GROUP, down)
        self._scratch = scratch.view(torch.float32)
        self._parts = [addend.split(BLOCK) for addend in addends]
        self._offsets = arithmetic.offsets(fields.device)
        self._digest = arithmetic.digest(fields)
        self.blocks = range(len(self._up))

    def with_fields(self, fields: torch.Tensor) -> "Terms":
        """The same terms with other exponents."""
        return Terms(fields, self._bits, self._width, self._addends, count=self._count, memory=self._memory)

    def _sizes(self, blocks: Iterable[int]) -> list[int]:
        elements = [len(self._up[block][0]) * GROUP for block in blocks]
        return [count // 2 if self._packed else count for count in elements]

    @staticmethod
    def chunks(blocks: Sequence[int]) -> list[Sequence[int]]:
        """Blocks of each chunk; the lengths of chunks differ by at most one."""
        count = -(-len(blocks) // _CHUNK)
        ends = [index * len(blocks) // count for index in range(count + 1)]
        return [blocks[first:end] for first, end in itertools.pairwise(ends)]

    def size(self, chunk: Sequence[int]) -> int:
        """Number of words of a chunk."""
        return sum(self._sizes(chunk)) + _PROOF * len(chunk) + _END

    def split(self, words: torch.Tensor, chunk: Sequence[int]) -> list[torch.Tensor]:
        """Words of each block of a chunk."""
        return list(words[:-_PROOF * len(chunk) - _END].split(self._sizes(chunk)))

    def encode(self, chunk: Sequence[int], parts: Sequence[torch.Tensor], words: torch.Tensor) -> None:
        """Write the words of a chunk."""
        sums = []
        for block, part in zip(chunk, parts, strict=True):
            self._encode(block, part)
            sums.append(arithmetic.partial_sums(part))
        proof = arithmetic.checksums(sums)
        words[-_PROOF * len(parts) - _END:-_END] = torch.cat([proof & 0xFFFF, proof >> 16], 1).view(-1)
        words[-2] = self._count
        words[-1] = self._digest

    @staticmethod
    def count_of(words: torch.Tensor) -> int:
        """Number of addends of all ranks, from the sum of their words of a chunk."""
        return int(words[-2])

    def _encode(self, block: int, part: torch.Tensor) -> None:
        if not self._parts:
            part.zero_()
        for number, parts in enumerate(self._parts):
            addend = parts[block]
            if self._packed:
                arithmetic.pack(self._halves(block, addend), part, add=number > 0)
            elif addend.dtype == torch.int32:
                part.copy_(part + addend if number else addend)
            elif number:
                part += self._integers(block, addend, self._scratch[:len(addend)])
            else:
                self._integers(block, addend, part.view(torch.float32))

    def _halves(self, block: int, addend: torch.Tensor) -> arithmetic.Halves:
        if addend.dtype == torch.int32:
            low, high = addend.view(2, -1)
            return low, high
        return arithmetic.quantize_halves(addend, self._up[block], self._bits, self._offsets,
                                          self._scratch[:len(addend)])

    def _integers(self, block: int, addend: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Integers of an addend, as int32 in the memory of as many binary32."""
        quantized = arithmetic.quantize(addend, self._up[block], self._bits, memory)
        return memory.view(torch.int32).copy_(quantized)

    def verdicts(self, parts: Sequence[torch.Tensor], words: torch.Tensor, ranks: int) -> torch.Tensor:
        """For each block, 1 if its sum differs from the sum of its checksums or ranks differ in exponents, else 0."""
        low, high = words[-_PROOF * len(parts) - _END:-_END].view(-1, 2, 2).to(torch.int64).unbind(1)
        expected = (low + (high << 16)) & 0xFFFF_FFFF
        actual = arithmetic.checksums([arithmetic.partial_sums(part) for part in parts])
        wrong = (actual != expected).any(1) | (words[-1] != self._digest * ranks)
        return wrong.to(torch.int32)

    def finish(self, block: int, part: torch.Tensor, result: torch.Tensor) -> None:
        """Write the sums of a block as binary32."""
        scratch = self._scratch[:len(result)]
        integers = arithmetic.unpack(part, scratch.view(torch.int32)) if self._packed else part
        arithmetic.round_sum(integers, self._down[block], result, scratch)
