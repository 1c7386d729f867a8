"""Golden model of shared-exponent formats: codes, words, sums of products, and every cycle of the units.

Elements are bit patterns of binary32, or of bfloat16 where told so. The scale rule and the layout of words are those
of :mod:`hdl.compression.block.format`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hdl.compression.block import shared_exponent as gateware
from hdl.compression.block.format import RANDOM_BITS, STATE_BITS, Rounding, random_state
from sim.golden import floating, stream

__all__ = ["MX4", "MX6", "MX9", "Blocks", "Model", "RandomBits", "SharedExponent", "join", "split",
           "trace_decoder", "trace_encoder"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_WORD = 32
_ONES = 255

#: Shifting this far leaves nothing of a significand, with its random bits.
_FAR = 24 + RANDOM_BITS + 1


class RandomBits:
    """The shift register of stochastic rounding."""

    def __init__(self, seed: int) -> None:
        state = random_state(seed)
        self._bits = np.array([state >> place & 1 for place in range(STATE_BITS)], np.uint8)

    def take(self, count: int) -> Integers:
        """Numbers of :data:`RANDOM_BITS` bits for so many elements; the first bit is the lowest."""
        wanted = count * RANDOM_BITS
        bits = np.concatenate([self._bits, np.zeros(wanted, np.uint8)])
        # Up to 64 bits depend on none of each other.
        for start in range(STATE_BITS, len(bits), 64):
            stop = min(start + 64, len(bits))
            bits[start:stop] = bits[start - 127:stop - 127] ^ bits[start - 64:stop - 64]
        self._bits = bits[wanted:]
        return bits[:wanted].reshape(-1, RANDOM_BITS).astype(np.int64) @ (1 << np.arange(RANDOM_BITS))


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks in parts: exponents as stored, differences of (blocks, subsets), codes of (blocks, elements)."""

    exponents: Integers
    differences: Integers
    codes: Integers


class Model:
    """What the codecs of this module and of :mod:`sim.golden.microscaling` share."""

    block: int
    subset: int
    subsets: int
    exponent_bits: int
    difference_bits: int
    magnitude_bits: int
    fraction_bits: int
    code_bits: int
    header_bits: int
    block_bits: int
    top_field: int
    largest: int
    lowest: int
    highest: int
    nan: int
    complement: bool
    infinities: bool
    nan_magnitude: int | None
    rounding: Rounding
    seed: int

    def random(self) -> RandomBits:
        """Random bits as a unit has them after its reset."""
        return RandomBits(self.seed)

    def quantise(self, bits: npt.ArrayLike, *, random: RandomBits | None = None, bf16: bool = False) -> Blocks:
        """Blocks of elements, of which the last is filled up with +0.

        Parameters
        ----------
        bits : array
            Encodings of the elements.
        random : RandomBits or None
            Where stochastic rounding takes its bits from; by default, as after a reset.
        bf16 : bool
            Whether they are bfloat16.
        """
        given = np.asarray(bits, np.uint32)
        count = -(-len(given) // self.block)
        elements = np.zeros((count, self.block), np.int64)
        elements.reshape(-1)[:len(given)] = given.astype(np.int64) << (16 if bf16 else 0)
        sign, exponent, fraction = elements >> 31, elements >> 23 & _ONES, elements & 0x7F_FFFF
        special = (exponent == _ONES).any(axis=1)
        above = exponent > self.highest
        exponent, fraction = np.where(above, self.highest, exponent), np.where(above, 0x7F_FFFF, fraction)
        significand = np.where(exponent == 0, 0, fraction | 1 << 23)

        shared = np.maximum(exponent.max(axis=1, initial=0), self.lowest)
        if self.difference_bits:
            peaks = exponent.reshape(count, self.subsets, self.subset).max(axis=2, initial=0)
            differences = np.minimum(shared[:, np.newaxis] - peaks, (1 << self.difference_bits) - 1)
        else:
            differences = np.zeros((count, 0), np.int64)
        # Exponent of numbers with the field 1, and where this element is with respect to it.
        lowered = np.repeat(differences, self.subset, axis=1) if self.difference_bits else 0
        field = exponent - (shared[:, np.newaxis] - lowered - self.top_field + 1)
        shift = np.minimum(23 - self.fraction_bits + np.maximum(-field, 0), _FAR)
        if self.rounding is Rounding.STOCHASTIC:
            source = self.random() if random is None else random
            noise = source.take(elements.size).reshape(elements.shape)
            places = (significand << RANDOM_BITS >> shift) + noise >> RANDOM_BITS
        else:
            places = significand >> shift
            twice = (significand - (places << shift)) << 1
            places += (twice + (places & 1)) > 1 << shift
        magnitude = np.where(significand == 0, 0, np.maximum(field, 0) << self.fraction_bits) + places
        codes = self._code(sign, np.minimum(magnitude, self.largest))
        return Blocks(
            np.where(special, self.nan, shared - self.lowest),
            np.where(special[:, np.newaxis], 0, differences), np.where(special[:, np.newaxis], 0, codes))

    def _code(self, sign: Integers, magnitude: Integers) -> Integers:
        if self.complement:
            return np.where(sign, -magnitude, magnitude) & (1 << self.code_bits) - 1
        return sign << self.magnitude_bits | magnitude

    def dequantise(self, blocks: Blocks, *, bf16: bool = False) -> Bits:
        """Elements of blocks."""
        sign = blocks.codes >> self.magnitude_bits
        magnitude = blocks.codes & (1 << self.magnitude_bits) - 1
        if self.complement:
            magnitude = np.where(sign, (1 << self.magnitude_bits) - magnitude, magnitude)
        shared = blocks.exponents[:, np.newaxis] + self.lowest
        if self.difference_bits:
            shared = shared - np.repeat(blocks.differences, self.subset, axis=1)
        # A number is an integer of some places, times a power of two.
        integer, place = self._open(magnitude)
        length = np.frexp(integer.astype(np.float64))[1].astype(np.int64)
        exponent = shared - self.top_field - self.fraction_bits + place + length - 1
        fraction = integer << 24 - length & 0x7F_FFFF
        result = sign << 31 | np.where((integer == 0) | (exponent <= 0), 0, np.where(
            exponent >= _ONES, _ONES << 23, exponent << 23 | fraction))
        nan = np.broadcast_to(blocks.exponents[:, np.newaxis] == self.nan, sign.shape)
        if self.infinities:
            top = (magnitude >> self.fraction_bits) == self.top_field + 1
            rest = magnitude & (1 << self.fraction_bits) - 1
            result = np.where(top, sign << 31 | _ONES << 23, result)
            nan = nan | (top & (rest != 0))
        if self.nan_magnitude is not None:
            nan = nan | (magnitude == self.nan_magnitude)
        elements: Bits = np.where(nan, floating.CANONICAL_NAN, result).astype(np.uint32).reshape(-1)
        if bf16:
            elements >>= np.uint32(16)
        return elements

    def _open(self, magnitude: Integers) -> tuple[Integers, Integers]:
        """A magnitude as an integer, and the power of two it is times that of a subnormal number's last place."""
        if self.top_field == 1:
            return magnitude, np.ones_like(magnitude)
        field, fraction = magnitude >> self.fraction_bits, magnitude & (1 << self.fraction_bits) - 1
        return fraction | (field != 0).astype(np.int64) << self.fraction_bits, np.maximum(field, 1)

    def integers(self, codes: Integers) -> Integers:
        """Elements as integers, of which one is the smallest number of the format above zero."""
        sign, magnitude = codes >> self.magnitude_bits, codes & (1 << self.magnitude_bits) - 1
        if self.complement:
            magnitude = np.where(sign, (1 << self.magnitude_bits) - magnitude, magnitude)
        integer, place = self._open(magnitude)
        numbers: Integers = np.where(sign, -1, 1) * (integer << place - 1)
        return numbers

    def pack(self, blocks: Blocks) -> Bits:
        """Words of blocks."""
        parts = [_spread(blocks.exponents[:, np.newaxis], self.exponent_bits),
                 _spread(blocks.differences, self.difference_bits), _spread(blocks.codes, self.code_bits)]
        flat = np.concatenate(parts, axis=1).reshape(-1)
        padded = np.zeros(-(-len(flat) // _WORD) * _WORD, np.uint8)
        padded[:len(flat)] = flat
        return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)

    def unpack(self, words: npt.ArrayLike) -> Blocks:
        """Blocks of words: as many as are whole."""
        flat = np.unpackbits(np.asarray(words, np.uint32).astype("<u4").view(np.uint8), bitorder="little")
        count = len(flat) // self.block_bits
        rows = flat[:count * self.block_bits].reshape(count, self.block_bits)
        exponent, difference, code = np.split(rows, [self.exponent_bits, self.header_bits], axis=1)
        return Blocks(_gather(exponent, self.exponent_bits, 1)[:, 0],
                      _gather(difference, self.difference_bits, self.subsets),
                      _gather(code, self.code_bits, self.block))

    def encode(self, bits: npt.ArrayLike, *, random: RandomBits | None = None, bf16: bool = False) -> Bits:
        """Words of a packet of elements; see :meth:`quantise`."""
        return self.pack(self.quantise(bits, random=random, bf16=bf16))

    def decode(self, words: npt.ArrayLike, count: int | None = None, *, bf16: bool = False) -> Bits:
        """Elements of a packet of words: ``count``, or whole blocks."""
        elements = self.dequantise(self.unpack(words), bf16=bf16)
        if count is None:
            return elements
        if not len(elements) - self.block < count <= len(elements):
            raise ValueError(f"Element count must end in the last block of {len(elements)} elements, not {count!r}")
        return elements[:count]


class SharedExponent(Model, gateware.SharedExponent):
    """The codec of the same name, and what it does to numbers."""


MX9 = SharedExponent(mantissa_bits=7)
MX6 = SharedExponent(mantissa_bits=4)
MX4 = SharedExponent(mantissa_bits=2)


def _spread(values: Integers, width: int) -> npt.NDArray[np.uint8]:
    """Bits of the numbers of each row, lowest first."""
    bits = values[:, :, np.newaxis] >> np.arange(width) & 1
    return bits.reshape(len(values), values.shape[1] * width).astype(np.uint8)


def _gather(bits: npt.NDArray[np.uint8], width: int, columns: int) -> Integers:
    """The inverse of :func:`_spread`."""
    numbers: Integers = bits.reshape(len(bits), columns, width).astype(np.int64) @ (1 << np.arange(width))
    return numbers


# --- beats of words


def join(model: Model, counts: Sequence[int], lanes: int) -> list[list[tuple[int, int, bool]]]:
    """Words that a packer completes with each beat of each packet of so many blocks: from, to, and last."""
    packets = []
    for blocks in counts:
        beats: list[tuple[int, int, bool]] = []
        done, bits = 0, 0
        for beat in range(blocks * (model.block // lanes)):
            bits += lanes * model.code_bits + (model.header_bits if beat % (model.block // lanes) == 0 else 0)
            last = beat == blocks * (model.block // lanes) - 1
            whole = -(-bits // _WORD) if last else bits // _WORD
            beats.append((done, whole, last))
            done = whole
        packets.append(beats)
    return packets


def split(model: Model, counts: Sequence[int], lanes: int, words: int) -> list[list[tuple[bool, bool, bool]]]:
    """Beats that an unpacker makes of each packet of so many words: takes words, lacks some, and is the last."""
    packets = []
    for total in counts:
        beats: list[tuple[bool, bool, bool]] = []
        bits, taken, index = 0, 0, 0
        while not beats or not beats[-1][2]:
            final = index == model.block // lanes - 1
            bits += lanes * model.code_bits + (model.header_bits if index == 0 else 0)
            takes = bits > taken * _WORD and taken < total
            taken += words if takes else 0
            # The packet's end is seen when its last words have been taken.
            ended = taken >= total
            lacks = ended and bits > total * _WORD
            beats.append((takes, lacks, final and ended and bits + _WORD > total * _WORD))
            index = 0 if final else index + 1
        packets.append(beats)
    return packets


# --- cycles


class _Sink(Protocol):
    """What takes beats from an output register."""

    def take(self, offered: int) -> int:
        """Cycle in which a beat is taken that is offered from some cycle on."""


class _Output:
    """An output register of the unit itself."""

    def __init__(self, ready: npt.ArrayLike) -> None:
        self._ready = stream.first_from(ready)
        self.end = len(self._ready) - 1
        self._count = 0
        self.offered = np.full(self.end, -1, np.int64)

    def take(self, offered: int) -> int:
        departed = self._ready[min(offered, self.end)]
        self.offered[offered:departed + 1] = self._count
        self._count += 1
        return departed


class _Join:
    """A packer: it takes a beat when its output is free, and fills this with what the beat completes."""

    def __init__(self, completes: Sequence[bool], output: _Output) -> None:
        self._completes = iter(completes)
        self._output = output
        self.free = 0

    def take(self, offered: int) -> int:
        taken = max(offered, self.free)
        if next(self._completes) and taken < self._output.end:
            self.free = self._output.take(taken + 1)
        return taken


class _Open:
    """A dequantizer: stages that move together whenever the output is free."""

    def __init__(self, stages: int, output: _Output) -> None:
        self._stages = stages
        self._output = output
        self.free = 0
        self._inside: list[int] = []  # steps that each beat has still to make
        self.end = output.end

    def step(self) -> int:
        """All stages move; the cycle in which they do."""
        now = self.free
        self.free += 1
        self._inside = [left - 1 for left in self._inside]
        if self._inside and self._inside[0] == 0:
            self._inside.pop(0)
            self.free = self._output.take(now + 1)
        return now

    def take(self, offered: int) -> int:
        while self.free < min(offered, self.end):
            self.step()
        if self.free < self.end:
            self._inside.append(self._stages)
            return self.step()
        return self.end


def trace_quantizer(model: Model, last: npt.ArrayLike, *, lanes: int, latency: int, willing: npt.ArrayLike,
                    ready: npt.ArrayLike) -> stream.Trace:
    """Every cycle of a quantizer; see :func:`trace_encoder`."""
    output = _Output(ready)
    return _trace_quantizer(model, last, lanes, latency, willing, output, output)


def trace_encoder(model: Model, last: npt.ArrayLike, *, lanes: int, latency: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> stream.Trace:
    """Every cycle of an encoder.

    Parameters
    ----------
    model : Model
    last : array of beats
        Whether a beat ends its packet.
    lanes : int
        Elements per beat.
    latency : int
        The unit's.
    willing : array of cycles
        Whether the source may begin to offer its next beat.
    ready : array of cycles
        Whether the sink is ready.
    """
    output = _Output(ready)
    ends = np.flatnonzero(np.asarray(last, np.bool_)) + 1
    blocks = -(-np.diff(ends, prepend=0) * lanes // model.block)
    completes = [stop > start for packet in join(model, blocks.tolist(), lanes) for start, stop, _ in packet]
    # Behind the last packet may be the beginning of one whose end is not given.
    completes += [False] * len(np.asarray(last))
    return _trace_quantizer(model, last, lanes, latency - 1, willing, _Join(completes, output), output)


def _trace_quantizer(model: Model, last: npt.ArrayLike, lanes: int, latency: int, willing: npt.ArrayLike,
                     sink: _Sink, output: _Output) -> stream.Trace:
    ends = np.asarray(last, np.bool_).tolist()
    feed, end = stream.Feed(len(ends), willing), output.end
    ready = np.ones(end, np.bool_)
    beats = model.block // lanes
    steps = latency - 2 + beats  # from the step in which a beat enters to that in which it is offered
    inside: list[int] = []
    taken, beat, free, now, padding = 0, 0, 0, -1, False
    while now < end:
        now = max(now + 1, free)
        if beat and not padding:
            now = max(now, feed.offered)
        if now >= end:
            break
        if padding or feed.offered <= now:
            final = beat == beats - 1
            ready[now] = not padding
            if not padding:
                feed.take(now)
                padding = ends[taken]
                taken += 1
            padding = padding and not final
            beat = 0 if final else beat + 1
            inside.append(steps + 1)
        inside = [left - 1 for left in inside]
        if inside and inside[0] == 0:
            inside.pop(0)
            free = sink.take(now + 1)
            ready[now + 1:free] = False
        # While zeros enter, nothing else does.
        if padding:
            ready[now + 1:max(now + 1, free) + 1] = False
    return stream.Trace(feed.valid, ready, output.offered >= 0, output.offered)


def trace_decoder(model: Model, last: npt.ArrayLike, counts: Sequence[int], *, lanes: int, words: int, latency: int,
                  willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Every cycle of a decoder.

    Parameters
    ----------
    model : Model
    last : array of beats
        Whether a beat of words ends its packet.
    counts : sequence of int
        Words of each packet.
    lanes : int
        Elements per beat.
    words : int
        Words per beat of the input.
    latency : int
        The unit's.
    willing : array of cycles
        Whether the source may begin to offer its next beat.
    ready : array of cycles
        Whether the sink is ready.
    """
    output = _Output(ready)
    feed, end, sink = stream.Feed(len(np.asarray(last)), willing), output.end, _Open(latency - 1, output)
    i_ready = np.zeros(end, np.bool_)
    free, now = 0, -1
    for takes, _, _ in [beat for packet in split(model, counts, lanes, words) for beat in packet]:
        start = max(now + 1, free)
        now = max(start, feed.offered) if takes else start
        if now >= end:
            i_ready[start:] = takes
            break
        if takes:
            i_ready[start:now + 1] = True
            feed.take(now)
        free = sink.take(now + 1)
    else:
        i_ready[max(now + 1, free):] = True
    while sink.free < end:
        sink.step()
    return stream.Trace(feed.valid, i_ready, output.offered >= 0, output.offered)
