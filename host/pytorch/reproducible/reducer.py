"""Reproducible sums of tensors over the ranks of a process group, verified by checksums.

A sum takes four collectives. The first compares the arguments of all ranks (17 bytes), while each rank determines its
exponents. The second finds the largest exponents (one byte per group of 32 elements). The third sums the integers and
the checksums of blocks. The fourth tells all ranks which blocks are wrong on any rank. The third is split into a
collective for each chunk of up to 64 blocks, so that a chunk is encoded while other chunks are summed. Another
collective precedes it if an addend contains an infinity or a NaN. Blocks with a wrong checksum are summed once more.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import GROUP, SPECIAL, checked_integer
from host.pytorch.reproducible.blocks import Memory, blocks_of
from host.pytorch.reproducible.collectives import Ranks, signature
from host.pytorch.reproducible.layout import Layout, zeros
from host.pytorch.reproducible.terms import Terms

__all__ = ["Counts", "Reducer"]

_Vectors = Sequence[torch.Tensor]

#: Number of words in a cache line. The words of each chunk start at a cache line.
_LINE = 16


@dataclasses.dataclass
class Counts:
    """Counters of a :class:`Reducer`: sums, sums with an infinity or a NaN, and blocks that were summed twice."""

    sums: int = 0
    special: int = 0
    retried: int = 0


class Reducer:
    """Sum tensors over ranks, with bits that do not depend on order, topology or the division into buckets.

    Parameters
    ----------
    width : int
        Number of bits of each sum, from 4 to 32. Two sums of at most 16 bits are sent in one word.
    group : ProcessGroup or None
        Process group; by default, the group of all ranks.

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self, *, width: int = 32, group: object = None) -> None:
        self._width = checked_integer("Width of a sum", width, 4, 32)
        self.ranks = Ranks(group)
        self.counts = Counts()
        self._memories: dict[str, tuple[object, torch.Tensor]] = {}

    @property
    def width(self) -> int:
        """Number of bits of each sum."""
        return self._width

    def all_reduce(self, tensors: torch.Tensor | Sequence[torch.Tensor], *, average: bool = False) -> None:
        """Replace tensors by their sums over all ranks or, with ``average``, by their means.

        Each tensor starts a new group of 32 elements, so results do not depend on how tensors are divided among
        calls.

        Raises
        ------
        ValueError
            If tensors are not binary32 on one device, if ranks differ in shapes or width, or if the device flushes
            subnormal numbers to zero.
        RuntimeError
            If another rank has raised such an error, or the checksum of a block is wrong twice.
        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        self.reduce([tensors], addends=self.ranks.size, into=tensors, divisor=self.ranks.size if average else 1)

    def reduce(self, contributions: Sequence[Sequence[torch.Tensor]], *, addends: int,
               into: Sequence[torch.Tensor], divisor: int = 1) -> None:
        """Sum several addends per rank into tensors, and divide the sums by ``divisor``.

        Parameters
        ----------
        contributions : sequence of sequences of Tensor
            For each addend of this rank, tensors with the shapes of ``into``. A rank may have no addends.
        addends : int
            Total number of addends on all ranks.
        into : sequence of Tensor
            Tensors that are overwritten by the sums.
        divisor : int
            Number by which each sum is divided, after it has been rounded to binary32.

        Raises
        ------
        ValueError, RuntimeError
            As in :meth:`all_reduce`, and if the total number of contributions is not ``addends``.
        """
        layout, agreed = self._agree_on(contributions, addends, into, divisor)
        if not layout.length:
            agreed()
            return
        vectors = [self._vector(layout, tensors, index) for index, tensors in enumerate(contributions)]
        direct = layout.direct(into)
        result = self._memory("result", layout.length, torch.float32, layout) if direct is None else direct
        self.reduce_vectors(vectors, addends=addends, layout=layout, result=result, agreed=agreed)
        if divisor != 1:
            result /= divisor
        if direct is None:
            layout.scatter(result, into)

    def _agree_on(self, contributions: Sequence[Sequence[torch.Tensor]], addends: int, into: Sequence[torch.Tensor],
                  divisor: int) -> tuple[Layout, Callable[[], None]]:
        """Check arguments; return the layout, and a function that raises an error if the ranks' arguments differ.

        Raises an error immediately if the arguments of this rank are invalid.
        """
        layout, problem = None, None
        try:
            arithmetic.addend_bits(self.width, addends)
            layout = Layout(into)
            for tensors in contributions:
                layout.check(tensors)
            arithmetic.check_subnormals(layout.device)
        except ValueError as error:
            problem = error
        device = next((tensor.device for tensor in into if isinstance(tensor, torch.Tensor)), torch.device("cpu"))
        agreed = self.ranks.agree(
            signature(self.width, addends, divisor, layout and layout.shapes), device,
            "Ranks must sum tensors of the same shapes, with the same width and number of addends", problem)
        if problem is not None:
            agreed()
        assert layout is not None
        return layout, agreed

    def reduce_vectors(self, vectors: _Vectors, *, addends: int, layout: Layout, result: torch.Tensor,
                       present: torch.Tensor | None = None, agreed: Callable[[], None] = lambda: None
                       ) -> tuple[torch.Tensor, bool]:
        """Sum several addends per rank into a vector. Addends are vectors in the given layout.

        The bytes in ``present`` are replaced by their maxima over all ranks. ``agreed`` is called before any result
        from other ranks is used. Returns the exponent fields of all groups, and whether any addend contains an
        infinity or a NaN.
        """
        bits = arithmetic.addend_bits(self.width, addends)
        fields, special = self._agree(vectors, layout, present, agreed)
        flags = self._flags(vectors, layout) if special else None
        if special:
            vectors = [arithmetic.finite(vector) for vector in vectors]
        terms = Terms(fields, bits, self.width, vectors, count=len(vectors), memory=self.memory(layout))
        self.sum(terms, addends, result, layout, again=lambda: self._agree(vectors, layout)[0])
        if flags:
            result.copy_(arithmetic.special_values(*flags, result))
        return fields, special

    def sum(self, terms: Terms, addends: int, result: torch.Tensor, layout: Layout,
            again: Callable[[], torch.Tensor] | None = None) -> None:
        """Sum the integers of all ranks and write the sums as binary32. Blocks with wrong checksums are summed again.

        Parameters
        ----------
        terms : Terms
            Integers that this rank adds.
        addends : int
            Total number of addends on all ranks.
        result : Tensor
            Vector for the sums. It may also be an addend, since it is written only after all checksums have been
            verified.
        layout : Layout
        again : function, optional
            Function that determines the exponent fields again, for blocks that are summed again.

        Raises
        ------
        ValueError
            If the total number of addends on all ranks is different.
        RuntimeError
            If the checksum of a block is wrong twice.
        """
        chunks = terms.chunks(terms.blocks)
        rooms = [-(-terms.size(chunk) // _LINE) * _LINE for chunk in chunks]
        words = [room[:terms.size(chunk)] for room, chunk in zip(
            self._memory("words", sum(rooms), torch.int32, layout).split(rooms), chunks, strict=True)]
        parts, wrong = self._exchange(terms, chunks, words)
        if wrong:
            self.counts.retried += len(wrong)
            if again is not None:
                terms = terms.with_fields(again())
            chunks = terms.chunks(wrong)
            repeated, still = self._exchange(terms, chunks, [words[0].new_empty(terms.size(chunk))
                                                             for chunk in chunks])
            if still:
                raise RuntimeError(f"Checksums of blocks {', '.join(map(str, still))} of {len(parts)} were wrong "
                                   f"twice: look for faults of memories and links of the ranks")
            for block, part in zip(wrong, repeated, strict=True):
                parts[block].copy_(part)
        if (count := terms.count_of(words[-1])) != addends:
            raise ValueError(f"Contributions of all ranks together must be {addends}, not {count}")
        terms.finish(parts, result)
        self.counts.sums += 1

    def _exchange(self, terms: Terms, chunks: Sequence[Sequence[int]], words: Sequence[torch.Tensor]
                  ) -> tuple[list[torch.Tensor], list[int]]:
        """Sum chunks over all ranks; return the words of each block, and the blocks that are wrong on any rank."""
        sums = []
        for chunk, own in zip(chunks, words, strict=True):
            parts = terms.split(own, chunk)
            terms.encode(chunk, parts, own)
            sums.append((own, parts, self.ranks.sum(own)))
        verdicts = []
        for own, parts, wait in sums:
            wait()
            verdicts.append(terms.verdicts(parts, own, self.ranks.size))
        verdict = torch.cat(verdicts)
        self.ranks.largest(verdict)
        wrong = [block for block, bad in zip(itertools.chain(*chunks), verdict.tolist(), strict=True) if bad]
        return [part for _, parts, _ in sums for part in parts], wrong

    def _vector(self, layout: Layout, tensors: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        """Return tensors as one vector of whole groups."""
        vector = layout.direct(tensors)
        if vector is None:
            vector = self._memory(f"vector {index}", layout.length, torch.float32, layout)
            layout.gather(tensors, vector)
        return vector

    def memory(self, layout: Layout, use: str = "terms") -> Memory:
        """Return a function that allocates memory for one purpose, by default the terms of a sum."""
        return lambda size: self._memory(use, size, torch.int32, layout)

    def _memory(self, use: str, length: int, dtype: torch.dtype, layout: Layout) -> torch.Tensor:
        """Return memory for one purpose, initially zero, which later sums with the same layout reuse."""
        key, memory = self._memories.get(use, (None, None))
        if memory is None or key != layout.key or len(memory) != length:
            memory = zeros(length, dtype, layout.device)
            self._memories[use] = layout.key, memory
        return memory

    def _agree(self, vectors: _Vectors, layout: Layout, present: torch.Tensor | None = None,
               agreed: Callable[[], None] = lambda: None) -> tuple[torch.Tensor, bool]:
        """Return the exponent fields for all ranks' elements, and whether any element is an infinity or a NaN."""
        groups = layout.length // GROUP
        most = torch.empty(groups + 1 + (0 if present is None else len(present)), dtype=torch.uint8,
                           device=layout.device)
        fields = most[:groups]
        largest = self._largest(vectors, layout)
        fields.copy_(arithmetic.fields_of(largest))
        most[groups] = fields.amax()
        if int(most[groups]) == SPECIAL:
            largest = self._largest([arithmetic.finite(vector) for vector in vectors], layout)
            fields.copy_(arithmetic.fields_of(largest))
        if present is not None:
            most[groups + 1:] = present
        agreed()
        self.ranks.largest(most)
        if present is not None:
            present.copy_(most[groups + 1:])
        return fields, int(most[groups]) == SPECIAL

    def _largest(self, vectors: _Vectors, layout: Layout) -> torch.Tensor:
        """Return the largest bit pattern in each group over all vectors, without signs."""
        largest = self._memory("magnitudes", layout.length // GROUP, torch.int32, layout)
        blocks_of(layout.device).magnitudes(vectors, largest, self.memory(layout, "scratch"))
        return largest

    def _flags(self, vectors: _Vectors, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two flags per element: any addend is +infinity or NaN, and any addend is -infinity or NaN."""
        self.counts.special += 1
        flags = torch.zeros(2, layout.length, dtype=torch.uint8, device=layout.device)
        for vector in vectors:
            nan = vector.isnan()
            flags |= torch.stack([nan | (vector == torch.inf), nan | (vector == -torch.inf)]).to(torch.uint8)
        self.ranks.largest(flags)
        positive, negative = flags.bool()
        return positive, negative
