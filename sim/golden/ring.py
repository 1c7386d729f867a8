"""Golden model of the ring: values summed in hardware order, words on the wire, and link cycle bounds.

The functions work on ``uint32`` bit patterns of binary32 numbers; :func:`bits` and :func:`floats` convert.

A vector of K elements is partitioned into N blocks in groups of 32: group j belongs to block (j + block_offset) mod
N. Rank r owns block (r+1) mod N, and block b is summed starting at rank b, then b+1, and so on around the ring,
``((g_b + g_{b+1}) + …)``, with each addition rounded to nearest even. Reading a gradient turns -0.0 into +0.0 and any
NaN into the canonical NaN.

A command may cover a slice of a vector that begins at any group. If its ``block_offset`` is the number of that group
modulo N, each element has the same first rank as in a command for the whole vector: sums do not depend on how a
vector is split into commands, as long as it is split between groups.

At hop h of scatter-reduce, rank r sends block (r-h) mod N, the sum of h+1 gradients. At hop h of all-gather, it sends
block (r+1-h) mod N. Each block moves in T segments, where T is the same for all blocks (see :func:`segment_indices`);
a block that is too short sends empty packets for its missing segments.

With a gradient codec, each segment is encoded as a separate packet. A rank decodes the incoming segment, adds its
local gradient, and encodes the sum again. For each element that it has encoded, it keeps the coding error as a
residual: the sum minus its decoded value, or +0.0 if the difference is not finite. In the next collective, the
residual is first added to the rank's gradient.

With an agreed gradient codec (:class:`~sim.golden.codecs.AgreedCodec`), sums do not depend on the order of their
addends, and there are no residuals. A packet also contains the exponents of a later segment: one segment later in the
scatter-reduce, and two segments later in the all-gather. Per block, the scatter-reduce therefore has one packet more
than there are segments, the all-gather has two packets more, and a reduce-scatter includes an all-gather that sends
only exponents. A ring of one node sends nothing, but rounds its gradients as it would round any sum.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import floating, moments, optimizer
from sim.golden.codecs import CODECS, RAW, ZERO_VALUE, AgreedCodec, Codec, is_agreed

__all__ = ["GROUP", "PACKET_OVERHEAD", "Arithmetic", "Part", "Traffic", "Update", "all_gather", "all_reduce", "bits",
           "block_indices", "block_lengths", "broadcast", "canonical", "distribute", "floats", "fused_update",
           "groups_before", "largest_block", "places", "reduce_scatter", "segment_indices", "settings"]

Bits = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]

#: Number of elements per mask word; blocks consist of whole groups of this size.
GROUP = 32

#: Number of words of a packet other than its payload: three header words and one CRC word.
PACKET_OVERHEAD = 4

#: Number of elements that a rank processes at a time, so that they stay in the processor's cache.
PART = 1 << 15


def bits(values: npt.ArrayLike) -> Bits:
    """Convert numbers to binary32 bit patterns."""
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def floats(patterns: Bits) -> npt.NDArray[np.float32]:
    """View bit patterns as binary32 numbers."""
    return np.ascontiguousarray(patterns, dtype=np.uint32).view(np.float32)


def canonical(patterns: Bits) -> Bits:
    """Gradients as read by the hardware: -0.0 becomes +0.0, and every NaN becomes 0x7fc00000."""
    result = patterns.copy()
    result[patterns == 0x8000_0000] = 0
    result[(patterns & 0x7fff_ffff) > 0x7f80_0000] = 0x7fc0_0000
    return result


def settings(rule: int, *, nesterov: bool = False, **scalars: float) -> optimizer.Settings:
    """Create optimizer settings from numbers, which are rounded to binary32."""
    return optimizer.Settings(optimizer.Rule(rule), nesterov=nesterov,
                              **{name: int(bits([number])[0]) for name, number in scalars.items()})


def block_indices(length: int, nodes: int, *, block_offset: int = 0) -> list[Indices]:
    """Elements of each block, in vector order, which is also the order of transfer.

    Group j of the ceil(length/32) groups belongs to block (j + block_offset) mod nodes. Only the last group of the
    vector may be partial, and blocks may be empty.
    """
    _check_blocks(length, nodes, block_offset)
    elements = np.arange(length)
    blocks = (elements // GROUP + block_offset) % nodes
    return [elements[blocks == block] for block in range(nodes)]


def block_lengths(length: int, nodes: int, *, block_offset: int = 0) -> npt.NDArray[np.int64]:
    """Number of elements of each block; see :func:`block_indices`."""
    _check_blocks(length, nodes, block_offset)
    counts = GROUP * np.array([groups_before(-(-length // GROUP), nodes, (block - block_offset) % nodes)
                               for block in range(nodes)], np.int64)
    counts[(length // GROUP + block_offset) % nodes] -= -length % GROUP  # the last group may be partial
    return counts


def _check_blocks(length: int, nodes: int, block_offset: int) -> None:
    if length < 0:
        raise ValueError(f"Length must be zero or more, not {length!r}")
    if nodes < 1:
        raise ValueError(f"Node count must be at least 1, not {nodes!r}")
    if not 0 <= block_offset < nodes:
        raise ValueError(f"Block offset must be below {nodes}, not {block_offset!r}")


def segment_indices(length: int, nodes: int, segment: int, *, block_offset: int = 0) -> list[list[Indices]]:
    """Elements of each segment of each block.

    All blocks have the segment count of the longest block; segments beyond the end of a block are empty.
    """
    _check_segment(segment)
    blocks = block_indices(length, nodes, block_offset=block_offset)
    count = max(-(-len(block) // segment) for block in blocks)
    return [[block[segment * t:segment * (t + 1)] for t in range(count)] for block in blocks]


def _check_segment(segment: int) -> None:
    if segment < GROUP or segment % GROUP:
        raise ValueError(f"Segment must be a positive multiple of {GROUP}, not {segment!r}")


def largest_block(length: int, nodes: int) -> int:
    """Number of elements in the largest block, independent of the block offset."""
    return int(block_lengths(length, nodes).max())


def groups_before(first: int, nodes: int, block: int) -> int:
    """Number of groups of a block among the first ``first`` groups of a vector; group 0 is in block 0.

    If a rank's command begins at group ``first``, its state is stored after the state of these groups.
    """
    return (first - block + nodes - 1) // nodes


def places(length: int, *, stride: int = 1) -> Indices:
    """Memory offsets of a command's elements from its base; groups are ``stride`` groups apart."""
    if stride < 1:
        raise ValueError(f"Stride must be at least 1, not {stride!r}")
    elements = np.arange(length)
    return elements % GROUP + elements // GROUP * (GROUP * stride)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Cost of one collective on the links of the ring.

    A *segment step* is one packet on one link, including everything it passes through on its way. The minimum number
    of cycles of a segment step is the largest of

    - the number of payload words (the link moves one word per cycle),
    - the number of elements divided by the number of lanes, rounded up (a memory moves one row per cycle), and
    - the number of positions that are nonzero in either addend, if the segment comes from the compressed-domain adder
      (which accepts one per cycle); with a gradient codec there is no such adder.

    The bound of a rank is the sum of these numbers over its segments; the bound of the collective is the largest
    bound of any rank. A bound does not include headers, CRCs, latency, pipeline fill, or the sums that a
    reduce-scatter leaves at their owners. For dense data this gives the closed forms (33/32)·(N-1)/N·K for
    scatter-reduce, the same for a compressed all-gather, and (N-1)/N·K for a raw all-gather, or the codec's number of
    words.

    Members
    -------
    scatter_words, gather_words : array of shape (hops, nodes)
        Words that each rank sends at each hop, including headers and CRCs.
    dense_words : int
        Words of the same packets if all payloads were raw, summed over ranks.
    density : array of shape (hops,)
        Fraction of nonzero elements among all elements sent at each hop of scatter-reduce.
    scatter_bound : int
        Link-cycle bound of scatter-reduce only.
    bound : int
        Link-cycle bound of the whole collective.
    gather_elements, gather_payload : int
        Elements that all ranks send in all-gather, and their payload words, without headers and CRCs.
    masked_words : int
        Words of the same packets with gradients and their sums in zero_value form, without exponents; weights are
        unchanged.
    """
    scatter_words: npt.NDArray[np.int64]
    gather_words: npt.NDArray[np.int64]
    dense_words: int
    density: npt.NDArray[np.float64]
    scatter_bound: int
    bound: int
    gather_elements: int
    gather_payload: int
    masked_words: int = 0

    @property
    def words(self) -> npt.NDArray[np.int64]:
        """Total number of words sent by each rank."""
        return np.asarray(self.scatter_words.sum(axis=0) + self.gather_words.sum(axis=0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """Result of a fused update: new weights and state planes for the whole vector, the reduced gradient, and the
    cost. Master weights are the weights before the weight codec."""
    weights: Bits
    master: Bits
    state: list[Bits]
    total: Bits
    traffic: Traffic


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Costs of segment steps, as arrays of shape (hops, nodes, packets): payload words, cycles, elements, nonzero
    elements, and the payload words that contain exponents."""
    payload: npt.NDArray[np.int64]
    cost: npt.NDArray[np.int64]
    elements: npt.NDArray[np.int64]
    nonzeros: npt.NDArray[np.int64]
    exponents: npt.NDArray[np.int64]

    @property
    def words(self) -> npt.NDArray[np.int64]:
        return np.asarray((self.payload + PACKET_OVERHEAD).sum(axis=2))

    @property
    def dense_words(self) -> int:
        return int((self.elements + PACKET_OVERHEAD).sum())

    @property
    def masked_words(self) -> int:
        return int((self.nonzeros - (-self.elements // GROUP) + PACKET_OVERHEAD).sum())

    @property
    def density(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.nonzeros.sum(axis=(1, 2)) / np.maximum(self.elements.sum(axis=(1, 2)), 1))

    def __getitem__(self, hops: slice) -> "_Steps":
        return _Steps(*(getattr(self, field.name)[hops] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Part:
    """Part of a block: consecutive segments that a rank processes at a time.

    Members
    -------
    block : int
        Number of the block.
    segments : slice
        Numbers of the segments in the block.
    sizes : array of shape (segments,)
        Number of elements of each segment. All sizes are equal, except for the last segment that is not empty.
    first : int
        First element of the part in the vector.
    stride : int
        Distance in the vector between consecutive groups of the part, in groups.
    """
    block: int
    segments: slice
    sizes: npt.NDArray[np.int64]
    first: int
    stride: int

    @functools.cached_property
    def count(self) -> int:
        """Number of elements in the part."""
        return int(self.sizes.sum())

    @functools.cached_property
    def indices(self) -> Indices:
        """Indices of the part's elements in the vector."""
        return self.first + places(self.count, stride=self.stride)


class Arithmetic:
    """Operations of ranks on the elements of a part. This class defines the results; :mod:`sim.arithmetic.ring` has a
    compiled class with equal results.

    Gradients, residuals, and other arrays named ``memory`` cover the whole vector.
    """

    def read(self, memory: Bits, part: Part) -> Bits:
        """Read the elements of a part of a vector from memory."""
        return memory[part.indices]

    def write(self, memory: Bits, part: Part, values: Bits) -> None:
        """Write the elements of a part of a vector to memory."""
        memory[part.indices] = values

    def hop(self, gradients: Bits, part: Part, partial: Bits | None, codec: Codec | None = None,
            residuals: Bits | None = None) -> Bits:
        """Add a rank's gradients to the sum of the previous ranks, and return the sum after encoding and decoding.

        The first rank has no ``partial`` sum; without a codec, the sum is not encoded. If the rank has residuals,
        they are added to its gradients and then replaced. The result may be in the array of ``partial``.
        """
        total = canonical(self.read(gradients, part))
        if residuals is not None:
            total = floating.add(total, self.read(residuals, part))
        if partial is not None:
            total = floating.add(partial, total)
        if codec is None:
            return total
        # Segments begin at block boundaries of every codec, so that each segment can be a packet.
        decoded = codec.decode(codec.encode(total), part.count)
        if residuals is not None:
            lost = floating.add(total, decoded ^ np.uint32(0x8000_0000))
            self.write(residuals, part, np.where(np.isfinite(floats(lost)), lost, np.uint32(0)))
        return decoded

    def nonzeros(self, values: Bits, part: Part, gradients: Bits | None = None) -> npt.NDArray[np.int64]:
        """Number of elements of each segment that are nonzero in ``values``, which covers only the part, or in the
        gradients."""
        flags = values != 0
        if gradients is not None:
            flags |= canonical(self.read(gradients, part)) != 0
        return _counts(flags, part)

    def through(self, codec: Codec, values: Bits, part: Part) -> tuple[Bits, npt.NDArray[np.int64]]:
        """Encode and decode each segment of ``values``, which covers only the part; return the decoded values, and
        the number of words of each segment."""
        segments = np.split(values, part.sizes.cumsum()[:-1])
        packets = [codec.encode(segment) for segment in segments]
        decoded = [codec.decode(packet, len(segment)) for packet, segment in zip(packets, segments, strict=True)]
        return np.concatenate(decoded), np.array([len(packet) for packet in packets], np.int64)


def _counts(flags: npt.NDArray[np.bool_], part: Part) -> npt.NDArray[np.int64]:
    """Number of set flags in each segment of a part."""
    sums = np.concatenate([[0], np.cumsum(flags)])
    stops = part.sizes.cumsum()
    return np.asarray(sums[stops] - sums[stops - part.sizes], dtype=np.int64)


#: Arithmetic of the golden model, which uses numpy.
_NUMPY = Arithmetic()


class _Schedule:
    """Blocks and segments of a vector of ``length`` elements on ``nodes`` ranks."""

    def __init__(self, length: int, nodes: int, segment: int, lanes: int, block_offset: int,
                 arithmetic: Arithmetic = _NUMPY):
        if lanes < 1:
            raise ValueError(f"Lane count must be at least 1, not {lanes!r}")
        counts = block_lengths(length, nodes, block_offset=block_offset)
        _check_segment(segment)
        self.nodes = nodes
        self.segment = segment
        self.lanes = lanes
        self.block_offset = block_offset
        self.arithmetic = arithmetic
        starts = np.arange(0, counts.max(), segment)
        #: Number of elements in each segment of each block.
        self.sizes = np.clip(counts[:, np.newaxis] - starts, 0, segment)

    def parts(self) -> Iterator[Part]:
        """Split all blocks into parts of whole segments: up to PART elements each, but at least one segment."""
        step = max(PART // self.segment, 1)
        for block, sizes in enumerate(self.sizes):
            group = (block - self.block_offset) % self.nodes
            for start in range(0, len(sizes), step):
                yield Part(block, slice(start, start + step), sizes[start:start + step],
                           group * GROUP + start * self.segment * self.nodes, self.nodes)

    def empty(self, hops: int) -> _Steps:
        shape = (hops, *self.sizes.shape)
        return _Steps(*(np.zeros(shape, dtype=np.int64) for _ in dataclasses.fields(_Steps)))

    def fill(self, steps: _Steps, hop: int, rank: int, part: Part, nonzeros: npt.NDArray[np.int64] | None,
             positions: npt.NDArray[np.int64] | int, coded: npt.NDArray[np.int64] | None = None) -> None:
        """Record the steps of one packet per segment of ``part``: encoded with ``coded`` words per segment of each
        block, zero-value compressed with ``nonzeros`` nonzero elements, or raw if neither is given."""
        elements = part.sizes
        if coded is not None:
            payload = coded[part.block, part.segments]
        else:
            payload = elements if nonzeros is None else nonzeros - (-elements // GROUP)
        index = hop, rank, part.segments
        steps.elements[index] = elements
        steps.nonzeros[index] = elements if nonzeros is None else nonzeros
        steps.payload[index] = payload
        steps.cost[index] = np.maximum(np.maximum(payload, -(-elements // self.lanes)), positions)

    def reduce(self, gradients: Bits, codec: Codec, residuals: Bits | None = None, *, keep: bool = False,
               counts: Sequence[int] | None = None) -> tuple[Bits, _Steps]:
        """Sum the gradients in N segment steps; the result of the last step stays at the owner.

        Unless sums are added in coded form or are agreed, ``residuals`` are replaced, and with ``keep`` the last step
        also passes through the codec.
        """
        if is_agreed(codec):
            return self._reduce_agreed(gradients, codec, [1] * self.nodes if counts is None else counts)
        if counts is not None:
            raise ValueError("Each rank must have one gradient, unless the codec adds integers")
        if not codec.exact and (residuals is None or residuals.shape != gradients.shape):
            raise ValueError("Residuals must be there with a codec that is not exact, one row per rank")
        total = np.empty(gradients.shape[1], dtype=np.uint32)
        steps = self.empty(self.nodes)
        coded = None if codec.sums_coded else self.words(codec)
        for part in self.parts():
            partial: Bits | None = None
            for hop in range(self.nodes):
                rank = (part.block + hop) % self.nodes
                positions: npt.NDArray[np.int64] | int = 0
                if codec.sums_coded and partial is not None:
                    positions = self.arithmetic.nonzeros(partial, part, gradients[rank])
                # An exact codec leaves the sum unchanged.
                lossy = not codec.exact and (keep or hop < self.nodes - 1)
                partial = self.arithmetic.hop(gradients[rank], part, partial, codec if lossy else None,
                                              residuals[rank] if lossy and residuals is not None else None)
                self.fill(steps, hop, rank, part, self.arithmetic.nonzeros(partial, part), positions, coded)
            if partial is not None:
                self.arithmetic.write(total, part, partial)
        return total, steps

    def _reduce_agreed(self, gradients: Bits, codec: AgreedCodec, counts: Sequence[int]) -> tuple[Bits, _Steps]:
        if sum(counts) != len(gradients) or min(counts) < 1:
            raise ValueError(f"Ranks must have one or more of the {len(gradients)} gradients each, not {counts!r}")
        total = np.empty(gradients.shape[1], dtype=np.uint32)
        rows = np.split(np.arange(len(gradients)), np.cumsum(counts)[:-1])
        steps = self.empty(self.nodes)
        coded = self.words(codec) + codec.checksum_words * (self.sizes > 0)
        for part in self.parts():
            ranks = (part.block + np.arange(self.nodes)) % self.nodes
            order = np.concatenate([rows[rank] for rank in ranks])
            nonzero, total[part.indices] = codec.sums(canonical(gradients[np.ix_(order, part.indices)]))
            last = np.cumsum([counts[rank] for rank in ranks.tolist()]) - 1  # index of the last addend of each rank
            for hop, rank in enumerate(ranks.tolist()):
                self.fill(steps, hop, rank, part, _counts(nonzero[last[hop]], part), 0, coded)
        return total, steps

    def agreed(self, scatter: _Steps, gather: _Steps, codec: AgreedCodec, *,
               data: bool = True) -> tuple[_Steps, _Steps]:
        """Add the exponents of later segments to the packets of both phases. Without ``data``, packets of the
        all-gather contain only exponents."""
        return (self._with_exponents(scatter, codec, codec.scatter_ahead),
                self._with_exponents(gather, codec, codec.gather_ahead, data=data))

    def _with_exponents(self, steps: _Steps, codec: AgreedCodec, ahead: int, *, data: bool = True) -> _Steps:
        ahead = ahead if steps.elements.shape[2] else 0
        words = np.vectorize(codec.exponent_words, otypes=[np.int64])(steps.elements)
        exponents = np.pad(words, ((0, 0), (0, 0), (0, ahead)))
        payload, elements, nonzeros = (np.pad(values if data else np.zeros_like(values), ((0, 0), (0, 0), (ahead, 0)))
                                       for values in (steps.payload, steps.elements, steps.nonzeros))
        payload += exponents
        cost = np.maximum(payload, -(-elements // self.lanes))
        return _Steps(payload, cost, elements, nonzeros, exponents)

    def words(self, codec: Codec) -> npt.NDArray[np.int64]:
        """Number of words of each segment of each block."""
        sizes, index = np.unique(self.sizes, return_inverse=True)
        words = np.array([codec.max_words(size) for size in sizes.tolist()], dtype=np.int64)
        return np.asarray(words[index].reshape(self.sizes.shape))

    def gather(self, values: Bits | None = None, coded: npt.NDArray[np.int64] | None = None) -> _Steps:
        """Segment steps of the N-1 hops that send every finished block around the ring. Blocks are compressed if
        ``values`` is given, encoded if ``coded`` is (the words per segment of each block), and otherwise raw."""
        steps = self.empty(self.nodes - 1)
        for part in self.parts():
            nonzeros = None
            if values is not None:
                nonzeros = self.arithmetic.nonzeros(self.arithmetic.read(values, part), part)
            for hop in range(self.nodes - 1):
                self.fill(steps, hop, (part.block - 1 + hop) % self.nodes, part, nonzeros, 0, coded)
        return steps

    def through(self, codec: Codec, values: Bits) -> tuple[Bits, npt.NDArray[np.int64]]:
        """Values after encoding and decoding each segment, and the number of words of each segment of each block."""
        result, words = np.empty_like(values), np.zeros_like(self.sizes)
        for part in self.parts():
            decoded, words[part.block, part.segments] = self.arithmetic.through(
                codec, self.arithmetic.read(values, part), part)
            self.arithmetic.write(result, part, decoded)
        return result, words

    def traffic(self, scatter: _Steps, gather: _Steps, *, sums: bool = False) -> Traffic:
        """Costs of a collective. ``sums`` is true if the all-gather sends sums, as in an all-reduce, not weights."""
        return Traffic(scatter_words=scatter.words, gather_words=gather.words,
                       dense_words=scatter.dense_words + gather.dense_words, density=scatter.density,
                       scatter_bound=_bound(scatter), bound=_bound(scatter, gather),
                       gather_elements=int(gather.elements.sum()), gather_payload=int(gather.payload.sum()),
                       masked_words=scatter.masked_words + (gather.masked_words if sums else int(
                           gather.words.sum() - gather.exponents.sum())))


def _bound(*phases: _Steps) -> int:
    return int(sum(steps.cost.sum(axis=(0, 2)) for steps in phases).max())


def all_reduce(gradients: Bits, *, gradient_codec: Codec = CODECS[ZERO_VALUE], residuals: Bits | None = None,
               segment: int = 256, lanes: int = 4, block_offset: int = 0, counts: Sequence[int] | None = None,
               arithmetic: Arithmetic = _NUMPY) -> tuple[Bits, Traffic]:
    """Sum at every rank after an all-gather, which is compressed or uses a codec, and its traffic.

    With a lossy codec, ``residuals`` has one row per rank and is updated in place. ``counts`` is the number of rows
    of ``gradients`` of each rank, which are one by default; only codecs that add integers allow several.
    """
    nodes = len(gradients if counts is None else counts)
    schedule = _Schedule(gradients.shape[1], nodes, segment, lanes, block_offset, arithmetic)
    total, steps = schedule.reduce(gradients, gradient_codec, residuals, keep=True, counts=counts)
    gather = schedule.gather(total, None if gradient_codec.sums_coded else schedule.words(gradient_codec))
    scatter = steps[:-1]
    if is_agreed(gradient_codec):
        scatter, gather = schedule.agreed(scatter, gather, gradient_codec)
    elif schedule.nodes > 1:
        # The adder passes the completed sum directly to the first hop of the all-gather.
        gather.cost[0] = np.maximum(gather.cost[0], steps.cost[-1])
    return total, schedule.traffic(scatter, gather, sums=True)


def reduce_scatter(gradients: Bits, *, gradient_codec: Codec = CODECS[ZERO_VALUE], residuals: Bits | None = None,
                   segment: int = 256, lanes: int = 4, block_offset: int = 0, counts: Sequence[int] | None = None,
                   arithmetic: Arithmetic = _NUMPY) -> tuple[Bits, Traffic]:
    """Gradient memory of every rank after a reduce-scatter: its own block contains the sum; the rest is unchanged.

    The sum equals the optimizer's input in a fused update: with a codec, it is the decoded incoming sum plus the
    owner's gradient, and is not itself encoded. It differs from the result of an all-reduce unless the codec is exact
    or agreed. For ``counts``, see :func:`all_reduce`; the sum replaces the first gradient of a rank.
    """
    nodes = len(gradients if counts is None else counts)
    schedule = _Schedule(gradients.shape[1], nodes, segment, lanes, block_offset, arithmetic)
    total, steps = schedule.reduce(gradients, gradient_codec, residuals, counts=counts)
    result = gradients[np.cumsum([0, *counts[:-1]])] if counts is not None else gradients.copy()
    for part in schedule.parts():
        arithmetic.write(result[(part.block - 1) % nodes], part, arithmetic.read(total, part))
    scatter, gather = steps[:-1], schedule.empty(0)
    if is_agreed(gradient_codec):
        scatter, gather = schedule.agreed(scatter, schedule.gather(), gradient_codec, data=False)
    return result, schedule.traffic(scatter, gather)


def fused_update(gradients: Bits, weights: Bits, state: list[Bits], settings: optimizer.Settings, *,
                 packed_state: bool = False, weight_codec: Codec = CODECS[RAW],
                 gradient_codec: Codec = CODECS[ZERO_VALUE], residuals: Bits | None = None, segment: int = 256,
                 lanes: int = 4, block_offset: int = 0, counts: Sequence[int] | None = None,
                 arithmetic: Arithmetic = _NUMPY) -> Update:
    """Scatter-reduce, the optimizer at the owner of each block, and an all-gather of the new weights, which are sent
    raw or encoded.

    With a lossy gradient codec, ``residuals`` has one row per rank and is updated in place. The owner adds its own
    gradient to the decoded sum at the end, without encoding the result.

    With a weight codec, ``weights`` are master weights: the optimizer updates them, and all ranks, including the
    owner, receive the decoded weights. ``weights`` and each plane of ``state`` cover the whole vector, although a
    rank stores only its own block's state. With ``packed_state``, new state is rounded to bfloat16 when it is stored,
    but new weights are computed from the unrounded state. For ``counts`` see :func:`all_reduce`.
    """
    nodes = len(gradients if counts is None else counts)
    schedule = _Schedule(gradients.shape[1], nodes, segment, lanes, block_offset, arithmetic)
    total, steps = schedule.reduce(gradients, gradient_codec, residuals, counts=counts)
    master, new_state = optimizer.update(total, weights, state, settings)
    if packed_state:
        new_state[:settings.planes] = [moments.unpack(moments.pack(plane), len(plane))
                                       for plane in new_state[:settings.planes]]
    new_weights, coded = schedule.through(weight_codec, master)
    gather, scatter = schedule.gather(coded=coded), steps[:-1]
    if is_agreed(gradient_codec):
        scatter, gather = schedule.agreed(scatter, gather, gradient_codec)
    traffic = schedule.traffic(scatter, gather)
    return Update(weights=new_weights, master=master, state=new_state, total=total, traffic=traffic)


def distribute(weights: Bits, nodes: int, *, weight_codec: Codec = CODECS[RAW], segment: int = 256,
               arithmetic: Arithmetic = _NUMPY) -> Bits:
    """Weights at every rank after each owner has sent out its master weights without an update."""
    return _Schedule(len(weights), nodes, segment, 1, 0, arithmetic).through(weight_codec, weights)[0]


def all_gather(weights: Bits, *, weight_codec: Codec = CODECS[RAW], segment: int = 256, lanes: int = 4,
               block_offset: int = 0, arithmetic: Arithmetic = _NUMPY) -> tuple[Bits, Traffic]:
    """Weights at every rank after an all-gather in which rank r sends block (r+1) mod N, raw or encoded.

    Weights from a fused update have already passed through the codec, which therefore leaves them unchanged.
    """
    nodes = len(weights)
    schedule = _Schedule(weights.shape[1], nodes, segment, lanes, block_offset, arithmetic)
    own = np.empty_like(weights[0])
    for part in schedule.parts():
        arithmetic.write(own, part, arithmetic.read(weights[(part.block - 1) % nodes], part))
    result, coded = schedule.through(weight_codec, own)
    gather = schedule.gather(coded=coded)
    return result, schedule.traffic(schedule.empty(0), gather)


def broadcast(weights: Bits, root: int) -> Bits:
    """Weights at every rank after a broadcast: a copy of the weights at ``root``."""
    if not 0 <= root < len(weights):
        raise ValueError(f"Root must be a rank below {len(weights)}, not {root!r}")
    return np.asarray(weights[root]).copy()
