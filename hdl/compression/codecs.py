# amaranth: UnusedElaboratable=no
"""The codecs that weights and gradients can go through on the ring, by name, and units that take them from and to the
link's words.

Every codec has ``words(count)``, ``create_encoder(lanes=)`` and ``create_decoder(lanes=)``; a packet of elements is a
segment, and what follows it owes nothing to it. Those that take any number say whether they give it back as it was,
``exact``.

Codecs of centroids are loaded with them, by the host: their encoders with the bounds between centroids, their
decoders with the centroids. How many words a packet of a :class:`TableCodec` has depends on what is in it.
"""

import dataclasses
import math

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.block import microscaling
from hdl.compression.block.shared_exponent import MX4, MX6, MX9, SharedExponent
from hdl.compression.centroid.format import CentroidTable
from hdl.compression.centroid.nearest import NearestCentroid
from hdl.compression.table.format import LookupTable
from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.streams.route import Fork
from hdl.streams.rows import RowAssembler, RowSerializer
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["BF16", "BFP8", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "BFloat16", "BFloat16Decoder",
           "BFloat16Encoder", "CentroidCodec", "CentroidEncoder", "Passage", "Raw", "TableCodec", "WordDecoder",
           "WordEncoder", "codebook_words", "count_words", "gradient_codecs", "most_words"]


@dataclasses.dataclass(frozen=True)
class BFloat16:
    """Elements as bfloat16, two to a word, the even one in the low half.

    They are rounded to nearest even, and every NaN becomes 0x7fc0. The upper half of the last word of an odd number
    is zero.
    """

    block = 2
    block_bits = 32
    exact = False

    def words(self, count):
        """Words of a packet of ``count`` elements."""
        return -(-count // 2)

    def create_encoder(self, *, lanes):
        """The unit that encodes: a :class:`BFloat16Encoder`."""
        return BFloat16Encoder(lanes=lanes)

    def create_decoder(self, *, lanes):
        """The unit that decodes: a :class:`BFloat16Decoder`."""
        return BFloat16Decoder(lanes=lanes)


class _BFloat16Unit(wiring.Component):
    """What stores moments, always packed."""

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        beats = stream.Signature(beat_layout(lanes))
        super().__init__({"i": In(beats), "o": Out(beats)})

    @property
    def words(self):
        """Words in a beat on the side of the words."""
        return self._lanes

    @property
    def latency(self):
        """Cycles from the beat that completes another to the offer of that."""
        return self._unit.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit(lanes=self._lanes)
        m.d.comb += unit.packed_state.eq(1)
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        return m


class BFloat16Encoder(_BFloat16Unit):
    """Encode packets of elements as bfloat16: a :class:`~hdl.optimizer.moments.MomentPacker` that packs.

    Latency is :attr:`latency` cycles from the beat that completes a row of words; throughput is one beat per cycle.
    Every output is a register.

    Parameters
    ----------
    lanes : int
        Elements in a beat, and words in a beat of the output: 1, 2, 4 or 8.

    Members
    -------
    i, o : In, Out(stream of beat_layout(lanes))
    """

    _unit = MomentPacker


class BFloat16Decoder(_BFloat16Unit):
    """Decode packets of bfloat16: a :class:`~hdl.optimizer.moments.MomentUnpacker` that unpacks.

    Latency is :attr:`latency` cycle, throughput one beat of the output per cycle. Every output is a register.

    Parameters
    ----------
    lanes : int
        Words in a beat, and elements in a beat of the output: 1, 2, 4 or 8.

    Members
    -------
    i, o : In, Out(stream of beat_layout(lanes))
        Whole words: both elements of a word are kept.
    """

    _unit = MomentUnpacker


@dataclasses.dataclass(frozen=True)
class Raw:
    """Elements as they are, one to a word."""

    block = 1
    block_bits = 32
    exact = True

    def words(self, count):
        """Words of a packet of ``count`` elements."""
        return count

    def create_encoder(self, *, lanes):
        """The unit that encodes: a :class:`Passage`."""
        return Passage(lanes=lanes)

    def create_decoder(self, *, lanes):
        """The unit that decodes: a :class:`Passage`."""
        return Passage(lanes=lanes)


class Passage(wiring.Component):
    """Encode or decode what is the same in either form: wires alone, in both directions.

    Parameters
    ----------
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i, o : In, Out(stream of beat_layout(lanes))
    """

    latency = 0

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        beats = stream.Signature(beat_layout(lanes))
        super().__init__({"i": In(beats), "o": Out(beats)})

    @property
    def words(self):
        """Words in a beat on the side of the words."""
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        connect_stream(m, self.i, self.o)
        return m


@dataclasses.dataclass(frozen=True)
class TableCodec:
    """Elements by tables, as :class:`~hdl.compression.table.format.LookupTable` has it: sign and exponent exact, and
    of the fraction the nearest of some centroids, which encoder and decoder are loaded with.

    Parameters
    ----------
    centroids : int
        Centroids of fractions: 8, 16, 32, 64 or 128.
    """

    centroids: int

    @property
    def table(self):
        """Parameters of the format."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    def most_words(self, count):
        """Most words of a packet of ``count`` elements: as if no two exponents were the same."""
        return self.table.words(count, min(count, 256)) if count else 0

    def create_encoder(self, *, lanes):
        """The unit that encodes: a :class:`hdl.compression.table.encoder.Encoder`."""
        return self.table.create_encoder(lanes=lanes)

    def create_decoder(self, *, lanes):
        """The unit that decodes: a :class:`hdl.compression.table.decoder.Decoder`."""
        return self.table.create_decoder(lanes=lanes)


@dataclasses.dataclass(frozen=True)
class CentroidCodec:
    """Elements as indices of centroids, as :class:`~hdl.compression.centroid.format.CentroidTable` has it, which
    encoder and decoder are loaded with.

    Parameters
    ----------
    centroids : int
        4, 8, 16, 32 or 64.
    """

    centroids: int
    block = 32

    @property
    def table(self):
        """Parameters of the format."""
        return CentroidTable(centroids=self.centroids, loaded=True)

    @property
    def block_bits(self):
        """Bits of 32 indices."""
        return self.block * self.table.index_bits

    def words(self, count):
        """Words of a packet of ``count`` elements."""
        return self.table.words(count)

    def create_encoder(self, *, lanes):
        """The unit that encodes: a :class:`CentroidEncoder`."""
        return CentroidEncoder(table=self.table, lanes=lanes)

    def create_decoder(self, *, lanes):
        """The unit that decodes: a :class:`hdl.compression.centroid.format.Decoder`."""
        return self.table.create_decoder(lanes=lanes)


class CentroidEncoder(wiring.Component):
    """Encode packets of elements as the indices of the nearest centroids, of two that are as near the lower one.

    Latency is that of the search and that of :class:`hdl.compression.centroid.format.Encoder`; throughput is one beat
    per cycle. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    table : CentroidTable
        One that is loaded.
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    load : In(stream of {data, last})
        The bounds between centroids, see :class:`~hdl.compression.centroid.nearest.NearestCentroid`.
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(words))
    """

    def __init__(self, *, table, lanes):
        self._table = table
        self._lanes = lanes
        super().__init__({
            "load": In(stream.Signature(word_layout())),
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(beat_layout(self.words))),
        })

    @property
    def words(self):
        """Words per beat of the output."""
        return self._table.create_encoder(lanes=self._lanes).words

    def elaborate(self, platform):
        m = Module()
        m.submodules.nearest = nearest = NearestCentroid(centroids=self._table.centroids, lanes=self._lanes)
        m.submodules.encoder = encoder = self._table.create_encoder(lanes=self._lanes)
        connect_stream(m, self.load, nearest.load)
        connect_stream(m, self.i, nearest.i)
        connect_stream(m, nearest.o, encoder.i)
        connect_stream(m, encoder.o, self.o)
        return m


BF16 = BFloat16()
BFP8 = SharedExponent(difference_bits=0, mantissa_bits=7)

WORD = 32

RAW = "raw"
"""Name of what is no codec: one word per element."""

#: Codecs by the names that configurations and packets know them by. RAW has none.
WEIGHT_CODECS = {
    RAW: None,
    "bf16": BF16,
    "mx9": MX9,
    "mx6": MX6,
    "mx4": MX4,
    "bfp8": BFP8,
    "mxint8": microscaling.MXINT8,
    "mxfp8_e4m3": microscaling.MXFP8_E4M3,
    "mxfp8_e5m2": microscaling.MXFP8_E5M2,
    "mxfp6_e2m3": microscaling.MXFP6_E2M3,
    "mxfp6_e3m2": microscaling.MXFP6_E3M2,
    "mxfp4_e2m1": microscaling.MXFP4_E2M1,
    "table32": TableCodec(32),
    "centroid16": CentroidCodec(16),
    "centroid64": CentroidCodec(64),
}


def codebook_words(codec):
    """Words of what a codec is loaded with, none for most: the bounds between centroids, from the first word on, one
    that is not used, and the centroids."""
    return 2 * codec.centroids if isinstance(codec, TableCodec | CentroidCodec) else 0


ZERO_VALUE = "zero_value"
"""Name of what gradients are compressed by without a codec of this table: :mod:`hdl.compression.zero_value`."""


def gradient_codecs(codecs):
    """Those of ``codecs`` that gradients can go through: such as take any number, since a sum may be any.

    What has a codebook takes the values in it, or such as it was made for: sums of them are others. It has no
    ``exact``.
    """
    return {name: codec for name, codec in codecs.items() if hasattr(codec, "exact")}


#: Codecs of gradients by their names. ZERO_VALUE has none: it is added as it is, and so are words of RAW. What all
#: others make of a sum is not the sum of what they make: at each hop it is decoded, added, and encoded again.
GRADIENT_CODECS = {ZERO_VALUE: None, RAW: Raw(), **gradient_codecs(WEIGHT_CODECS)}


def most_words(codec, count):
    """Most words of a packet of ``count`` elements."""
    return codec.most_words(count) if isinstance(codec, TableCodec) else codec.words(count)


def count_words(codec, count):
    """Words of a packet of ``count`` elements, where ``count`` is a value and not a number; of no table."""
    blocks = (count + (codec.block - 1)) >> (codec.block.bit_length() - 1)
    unit = math.gcd(WORD, codec.block_bits)
    factor, shift = codec.block_bits // unit, (WORD // unit).bit_length() - 1
    # A sum, since a product would take a multiplier.
    units = sum(blocks.shift_left(place) for place in range(factor.bit_length()) if factor >> place & 1)
    return (units + ((1 << shift) - 1)) >> shift


def _create(create, lanes):
    """A unit whose beats of words can be told from memory rows by nothing: a power of two of words in each."""
    unit = create(lanes=lanes)
    words = 1 << (unit.words - 1).bit_length()
    return unit if words == unit.words else create(lanes=lanes, words=words)


def _load_port(codec):
    return {"load": In(stream.Signature(word_layout()))} if codebook_words(codec) else {}


class WordEncoder(wiring.Component):
    """Encode packets of elements to words of a link.

    Latency is that of the codec's encoder and that of a serializer; throughput is one word per cycle. ``i.ready``
    depends combinationally on ``o.ready``. The encoder of a :class:`TableCodec`, which has to see a packet twice,
    takes it the second time out of a queue of one packet.

    Parameters
    ----------
    codec : one of WEIGHT_CODECS
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.
    segment : int
        Most elements in a packet.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    load : In(stream of {data, last})
        Only of a codec with centroids: the bounds between them, before the first packet.
    o : Out(stream of word_layout())
    """

    def __init__(self, *, codec, lanes, segment=256):
        check_lanes(lanes)
        self._codec = codec
        self._lanes = lanes
        self._segment = segment
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes))),
            **_load_port(codec),
            "o": Out(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.encoder = encoder = _create(self._codec.create_encoder, self._lanes)
        m.submodules.serializer = serializer = RowSerializer(lanes=encoder.words)
        if isinstance(self._codec, TableCodec):
            shape, depth = self.i.payload.shape(), self._segment // self._lanes
            m.submodules.fork = fork = Fork(shape=shape, outputs=2)
            m.submodules.again = again = Queue(shape=shape, depth=max(depth, 4), block=True)
            m.d.comb += fork.enable.eq(0b11)
            connect_stream(m, self.i, fork.i)
            connect_stream(m, fork.o[0], encoder.scan)
            connect_stream(m, fork.o[1], again.i)
            connect_stream(m, again.o, encoder.i)
        else:
            connect_stream(m, self.i, encoder.i)
        if codebook_words(self._codec):
            connect_stream(m, self.load, encoder.load)
        connect_stream(m, encoder.o, serializer.i)
        connect_stream(m, serializer.o, self.o)
        return m


class WordDecoder(wiring.Component):
    """Decode packets of elements from words of a link.

    Latency is that of an assembler and that of the codec's decoder; throughput is one word, or one beat, per cycle,
    whichever takes longer. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : one of WEIGHT_CODECS
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of word_layout())
    load : In(stream of {data, last})
        Only of a codec with centroids: these, before the first packet.
    o : Out(stream of beat_layout(lanes))
        Whole blocks of the codec, whatever the packet's length.
    """

    def __init__(self, *, codec, lanes):
        check_lanes(lanes)
        self._codec = codec
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            **_load_port(codec),
            "o": Out(stream.Signature(beat_layout(lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.decoder = decoder = _create(self._codec.create_decoder, self._lanes)
        m.submodules.assembler = assembler = RowAssembler(lanes=decoder.words)
        connect_stream(m, self.i, assembler.i)
        if codebook_words(self._codec):
            connect_stream(m, self.load, decoder.load)
        connect_stream(m, assembler.o, decoder.i)
        connect_stream(m, decoder.o, self.o)
        return m
