"""Words that a rank adds to a sum: integers in blocks, and the checksums that verify the sum of each block."""

import itertools
from collections.abc import Iterable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import BLOCK, GROUP, PACKED_WIDTH
from host.pytorch.reproducible.blocks import Memory, blocks_of

__all__ = ["Terms"]

#: Maximum number of blocks in a chunk. Each chunk is encoded while the previous chunk is being summed.
_CHUNK = 64
#: Words of a block's checksums: two checksums in halves of 16 bits, so that sums over ranks do not overflow.
_PROOF = 4
#: Number of words at the end of a chunk, after the checksums: the number of addends, and a digest of the exponents.
_END = 2


class Terms:
    """The share of one rank in a sum, as words.

    Blocks are sent in chunks. The words of a chunk are the words of each block, then the checksums of all blocks, the
    number of the rank's addends, and a digest of the exponents.

    Parameters
    ----------
    fields : Tensor
        Exponent fields of all groups, the same on all ranks. There is at least one group.
    bits : int
        Number of bits of each addend.
    width : int
        Number of bits of a sum. With at most 16 bits, a word holds two sums.
    addends : sequence of Tensor
        This rank's addends: finite elements as binary32, or integers as int32.
    count : int
        Number of this rank's addends. It is larger than the number of tensors if integers are sums of several
        addends.
    memory : Memory
        Function that returns an int32 vector of a given length, for use during the sum.
    """

    def __init__(self, fields: torch.Tensor, bits: int, width: int, addends: Sequence[torch.Tensor], *,
                 count: int, memory: Memory) -> None:
        self._bits, self._width, self._addends, self._count = bits, width, addends, count
        self._memory = memory
        self._parts = [addend.split(BLOCK) for addend in addends]
        self._blocks = blocks_of(fields.device)(fields, bits, width, memory)
        self._digest = arithmetic.digest(fields)
        words = GROUP // 2 if width <= PACKED_WIDTH else GROUP
        self._lengths = [len(part) * words for part in fields.split(BLOCK // GROUP)]
        self.blocks = range(len(self._lengths))

    def with_fields(self, fields: torch.Tensor) -> "Terms":
        """Return the same terms with different exponents."""
        return Terms(fields, self._bits, self._width, self._addends, count=self._count, memory=self._memory)

    def _sizes(self, blocks: Iterable[int]) -> list[int]:
        return [self._lengths[block] for block in blocks]

    @staticmethod
    def chunks(blocks: Sequence[int]) -> list[Sequence[int]]:
        """Divide blocks into chunks, with numbers of blocks that differ by at most one."""
        count = -(-len(blocks) // _CHUNK)
        ends = [index * len(blocks) // count for index in range(count + 1)]
        return [blocks[first:end] for first, end in itertools.pairwise(ends)]

    def size(self, chunk: Sequence[int]) -> int:
        """Return the number of words of a chunk."""
        return sum(self._sizes(chunk)) + _PROOF * len(chunk) + _END

    def split(self, words: torch.Tensor, chunk: Sequence[int]) -> list[torch.Tensor]:
        """Return views of the words of each block of a chunk."""
        return list(words[:-_PROOF * len(chunk) - _END].split(self._sizes(chunk)))

    def encode(self, chunk: Sequence[int], parts: Sequence[torch.Tensor], words: torch.Tensor) -> None:
        """Write the words of a chunk: blocks, checksums, number of addends, and digest."""
        addends = [[split[block] for split in self._parts] for block in chunk]
        proof = self._blocks.encode(chunk, addends, parts)
        words[-_PROOF * len(parts) - _END:-_END] = torch.cat([proof & 0xFFFF, proof >> 16], 1).view(-1)
        words[-2] = self._count
        words[-1] = self._digest

    @staticmethod
    def count_of(words: torch.Tensor) -> int:
        """Return the total number of addends on all ranks, from the summed words of a chunk."""
        return int(words[-2])

    def verdicts(self, parts: Sequence[torch.Tensor], words: torch.Tensor, ranks: int) -> torch.Tensor:
        """Return for each block 1 if its sum does not match its checksums or ranks differ in exponents, or 0."""
        low, high = words[-_PROOF * len(parts) - _END:-_END].view(-1, 2, 2).to(torch.int64).unbind(1)
        expected = (low + (high << 16)) & 0xFFFF_FFFF
        actual = self._blocks.checksums(parts)
        wrong = (actual != expected).any(1) | (words[-1] != self._digest * ranks)
        return wrong.to(torch.int32)

    def finish(self, parts: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """Convert the words of all blocks to sums in binary32, and write them to ``result``."""
        self._blocks.finish(parts, result.split(BLOCK))
