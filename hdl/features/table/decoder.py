"""Decoder of table-compressed packets; see :mod:`hdl.features.table.format`."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.byte_packing import ByteUnpacker
from hdl.compression.planes import GroupSplitter, word_count
from hdl.features.table.format import check_table
from hdl.floating.stages import register
from hdl.streams.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["Decoder"]


class Decoder(wiring.Component):
    """Expand packets to whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. Within a packet, one beat is output per
    cycle without bubbles between groups, as long as words arrive. The tables take one cycle per exponent and per
    centroid, plus two cycles. They are read once all codes of the previous packet have been looked up. ``i.ready``
    depends combinationally on ``o.ready``.

    A malformed packet raises ``error``, and the next one is decoded correctly. If its tables are truncated or out of
    order, there is no output. If it ends within a group, the output ends with the incomplete group of eight, where
    missing elements are unspecified. If an index exceeds its table, the exponent is unspecified.

    Parameters
    ----------
    table : LookupTable
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(words))
    load : In(stream of {data, last})
        Only if packets contain no centroids: ``table.mantissas`` words, each the fraction of a centroid, in
        ascending order. Accepted at any time, and effective immediately.
    o : Out(stream of beat_layout(lanes, table.format.width))
    error : Out(1)
        Pulse if this packet is malformed or the wrong number of words was loaded.
    """

    #: Latency in cycles from the beat that completes eight codes to the offer of their first elements.
    latency = ByteUnpacker.latency + GroupSplitter.latency + 2

    def __init__(self, *, table, lanes):
        check_table(table)
        check_lanes(lanes)
        self._table = table
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(beat_layout(self.words))),
            **({"load": In(stream.Signature(word_layout()))} if table.loaded else {}),
            "o": Out(stream.Signature(beat_layout(lanes, table.format.width))),
            "error": Out(1),
        })

    @property
    def table(self):
        """Parameters of the table format."""
        return self._table

    @property
    def lanes(self):
        """Number of elements per beat."""
        return self._lanes

    @property
    def words(self):
        """Number of words per beat of the input."""
        return word_count(self._lanes, self._table.width)

    def elaborate(self, platform):
        m = Module()
        table, lanes = self._table, self._lanes
        m.submodules.unpacker = unpacker = ByteUnpacker(words=self.words)
        m.submodules.splitter = splitter = GroupSplitter(lanes=lanes, width=table.width)
        connect_stream(m, self.i, unpacker.i)
        m.d.comb += [
            splitter.window.eq(unpacker.window),
            splitter.enough.eq(unpacker.enough),
            splitter.stops.eq(unpacker.stops),
            splitter.take.eq(unpacker.take),
        ]

        count = Signal(range(table.exponents + 1))
        last_index = Signal(range(table.exponents))
        # Exponents ascend, so only the first one can be the exponent of zeros, and only the last one the exponent of
        # infinities.
        first_special, last_special = Signal(), Signal()
        byte = Signal(8)
        latest = Signal(8)
        exponent_write = Signal()
        error = Signal()
        repeated = Signal()
        # Whether the latest exponent is out of order. This is known two cycles later, when another one may have
        # been read.
        previous = Signal(8)
        following = Signal()
        excessive = Signal()
        disordered = Signal()
        m.d.comb += [
            byte.eq(unpacker.window),
            repeated.eq((count != 0) & (byte == latest)),
        ]
        centroid = Signal(table.format.fraction_bits)
        centroid_number = Signal(range(table.mantissas))
        centroid_write = Signal()

        # The number of bytes needed is known one cycle ahead, except for codes that come in several chunks.
        want = Signal.like(unpacker.want, init=1)
        m.d.comb += unpacker.want.eq(want)

        def fail():
            m.d.comb += [error.eq(1), unpacker.done.eq(1)]
            m.d.sync += [count.eq(0), want.eq(1), following.eq(0), excessive.eq(0), disordered.eq(0)]
            if table.sent:
                m.d.sync += centroid_number.eq(0)
            m.next = "Exponents"

        m.d.sync += [following.eq(0), excessive.eq(0), disordered.eq(excessive | (following & (latest < previous)))]
        with m.FSM():
            with m.State("Exponents"):
                m.d.comb += unpacker.allow.eq(~splitter.o.valid & ~disordered)
                m.d.sync += splitter.size.eq(table.code_size((count - 1)[:len(last_index)]))
                with m.If(unpacker.take):
                    m.d.sync += [latest.eq(byte), previous.eq(latest), following.eq((count != 0) & ~repeated),
                                 excessive.eq((count == table.exponents) & ~repeated),
                                 last_index.eq(count - 1), last_special.eq(byte.all())]
                    with m.If(count == 0):
                        m.d.sync += first_special.eq(~byte.any())
                    with m.If(repeated):
                        m.d.sync += count.eq(0)
                        m.next = "Align"
                        if table.sent:
                            m.d.sync += want.eq(table.format.fraction_bits // 8 + 1)
                            m.next = "Centroids"
                    with m.Else():
                        m.d.comb += exponent_write.eq(1)
                        m.d.sync += count.eq(count + 1)
                    with m.If(unpacker.stops):
                        fail()
                with m.If(disordered):
                    fail()
            if table.sent:
                with m.State("Centroids"):
                    self._elaborate_centroids(m, unpacker, want, centroid_number, centroid_write, centroid, fail)
                    with m.If(disordered):
                        fail()
            with m.State("Align"):
                m.d.comb += [unpacker.align.eq(1), unpacker.allow.eq(1)]
                with m.If(unpacker.take):
                    m.d.sync += want.eq(splitter.size)
                    m.next = "Codes"
                    with m.If(unpacker.stops):
                        fail()
                with m.If(disordered):
                    fail()
            with m.State("Codes"):
                m.d.comb += [
                    splitter.run.eq(1),
                    unpacker.allow.eq(splitter.allow),
                    unpacker.done.eq(splitter.ended),
                    error.eq(splitter.error),
                ]
                if table.width > 4 * self.words:
                    m.d.comb += unpacker.want.eq(splitter.want)
                with m.If(splitter.ended):
                    m.d.sync += want.eq(1)
                    m.next = "Exponents"

        # Look up exponents and mantissas and combine them.
        looked = Signal(data.StructLayout({"lanes": data.ArrayLayout(data.StructLayout({
            "sign": 1, "mantissa": table.mantissa_bits, "zero": 1}), lanes), "last": 1, "valid": 1}))
        looking = Signal()
        giving = Signal()
        beyond = Signal(lanes)
        m.d.comb += [
            giving.eq(self.o.ready | ~self.o.valid),
            looking.eq(giving | ~looked.valid),
            splitter.o.ready.eq(looking),
            self.o.payload.keep.eq(~0),
        ]
        misloaded = Signal()
        if table.loaded:
            word = self.load.payload
            m.d.comb += [
                self.load.ready.eq(1), centroid_write.eq(self.load.valid), centroid.eq(word.data),
                misloaded.eq(self.load.valid & (word.last ^ centroid_number.all())),
            ]
            with m.If(self.load.valid):
                m.d.sync += centroid_number.eq(Mux(word.last, 0, centroid_number + 1))
        # Tables are written one cycle late, so that the logic that computes their bytes is not in the path to the
        # memories. The first codes are looked up at least three cycles after that.
        exponent_entry = register(m, "exponent_entry", write=exponent_write, place=count, value=byte)
        centroid_entry = register(m, "centroid_entry", write=centroid_write, place=centroid_number, value=centroid)
        m.d.sync += self.error.eq(error | misloaded | (splitter.o.valid & looking & beyond.any()))
        with m.If(looking):
            m.d.sync += [looked.valid.eq(splitter.o.valid), looked.last.eq(splitter.o.payload.last)]
        with m.If(giving):
            m.d.sync += [self.o.valid.eq(looked.valid), self.o.payload.last.eq(looked.last)]
        for lane in range(lanes):
            code = Signal(data.StructLayout({
                "sign": 1, "mantissa": table.mantissa_bits, "exponent": (table.exponents - 1).bit_length(),
            }), name=f"code_{lane}")
            m.submodules[f"exponents_{lane}"] = memory = Memory(shape=8, depth=table.exponents, init=[])
            write = memory.write_port()
            read = memory.read_port()
            m.d.comb += [
                code.eq(splitter.o.payload.codes[lane]),
                beyond[lane].eq(code.exponent > last_index),
                write.addr.eq(exponent_entry.place), write.en.eq(exponent_entry.write),
                write.data.eq(exponent_entry.value),
                read.addr.eq(code.exponent), read.en.eq(looking),
            ]
            held = looked.lanes[lane]
            special = Signal(name=f"special_{lane}")
            m.d.comb += special.eq((first_special & ~code.exponent.any())
                                   | (last_special & (code.exponent == last_index)))
            with m.If(looking):
                m.d.sync += [
                    held.sign.eq(code.sign), held.mantissa.eq(code.mantissa),
                    held.zero.eq(special & ~code.mantissa.any()),
                ]
            zero = held.zero
            if table.centroids:
                m.submodules[f"centroids_{lane}"] = memory = Memory(
                    shape=table.format.fraction_bits, depth=table.mantissas, init=[])
                centroid_port = memory.write_port()
                fraction_port = memory.read_port()
                m.d.comb += [
                    centroid_port.addr.eq(centroid_entry.place), centroid_port.data.eq(centroid_entry.value),
                    centroid_port.en.eq(centroid_entry.write),
                    fraction_port.addr.eq(code.mantissa), fraction_port.en.eq(looking),
                ]
                fraction = Mux(zero, 0, fraction_port.data)
            else:
                dropped = table.format.fraction_bits - table.mantissa_bits
                middle = Cat(C(0, dropped - 1), ~zero) if dropped else Cat()
                fraction = Cat(middle, held.mantissa)
            with m.If(giving):
                m.d.sync += self.o.payload.elements[lane].eq(Cat(fraction, read.data, held.sign))
        return m

    def _elaborate_centroids(self, m, unpacker, want, number, write, value, fail):
        """Accept one centroid per cycle. A centroid has one bit less than a whole number of bytes, so each one leaves
        one more unused bit in the last byte."""
        bits = self._table.format.fraction_bits
        final = Signal()
        left = Signal(7)  # upper bits of the last byte taken
        shifted = Signal(bits + 8)
        m.d.comb += [
            final.eq(number.all()),
            shifted.eq(Cat(left, unpacker.window[:bits + 1])),
            value.eq(shifted >> ~number[:3]),
            unpacker.allow.eq(1),
        ]
        with m.If(unpacker.take):
            m.d.comb += write.eq(1)
            m.d.sync += [
                number.eq(number + 1), left.eq(unpacker.window[bits + 1 - 7:bits + 1]),
                want.eq(bits // 8 + (number[:3] != 6)),
            ]
            with m.If(final):
                m.next = "Align"
            with m.If(unpacker.stops):
                fail()
