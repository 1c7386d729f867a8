"""Collectives of one rank of a ring in software; :mod:`sim.golden.ring` defines their order and their bits.

A block is sent in packets of :data:`CHUNK` elements, so that a rank computes one packet while others are transferred.
The size does not affect the bits, since packets begin at block boundaries of every codec.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from host.pytorch.software.codecs import kernels_of
from host.pytorch.software.links import BUFFERS, Links, Wait
from sim.arithmetic import formats
from sim.golden.codecs import RAW
from sim.golden.ring import GROUP, Part, block_lengths

__all__ = ["CHUNK", "RankRing", "parts_of"]

Bits = npt.NDArray[np.uint32]

#: Number of elements in a packet. Each packet costs some 60 microseconds of processor time in Python and gloo.
CHUNK = 1 << 19
#: Number of packets of each block in a slice of the vector. Ranks do all hops of a slice before those of the next
#: one, which limits the memory for packets.
SLICE = 16


@functools.lru_cache(maxsize=256)
def parts_of(length: int, nodes: int, block: int, offset: int) -> tuple[Part, ...]:
    """Packets of one block of a vector with a block offset."""
    first = (block - offset) % nodes
    count = int(block_lengths(length, nodes, block_offset=offset)[block])
    starts = range(0, count, CHUNK)
    return tuple(Part(block, slice(index, index + 1), np.array([min(CHUNK, count - start)]),
                      first * GROUP + start * nodes, nodes) for index, start in enumerate(starts))


@functools.lru_cache(maxsize=256)
def _shard_parts(shard: int, length: int) -> tuple[Part, ...]:
    """Packets of a shard, with elements counted from its beginning."""
    return tuple(Part(shard, slice(index, index + 1), np.array([min(CHUNK, length - start)]), start, 1)
                 for index, start in enumerate(range(0, length, CHUNK)))


class _Block(NamedTuple):
    """Block that a rank owns: its packets, as parts of a vector, and of residuals that cover the same elements."""

    vector: Bits
    residuals: Bits | None
    parts: tuple[Part, ...]


class _Hop(NamedTuple):
    """What a rank does with some packets of one block: receive them, compute, and send them.

    ``compute`` gets the part of the vector, the words received, and the array for the words to send.
    """

    parts: tuple[Part, ...]
    receives: bool
    compute: Callable[[Part, Bits, Bits], None]
    sends: bool


def _sliced(hops: list[_Hop]) -> list[_Hop]:
    """Return the hops of each slice of the vector in turn."""
    packets = max(len(hop.parts) for hop in hops)
    return [hop._replace(parts=hop.parts[start:start + SLICE]) for start in range(0, packets, SLICE) for hop in hops]


class RankRing:
    """A ring in software, as one rank sees it.

    All ranks must call the same methods in the same order, with vectors of the same length. Vectors are contiguous
    arrays of ``uint32``, the bit patterns of binary32 numbers.

    Parameters
    ----------
    links : Links
        Links of the rank.
    gradients, weights : str
        Names of the codecs of gradients and of weights, which :func:`kernels_of` must accept.
    """

    def __init__(self, links: Links, *, gradients: str = RAW, weights: str = RAW) -> None:
        self.links = links
        self.rank, self.size = links.rank, links.size
        self._gradients, self._weights = kernels_of(gradients), kernels_of(weights)
        #: Whether sums have coding errors, which ranks keep as residuals.
        self.lossy = not self._gradients.codec.exact
        #: Name of the codec of weights.
        self.weights_codec = weights

    def _offset(self, begin: int) -> int:
        """Block offset of a vector that begins at an element of a longer one."""
        if begin % GROUP:
            raise ValueError(f"Part of a longer vector must begin at a multiple of {GROUP}, not at {begin:,}")
        return begin // GROUP % self.size

    def parts(self, length: int, rank: int, offset: int = 0) -> tuple[Part, ...]:
        """Packets of the block that a rank owns."""
        return parts_of(length, self.size, (rank + 1) % self.size, offset)

    def all_reduce(self, vector: Bits, *, residuals: Bits | None = None, begin: int = 0) -> None:
        """Replace a vector by the sum of all ranks' vectors.

        Parameters
        ----------
        vector : array of shape (count,)
        residuals : array of shape (count,), optional
            Residuals of this rank, which are added to its vector, and then replaced. Unused if the codec is exact.
        begin : int
            If the vector is part of a longer one, the index of its first element, which is a multiple of 32: sums
            have the same bits as those of the longer vector.
        """
        blocks = self._blocks(vector, self._offset(begin), residuals)
        self._run(self._gradients, [*self._scatter(blocks, vector, keep=True),
                                    *self._forward(self._gradients, blocks)])

    def reduce_scatter(self, vector: Bits, *, residuals: Bits | None = None, begin: int = 0) -> None:
        """Replace the elements of the block that this rank owns by their sums; :meth:`parts` are these elements.

        The sums are not encoded. For the parameters see :meth:`all_reduce`.
        """
        blocks = self._blocks(vector, self._offset(begin), residuals)
        self._run(self._gradients, list(self._scatter(blocks, vector, keep=False)))

    def all_gather(self, vector: Bits, *, begin: int = 0, raw: bool = False) -> None:
        """Replace each block by its owner's; all ranks, and the owner too, get the decoded elements.

        With ``raw``, the block is sent without the codec of weights.
        """
        self._gather(self._blocks(vector, self._offset(begin)), raw=raw)

    def reduce_shards(self, vector: Bits, sums: Bits, *, residuals: Bits | None = None) -> None:
        """Sum all ranks' vectors of one shard per rank, so that each rank gets the sum of its own shard.

        The bits equal :meth:`reduce_scatter` of a longer vector: each shard is padded with zeros to whole
        groups of 32, and group g of shard r is group g * ranks + (r + 1) mod ranks of the vector. Shard r is then
        the block that rank r owns.

        Parameters
        ----------
        vector : array of shape (ranks * count,)
            Shards of ranks 0, 1, and so on.
        sums : array of shape (count,)
            Array for the sums of this rank's shard; it must not overlap the vector.
        residuals : array of shape (ranks * count,), optional
            Residuals of this rank, which are added to its vector, and then replaced; the residuals of its own shard
            remain. Unused if the codec is exact.
        """
        self._run(self._gradients, list(self._scatter(self._shards(vector, residuals), sums, keep=False)))

    def gather_shards(self, vector: Bits) -> None:
        """Replace each shard of a vector by its rank's, encoded and decoded with the codec of weights.

        The vector has one shard per rank, as in :meth:`reduce_shards`. All ranks, and the owner too, get the decoded
        elements.
        """
        self._gather(self._shards(vector))

    def _blocks(self, vector: Bits, offset: int, residuals: Bits | None = None) -> list[_Block]:
        """Blocks that ranks 0, 1, and so on own."""
        return [_Block(vector, residuals, self.parts(len(vector), rank, offset)) for rank in range(self.size)]

    def _shards(self, vector: Bits, residuals: Bits | None = None) -> list[_Block]:
        """Shards of ranks 0, 1, and so on."""
        length, rest = divmod(len(vector), self.size)
        if rest:
            raise ValueError(f"Vector must have {self.size} shards of equal lengths, not {len(vector):,} elements")
        shards = [slice(rank * length, (rank + 1) * length) for rank in range(self.size)]
        return [_Block(vector[shard], None if residuals is None else residuals[shard], _shard_parts(rank, length))
                for rank, shard in enumerate(shards)]

    def _gather(self, blocks: list[_Block], *, raw: bool = False) -> None:
        kernels = kernels_of(RAW) if raw else self._weights
        own = blocks[self.rank]

        def encode(part: Part, _: Bits, words: Bits) -> None:
            kernels.pack(own.vector, part, words)
            kernels.unpack(words, own.vector, part)

        first = _Hop(own.parts, False, encode, self.size > 1)
        self._run(kernels, [first, *self._forward(kernels, blocks)])

    def _scatter(self, blocks: list[_Block], sums: Bits, *, keep: bool) -> Iterator[_Hop]:
        """Hops of the scatter-reduce, the last of which writes the rank's own block to ``sums``; with ``keep``, it
        also encodes and sends the block."""
        last = self.size - 1

        def add(part: Part, received: Bits, words: Bits, number: int, block: _Block) -> None:
            self._gradients.hop(block.vector, part=part, received=received if number else None,
                                residual=block.residuals, words=words if keep or number < last else None,
                                result=sums if number == last else None)

        for number in range(self.size):
            block = blocks[(self.rank - number - 1) % self.size]
            yield _Hop(block.parts, number > 0, functools.partial(add, number=number, block=block),
                       number < last or (keep and last > 0))

    def _forward(self, kernels: formats.Kernels, blocks: list[_Block]) -> Iterator[_Hop]:
        """Hops of the all-gather, after this rank has sent its own block."""
        def store(part: Part, received: Bits, words: Bits, forwards: bool, vector: Bits) -> None:
            kernels.unpack(received, vector, part)
            if forwards and formats.address(words) != formats.address(received):
                words[:] = received

        for number in range(1, self.size):
            forwards, block = number < self.size - 1, blocks[(self.rank - number) % self.size]
            yield _Hop(block.parts, True, functools.partial(store, forwards=forwards, vector=block.vector), forwards)

    def _run(self, kernels: formats.Kernels, hops: list[_Hop]) -> None:
        """Do all hops; packets of the next hop are received meanwhile.

        Gloo sends a packet when the next rank has begun to receive it. That rank does so one hop before it needs the
        packet, so that no rank waits for itself.
        """
        hops = _sliced(hops)
        self.links.reserve(max((sum(_sizes(kernels, hop)) for hop in hops), default=0))
        arrivals: list[list[Wait]] = [[] for _ in range(BUFFERS)]
        sent: list[list[Wait]] = [[] for _ in range(BUFFERS)]
        released: list[Wait] = []

        def begin(number: int) -> None:
            """Begin to receive the packets of a hop, in a buffer with packets that have been sent and read."""
            buffer = number % BUFFERS
            _wait_for(sent[buffer])
            if number < len(hops) and hops[number].receives:
                arrivals[buffer] = [self.links.receive(packet) for packet in _packets(
                    kernels, hops[number], self.links.incoming(number))]

        for number, hop in enumerate(hops):
            begin(number + 1)
            buffer = number % BUFFERS
            incoming, outgoing = (_packets(kernels, hop, memory) for memory in (
                self.links.incoming(number), self.links.outgoing(number)))
            for index, part in enumerate(hop.parts):
                if hop.receives:
                    arrivals[buffer][index]()
                hop.compute(part, incoming[index], outgoing[index])
                if hop.sends:
                    sent[buffer].append(self.links.send(outgoing[index]))
            if hop.receives and hop.parts:
                released.append(self.links.release())
            if hop.sends and hop.parts:
                sent[buffer].append(self.links.await_release())
        for waits in (*sent, released):
            _wait_for(waits)


def _wait_for(waits: list[Wait]) -> None:
    """Wait for messages, and forget them."""
    for wait in waits:
        wait()
    waits.clear()


def _sizes(kernels: formats.Kernels, hop: _Hop) -> list[int]:
    """Number of words of each packet of a hop."""
    return [kernels.codec.max_words(part.count) for part in hop.parts]


def _packets(kernels: formats.Kernels, hop: _Hop, memory: Bits) -> list[Bits]:
    """Packets of a hop in a buffer."""
    ends = np.cumsum([0, *_sizes(kernels, hop)]).tolist()
    return [memory[start:end] for start, end in itertools.pairwise(ends)]
