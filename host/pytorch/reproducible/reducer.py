"""Reproducible sums of tensors over the ranks of a process group, each checked by a checksum.

A sum takes three collectives: the largest exponents (a byte for each group of 32 elements), the sum of integers with
the checksums of blocks, and the largest verdict of all ranks. A fourth one precedes the sum if an addend contains an
infinity or a NaN. Blocks with a wrong checksum are summed once more.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import GROUP
from host.pytorch.reproducible.collectives import Ranks
from host.pytorch.reproducible.layout import Layout, check_tensors

__all__ = ["BLOCK", "Counts", "Reducer"]

#: Elements of a block, which has a checksum, and is small enough for a cache.
BLOCK = 2 ** 17
#: Words that follow a block's words: two checksums in halves, and a digest of its exponents.
_PROOF = 5
#: Modulus of the digest of exponents, so that no flipped bit is a multiple of it.
_PRIME = 65_521

_Vectors = Sequence[torch.Tensor]


@dataclasses.dataclass
class Counts:
    """Counts of what a :class:`Reducer` has done: sums, sums with an infinity or a NaN, and blocks summed twice."""

    sums: int = 0
    special: int = 0
    retried: int = 0


class Reducer:
    """Sum tensors over ranks, with bits that depend on neither order, topology nor the division into buckets.

    Parameters
    ----------
    width : int
        Bits of each sum, from 4 to 32. Sums of at most 16 bits are sent two in a word.
    group : ProcessGroup or None
        By default the group of all ranks.

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self, *, width: int = 32, group: object = None) -> None:
        arithmetic.addend_bits(width, 1)
        self.width, self.ranks = width, Ranks(group)
        self.counts = Counts()
        self._memories: dict[str, tuple[object, torch.Tensor]] = {}

    def all_reduce(self, tensors: torch.Tensor | Sequence[torch.Tensor], *, average: bool = False) -> None:
        """Replace tensors by their sums over all ranks, or by these divided by the number of ranks.

        Each tensor begins a group of 32 elements, so that tensors may be distributed among calls in any way.

        Raises
        ------
        ValueError
            If tensors are not binary32 on one device, or the device flushes subnormal numbers to zero.
        RuntimeError
            If the checksum of a block is wrong twice.
        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        self.reduce([tensors], addends=self.ranks.size, into=tensors, divisor=self.ranks.size if average else 1)

    def reduce(self, contributions: Sequence[Sequence[torch.Tensor]], *, addends: int,
               into: Sequence[torch.Tensor], divisor: int = 1) -> tuple[torch.Tensor, bool]:
        """Sum several addends of each rank into tensors, and divide the sum.

        Returns the exponent fields of all groups, and whether any addend contains an infinity or a NaN.

        Parameters
        ----------
        contributions : sequence of sequences of Tensor
            For each addend of this rank, tensors with the shapes of ``into``. There may be none.
        addends : int
            Number of addends of all ranks together.
        into : sequence of Tensor
            Tensors that the sums replace.
        divisor : int
            Number by which each sum is divided, after it has been rounded to binary32.
        """
        layout = Layout(into)
        bits = arithmetic.addend_bits(self.width, addends)
        arithmetic.check_subnormals(layout.device)
        vectors = [self._vector(layout, tensors, index) for index, tensors in enumerate(contributions)]
        fields, special = self._agree(vectors, layout)
        if not layout.length:
            return fields, special
        flags = self._flags(vectors, layout) if special else None
        if special:
            vectors = [arithmetic.finite(vector) for vector in vectors]
        total = layout.direct(into)
        result = torch.empty(layout.length, device=layout.device) if total is None else total
        self.sum_integers(functools.partial(_quantized, vectors, bits), fields, bits, layout, result)
        if flags:
            result.copy_(arithmetic.special_values(*flags, result))
        if divisor != 1:
            result /= divisor
        if total is None:
            layout.scatter(result, into)
        return fields, special

    def sum_integers(self, integers: Callable[[int, torch.Tensor], torch.Tensor], fields: torch.Tensor, bits: int,
                     layout: Layout, result: torch.Tensor) -> None:
        """Sum integers of all ranks, and write the sums as binary32; sum blocks with wrong checksums again.

        Parameters
        ----------
        integers : function
            Sum of this rank's integers in a block, from the number of the block and its fields; int32.
        fields : Tensor
            Fields of all groups, equal on all ranks.
        bits : int
            Bits of each addend.
        layout : Layout
        result : Tensor
            Vector for the sums; it is written when all blocks have been found right.

        Raises
        ------
        RuntimeError
            If the checksum of a block is wrong twice.
        """
        terms = _Sum(integers, fields, bits, self.width)
        words = self._memory("words", terms.words, torch.int32, layout)
        wrong = self._exchange(terms, range(terms.blocks), words)
        if wrong:
            self.counts.retried += len(wrong)
            self._repeat(terms, wrong, words)
        for block, part in enumerate(result.split(BLOCK)):
            part.copy_(terms.finish(words, block))
        self.counts.sums += 1

    def _vector(self, layout: Layout, tensors: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        """Tensors as one vector of whole groups."""
        check_tensors(tensors)
        vector = layout.direct(tensors)
        if vector is None:
            vector = self._memory(f"vector {index}", layout.length, torch.float32, layout)
            layout.gather(tensors, vector)
        return vector

    def _memory(self, use: str, length: int, dtype: torch.dtype, layout: Layout) -> torch.Tensor:
        """Memory for one use, which later sums of the same layout use again; zeros at first."""
        key, memory = self._memories.get(use, (None, None))
        if memory is None or key != layout.key:
            memory = torch.zeros(length, dtype=dtype, device=layout.device)
            self._memories[use] = layout.key, memory
        return memory

    def _agree(self, vectors: _Vectors, layout: Layout) -> tuple[torch.Tensor, bool]:
        """Fields of all groups, and whether any element is an infinity or a NaN."""
        fields = torch.ones(layout.length // GROUP + 1, dtype=torch.uint8, device=layout.device)
        for vector in vectors:
            for part, own in zip(vector.split(BLOCK), fields[:-1].split(BLOCK // GROUP), strict=True):
                measured = arithmetic.exponent_fields(part)
                if bool((measured == arithmetic.SPECIAL).any()):
                    fields[-1] = arithmetic.SPECIAL
                    measured = arithmetic.exponent_fields(arithmetic.finite(part))
                torch.maximum(own, measured, out=own)
        self.ranks.largest(fields)
        return fields[:-1], int(fields[-1]) == arithmetic.SPECIAL

    def _flags(self, vectors: _Vectors, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements of which any addend is +infinity or NaN, and elements of which any is -infinity or NaN."""
        self.counts.special += 1
        flags = torch.zeros(2, layout.length, dtype=torch.uint8, device=layout.device)
        for vector in vectors:
            nan = vector.isnan()
            flags |= torch.stack([nan | (vector == torch.inf), nan | (vector == -torch.inf)]).to(torch.uint8)
        self.ranks.largest(flags)
        positive, negative = flags.bool()
        return positive, negative

    def _repeat(self, terms: "_Sum", wrong: Sequence[int], words: torch.Tensor) -> None:
        """Sum some blocks again."""
        parts = [terms.part(words, block) for block in wrong]
        again = torch.cat(parts)
        still = self._exchange(terms, wrong, again)
        if still:
            raise RuntimeError(f"Checksums of blocks {', '.join(map(str, still))} of {terms.blocks} were wrong "
                               f"twice: look for faults of memories and links of the ranks")
        for part, new in zip(parts, again.split([len(part) for part in parts]), strict=True):
            part.copy_(new)

    def _exchange(self, terms: "_Sum", blocks: Sequence[int], words: torch.Tensor) -> list[int]:
        """Sum words of some blocks over all ranks, and return the blocks that are wrong on any rank."""
        parts = words.split([terms.size(block) for block in blocks])
        for block, part in zip(blocks, parts, strict=True):
            terms.encode(block, part)
        self.ranks.sum(words)
        verdicts = torch.stack([terms.is_wrong(block, part, self.ranks.size)
                                for block, part in zip(blocks, parts, strict=True)]).to(torch.int32)
        self.ranks.largest(verdicts)
        return [block for block, wrong in zip(blocks, verdicts.tolist(), strict=True) if wrong]


def _quantized(vectors: _Vectors, bits: int, block: int, fields: torch.Tensor) -> torch.Tensor:
    """Sum of the integers of several addends in a block."""
    first, length = block * BLOCK, len(fields) * GROUP
    parts = [arithmetic.quantize(vector[first:first + length], fields, bits) for vector in vectors]
    total = parts[0] if parts else torch.zeros(length, dtype=torch.int32, device=fields.device)
    for part in parts[1:]:
        total += part
    return total


class _Sum:
    """The words of a sum: for each block, the integers of this rank's addends, and their proof."""

    def __init__(self, integers: Callable[[int, torch.Tensor], torch.Tensor], fields: torch.Tensor, bits: int,
                 width: int) -> None:
        self._integers, self._fields = integers, fields.split(BLOCK // GROUP)
        self._bits, self._width = bits, width
        self.blocks = len(self._fields)
        self.words = sum(self.size(block) for block in range(self.blocks))

    def size(self, block: int) -> int:
        """Words of a block with its proof."""
        integers = len(self._fields[block]) * GROUP
        return (integers // 2 if self._width <= arithmetic.PACKED_WIDTH else integers) + _PROOF

    def part(self, words: torch.Tensor, block: int) -> torch.Tensor:
        """Words of a block among the words of all blocks."""
        first = block * self.size(0)
        return words[first:first + self.size(block)]

    def encode(self, block: int, part: torch.Tensor) -> None:
        """Write the words of a block."""
        fields = self._fields[block]
        words = arithmetic.pack(self._integers(block, fields), self._width)
        part[:-_PROOF] = words
        sums = arithmetic.checksum(words)
        part[-_PROOF:-1] = torch.stack([sums & 0xFFFF, sums >> 16]).view(-1)
        part[-1:] = self._digest(fields)

    def is_wrong(self, block: int, part: torch.Tensor, ranks: int) -> torch.Tensor:
        """Whether a block's sum differs from the sum of its checksums, or ranks differ in exponents."""
        sums = part[-_PROOF:-1].to(torch.int64).view(2, 2)
        expected = (sums[0] + (sums[1] << 16)) & 0xFFFF_FFFF
        digest = self._digest(self._fields[block]) * ranks
        return (arithmetic.checksum(part[:-_PROOF]) != expected).any() | (part[-1:] != digest).any()

    def finish(self, words: torch.Tensor, block: int) -> torch.Tensor:
        """Sums of a block as binary32."""
        integers = arithmetic.unpack(self.part(words, block)[:-_PROOF], self._width)
        return arithmetic.round_sum(integers, self._fields[block], self._bits)

    @staticmethod
    def _digest(fields: torch.Tensor) -> torch.Tensor:
        """Digest of the exponents of a block, shape (1,)."""
        weights = torch.arange(1, len(fields) + 1, device=fields.device)
        return ((fields.to(torch.int64) * weights).sum() % _PRIME).to(torch.int32)[None]

