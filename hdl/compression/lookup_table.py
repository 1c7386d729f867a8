# amaranth: UnusedElaboratable=no
# Codecs are made here by their parameters, and asked for latencies and widths even where nothing is elaborated.
"""Compression of weights by tables: exponents without loss, mantissas by a few representatives.

An element is taken apart. Its sign is sent as it is, its exponent as an index into the table of the exponents that
occur in its packet, and its fraction as the index of one of a few **mantissas**: bins of equal width, or centroids
that the host has chosen. Decoding is concatenation.

The exponent and the sign of every element are exact, whatever it is. A mantissa stands for any number in its bin,
except where the exponent is that of zeros and subnormal numbers, or that of infinities and NaNs: there index 0 is the
fraction of zero, and nothing else is given index 0. So zeros and infinities are exact, subnormal numbers do not
become zeros, and NaNs remain NaNs, if not the same ones.

A packet is the exponents in ascending order, one byte each, and the last of them once more, which tells that no
other follows; then the centroids, if there are any and decoders are not loaded with them, without gaps; and, from
the next word on, the codes as in :mod:`hdl.compression.planes`: sign, index of the mantissa, and as many bits of the
index of the exponent as its table needs, from the lowest bit on.
"""

from dataclasses import dataclass

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.nearest import Bounds
from hdl.compression.planes import GROUP, BytePacker, ByteUnpacker, GroupAssembler, GroupSplitter, word_count
from hdl.floating.format import FP32, FloatFormat
from hdl.floating.stages import register
from hdl.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["Decoder", "Encoder", "LookupTable"]

#: Highest bits of a fraction by which an encoder finds the nearest centroid.
_COMPARED = 12
#: Exponents that have their upper half in common.
_ROW = 16
_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class LookupTable:
    """Parameters of the format.

    Parameters
    ----------
    format : FloatFormat
        Of the elements: FP32 or BF16.
    mantissas : int
        Representatives of the fractions: 8, 16, 32, 64 or 128. With 128, bins of BF16 are without loss.
    centroids : bool
        Whether they are centroids, sent with every packet, or bins, of which the middle is taken.
    exponents : int
        Most exponents in a table: 16, 32, 64, 128 or 256; 256 are enough for any packet.
    loaded : bool
        Whether decoders are loaded with the centroids, which then are sent with no packet.
    """

    format: FloatFormat = FP32
    mantissas: int = 32
    centroids: bool = False
    exponents: int = 256
    loaded: bool = False

    def __post_init__(self):
        if not isinstance(self.format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {self.format!r}")
        if self.format.exponent_bits != 8 or self.format.fraction_bits not in (7, 23):
            raise ValueError(f"Format must be FP32 or BF16, not {self.format!r}")
        if self.mantissas not in (8, 16, 32, 64, 128):
            raise ValueError(f"Mantissa count must be 8, 16, 32, 64 or 128, not {self.mantissas!r}")
        if self.centroids not in (False, True):
            raise ValueError(f"Centroids must be True or False, not {self.centroids!r}")
        if self.exponents not in (16, 32, 64, 128, 256):
            raise ValueError(f"Exponent count must be 16, 32, 64, 128 or 256, not {self.exponents!r}")
        if self.loaded not in (False, self.centroids):
            raise ValueError(f"Loading must be False, or True with centroids, not {self.loaded!r}")

    @property
    def sent(self):
        """Whether centroids are sent with every packet."""
        return self.centroids and not self.loaded

    @property
    def mantissa_bits(self):
        """Width of the index of a mantissa."""
        return self.mantissas.bit_length() - 1

    @property
    def width(self):
        """Most bits of a code."""
        return self.code_width(self.exponents)

    @property
    def compared_bits(self):
        """Highest bits of a fraction by which its centroid is found."""
        return min(self.format.fraction_bits, _COMPARED)

    @property
    def load_length(self):
        """Words that an encoder is loaded with: the bounds between centroids, and the centroids as they are sent."""
        sent = -(-self.mantissas * self.format.fraction_bits // 32) if self.sent else 0
        return self.mantissas - 1 + sent

    def code_width(self, exponents):
        """Bits of a code in a packet with so many distinct exponents."""
        return 1 + self.mantissa_bits + (exponents - 1).bit_length()

    def bits(self, count, exponents):
        """Bits of so many elements and their tables, as formulas have it: without the end of the table."""
        centroids = self.mantissas * self.format.fraction_bits if self.sent else 0
        return count * self.code_width(exponents) + 8 * exponents + centroids

    def words(self, count, exponents):
        """Words of a packet of so many elements with so many distinct exponents."""
        preamble = self.bits(0, exponents) + 8
        return -(-preamble // 32) + self.code_width(exponents) * -(-count // GROUP)

    def create_encoder(self, *, lanes):
        """An encoder of this format."""
        return Encoder(table=self, lanes=lanes)

    def create_decoder(self, *, lanes):
        """A decoder of this format."""
        return Decoder(table=self, lanes=lanes)


def _check_table(table):
    if not isinstance(table, LookupTable):
        raise TypeError(f"Table must be a LookupTable, not {table!r}")


def _lowest(bits):
    """The lowest one of some bits, alone."""
    return Cat(bit & ~bits[:place].any() for place, bit in enumerate(bits))


def _index(one_hot):
    """The number of the bit that is set."""
    places = range((len(one_hot) - 1).bit_length())
    return Cat(Cat(bit for number, bit in enumerate(one_hot) if number >> place & 1).any() for place in places)


def _bit_length(value):
    """Bits that a number needs: none for zero."""
    return sum(value[place:].any() for place in range(len(value)))


def _is_special(exponent):
    """Whether it is the exponent of zeros or of infinities."""
    return ~exponent.any() | exponent.all()


class _ExponentSet(wiring.Component):
    """Collect which exponents occur in a packet, and then give them as rows of bits.

    One beat is taken per cycle. Each lane has its own rows, in LUT memory, and sets one bit per cycle; a row that is
    given is the union of all lanes', and is cleared. After a reset it takes as many cycles as there are rows to clear
    them.

    Parameters
    ----------
    lanes : int
    format : FloatFormat

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    full : Out(1)
        A packet is complete. Until :attr:`done`, no other is taken.
    row : In(range(16))
        Row to be given.
    bits : Out(16)
        Exponents of that row which occur.
    clear : In(1)
        Clear the row.
    done : In(1)
        Begin anew, with the next cycle.
    """

    def __init__(self, *, lanes, format):
        self._lanes = lanes
        self._format = format
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes, format.width))), "full": Out(1),
            "row": In(range(_ROWS)), "bits": Out(_ROW), "clear": In(1), "done": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        fraction_bits = self._format.fraction_bits
        clearing = Signal(init=1)
        row = Signal(range(_ROWS))
        open_ = Signal(name="open")
        ending = Signal()
        union = []
        m.d.comb += self.i.ready.eq(open_)
        m.d.sync += ending.eq(self.i.valid & open_ & self.i.payload.last)
        with m.If(clearing):
            m.d.sync += row.eq(row + 1)
            with m.If(row == _ROWS - 1):
                m.d.sync += [clearing.eq(0), open_.eq(1)]
        with m.If(self.i.valid & open_ & self.i.payload.last):
            m.d.sync += open_.eq(0)
        with m.If(ending):
            m.d.sync += self.full.eq(1)
        with m.If(self.done):
            m.d.sync += [self.full.eq(0), open_.eq(1)]
        for lane in range(self._lanes):
            m.submodules[f"rows_{lane}"] = memory = Memory(shape=_ROW, depth=_ROWS, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            exponent = Signal(8, name=f"exponent_{lane}")
            present = Signal(name=f"present_{lane}")
            m.d.sync += [
                exponent.eq(self.i.payload.elements[lane][fraction_bits:-1]),
                present.eq(self.i.valid & open_ & self.i.payload.keep[lane]),
            ]
            m.d.comb += [
                read.addr.eq(Mux(present, exponent[4:], self.row)),
                write.addr.eq(Mux(clearing, row, read.addr)),
                write.en.eq(clearing | present | self.clear),
                write.data.eq(Mux(present, read.data | Cat(exponent[:4] == place for place in range(_ROW)), 0)),
            ]
            union.append(read.data)
        while len(union) > 1:
            union = [left | right for left, right in zip(union[::2], union[1::2], strict=True)]
        m.d.comb += self.bits.eq(union[0])
        return m


class _CentroidStore(wiring.Component):
    """What the host has loaded: bounds, which are passed on to those who compare, and centroids as they are sent, if
    they are.

    Parameters
    ----------
    table : LookupTable

    Members
    -------
    load : In(stream of {data, last})
    open : In(1)
        Words may be taken.
    busy : Out(1)
        A load has begun.
    write : Out(levels)
        One-hot: the level whose bound is written.
    number : Out(mantissa_bits)
        Number of the bound, from 1 on.
    bound : Out(compared_bits)
    step : In(1)
        Go on to the next word of the centroids, or to the first one.
    word : Out(32)
    final : Out(1)
        It is the last one.
    error : Out(1)
    """

    def __init__(self, *, table):
        self._table = table
        bits = table.mantissa_bits
        super().__init__({
            "load": In(stream.Signature(word_layout())), "open": In(1), "busy": Out(1),
            "write": Out(bits), "number": Out(bits), "bound": Out(table.compared_bits),
            "step": In(1), "word": Out(32), "final": Out(1), "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        table = self._table
        bits = table.mantissa_bits
        length = table.load_length
        count = length - (table.mantissas - 1)

        # Of the word to be loaded; the one behind the last stands for all that are too many.
        number = Signal(range(1, length + 2), init=1)
        take = Signal()
        is_bound = Signal()
        m.d.comb += [
            self.load.ready.eq(self.open),
            take.eq(self.load.valid & self.open),
            self.busy.eq(number != 1),
            is_bound.eq(number < table.mantissas),
            self.number.eq(number),
            self.bound.eq(self.load.payload.data),
            *(self.write[level].eq(take & is_bound & number[bits - 1 - level] & ~number[:bits - 1 - level].any())
              for level in range(bits)),
        ]
        m.d.sync += self.error.eq(take & self.load.payload.last & (number != length))
        with m.If(take):
            with m.If(self.load.payload.last):
                m.d.sync += number.eq(1)
            with m.Elif(number != length + 1):
                m.d.sync += number.eq(number + 1)
        if count:
            m.submodules.words = memory = Memory(shape=32, depth=count, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(number - table.mantissas),
                write.data.eq(self.load.payload.data),
                write.en.eq(take & ~is_bound & (number != length + 1)),
                self.word.eq(read.data),
                self.final.eq(read.addr == count - 1),
            ]
            with m.If(self.step):
                m.d.sync += read.addr.eq(Mux(self.final, 0, read.addr + 1))
        return m


class Encoder(wiring.Component):
    """Compress packets of elements, each of which is streamed twice.

    The first time, on ``scan``, its exponents are collected; the second time, on ``i``, its elements are encoded. No
    element is stored. The two may overlap: while one packet is encoded, the next one is scanned, and who writes the
    weights to their memory may as well scan them on their way, so that they are read but once.

    One beat per cycle is taken on either port. From the last beat of its scan to its first element a packet takes
    four cycles, and of the 16 rows of 16 exponents each one, or as many as exponents of it occur. What is sent in
    front of the codes takes one cycle per exponent, and one for each four bytes of centroids. The last group is
    filled up to 32 elements, in as many cycles as if they were given. The first beat that an eight of codes completes
    is offered :attr:`latency` cycles after its last element was accepted. ``i.ready`` depends combinationally on
    ``o.ready``, and no other ready on any input.

    Parameters
    ----------
    table : LookupTable
    lanes : int
        Elements per beat: 1, 2, 4 or 8.

    Members
    -------
    scan, i : In(stream of beat_layout(lanes, table.format.width))
    load : In(stream of {data, last})
        Only with centroids: :attr:`LookupTable.load_length` words, in between packets. The bounds between centroids,
        in the highest bits of a fraction that are compared, and the centroids as they are sent, if they are.
    o : Out(stream of beat_layout(words))
    error : Out(1)
        Pulse: there are too many exponents, or one that the scan has not seen, or a wrong number of words was loaded.
    """

    def __init__(self, *, table, lanes):
        _check_table(table)
        check_lanes(lanes)
        self._table = table
        self._lanes = lanes
        elements = stream.Signature(beat_layout(lanes, table.format.width))
        super().__init__({
            "scan": In(elements), "i": In(elements),
            **({"load": In(stream.Signature(word_layout()))} if table.centroids else {}),
            "o": Out(stream.Signature(beat_layout(self.words))), "error": Out(1),
        })

    @property
    def table(self):
        """Parameters of the format."""
        return self._table

    @property
    def lanes(self):
        """Elements per beat."""
        return self._lanes

    @property
    def words(self):
        """Words per beat of the output."""
        return word_count(self._lanes, self._table.width)

    @property
    def stages(self):
        """Registers between the input and the codes, the input's own not counted."""
        return self._table.mantissa_bits if self._table.centroids else 2

    @property
    def latency(self):
        """Cycles from the beat that completes eight codes to the offer of a beat which their first bytes complete."""
        assembler = GroupAssembler(lanes=self._lanes, width=self._table.width)
        return 1 + self.stages + assembler.latency + BytePacker.latency

    def elaborate(self, platform):
        m = Module()
        table, lanes = self._table, self._lanes
        m.submodules.exponents = exponents = _ExponentSet(lanes=lanes, format=table.format)
        m.submodules.assembler = assembler = GroupAssembler(lanes=lanes, width=table.width)
        m.submodules.packer = packer = BytePacker(words=self.words)
        store = None
        if table.centroids:
            m.submodules.store = store = _CentroidStore(table=table)
            connect_stream(m, self.load, store.load)
        connect_stream(m, self.scan, exponents.i)
        connect_stream(m, packer.o, self.o)

        # Rows of exponents, and how many there are below each row.
        rows = Signal(data.StructLayout({"bits": _ROW, "below": 8}))
        row = Signal(range(_ROWS))
        fresh = Signal()
        accepting = Signal()
        unknown = self._elaborate_codes(m, assembler, store, accepting, row, rows, fresh)

        # The preamble: walk through the rows, and give a byte for each bit.
        bits = Signal(_ROW)
        lowest = Signal(_ROW)
        rest = Signal(_ROW)
        total = Signal(range(257))
        latest = Signal(8)
        following = Signal(range(_ROWS + 1))
        load_row = Signal()
        too_many = Signal()
        m.d.comb += [
            lowest.eq(_lowest(bits)),
            rest.eq(bits & ~lowest),
            exponents.row.eq(following),
            exponents.clear.eq(load_row),
            rows.bits.eq(bits),
            rows.below.eq(total),
        ]
        m.d.sync += [
            fresh.eq(load_row), too_many.eq(0),
            self.error.eq(unknown | too_many | (store.error if store is not None else 0)),
        ]
        with m.If(fresh):
            m.d.sync += total.eq(total + sum(bits))

        with m.FSM():
            with m.State("Idle"):
                start = exponents.full
                if store is not None:
                    m.d.comb += store.open.eq(~exponents.full | store.busy)
                    start = start & ~store.busy
                m.d.sync += [following.eq(0), total.eq(0), bits.eq(0)]
                with m.If(start):
                    m.next = "Walk"
            with m.State("Walk"):
                m.d.comb += [
                    packer.i.valid.eq(bits.any()),
                    packer.i.payload.data.eq(Cat(_index(lowest), row)),
                    packer.i.payload.count.eq(1),
                ]
                with m.If(bits.any()):
                    m.d.sync += latest.eq(Cat(_index(lowest), row))
                    with m.If(packer.i.ready):
                        m.d.sync += bits.eq(rest)
                with m.If(~bits.any() | (packer.i.ready & ~rest.any())):
                    with m.If(following == _ROWS):
                        m.d.comb += exponents.done.eq(1)
                        m.d.sync += accepting.eq(1)
                        m.next = "End"
                    with m.Else():
                        m.d.comb += load_row.eq(1)
            with m.State("End"):
                last_index = Signal(8)
                m.d.comb += [
                    last_index.eq(total - 1),
                    packer.i.valid.eq(1),
                    packer.i.payload.data.eq(latest),
                    packer.i.payload.count.eq(1),
                    packer.i.payload.align.eq(not table.sent),
                ]
                index_bits = (table.exponents - 1).bit_length()
                m.d.sync += assembler.size.eq(1 + table.mantissa_bits + _bit_length(last_index[:index_bits]))
                with m.If(packer.i.ready):
                    m.d.sync += too_many.eq(total > table.exponents)
                    m.next = "Centroids" if table.sent else "Codes"
            if table.sent:
                rest_length = (table.mantissas * table.format.fraction_bits // 8 - 1) % 4 + 1
                with m.State("Centroids"):
                    m.d.comb += [
                        packer.i.valid.eq(1),
                        packer.i.payload.data.eq(store.word),
                        packer.i.payload.count.eq(Mux(store.final, rest_length, 4)),
                        packer.i.payload.align.eq(store.final),
                        store.step.eq(packer.i.ready),
                    ]
                    with m.If(packer.i.ready & store.final):
                        m.next = "Codes"
            with m.State("Codes"):
                connect_stream(m, assembler.o, packer.i)
                with m.If(packer.i.valid & packer.i.ready & packer.i.payload.last):
                    m.next = "Idle"
        with m.If(load_row):
            m.d.sync += [bits.eq(exponents.bits), row.eq(following), following.eq(following + 1)]
        return m

    def _elaborate_codes(self, m, assembler, store, accepting, row, rows, fresh):
        """From elements to codes, several registers deep, each of which has its own valid bit.

        Returns
        -------
        Value
            An exponent that the scan has not seen leaves the last register.
        """
        table, lanes = self._table, self._lanes
        format = table.format

        # Hold one beat. The last one of a packet is held, without elements, until its group is whole.
        held = Signal(self.i.payload.shape())
        valid = Signal()
        beat = Signal(range(GROUP // lanes))
        closing = Signal()
        free = [Signal(name=f"free_{stage}") for stage in range(self.stages + 1)]
        m.d.comb += [
            closing.eq(beat.all()),
            self.i.ready.eq(accepting & (~valid | (free[0] & (closing | ~held.last)))),
        ]
        with m.If(valid & free[0]):
            m.d.sync += [beat.eq(beat + 1), valid.eq(held.last & ~closing), held.keep.eq(0)]
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.payload), valid.eq(self.i.valid)]
        with m.If(self.i.valid & self.i.ready & self.i.payload.last):
            m.d.sync += accepting.eq(0)

        # What goes from register to register.
        lane_layout = data.StructLayout({
            "keep": 1, "sign": 1, "zero": 1, "special": 1,
            "fraction": table.compared_bits, "node": table.mantissa_bits, "exponent": 8,
        })
        layout = data.StructLayout({"lanes": data.ArrayLayout(lane_layout, lanes), "last": 1, "valid": 1})
        stages = [Signal(layout, name=f"stage_{stage}") for stage in range(self.stages)]
        found = [Signal(rows.shape(), name=f"found_{lane}") for lane in range(lanes)]
        given = Signal(layout)
        m.d.comb += [given.valid.eq(valid), given.last.eq(held.last & closing)]
        for lane in range(lanes):
            element = Signal(format.layout, name=f"element_{lane}")
            m.d.comb += [
                element.eq(held.elements[lane]),
                given.lanes[lane].keep.eq(held.keep[lane]),
                given.lanes[lane].sign.eq(element.sign),
                given.lanes[lane].zero.eq(~element.fraction.any()),
                given.lanes[lane].special.eq(_is_special(element.exponent)),
                given.lanes[lane].fraction.eq(element.fraction[-table.compared_bits:]),
                given.lanes[lane].exponent.eq(element.exponent),
            ]
            if not table.centroids:
                m.d.comb += given.lanes[lane].node.eq(element.fraction[-table.mantissa_bits:])
            m.submodules[f"index_{lane}"] = memory = Memory(shape=rows.shape(), depth=_ROWS, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(row), write.data.eq(rows), write.en.eq(fresh),
                read.addr.eq(element.exponent[4:]),
            ]
            with m.If(free[0]):
                m.d.sync += found[lane].eq(read.data)

        unknown = []
        for number, stage in enumerate(stages):
            before = stages[number - 1] if number else given
            m.d.comb += free[number].eq(free[number + 1] | ~stage.valid)
            with m.If(free[number]):
                m.d.sync += stage.eq(before)
            above = None
            if table.centroids:
                level = number
                m.submodules[f"bounds_{level}"] = bounds = Bounds(
                    lanes=lanes, level=level, width=table.compared_bits)
                m.d.comb += [
                    bounds.write.eq(store.write[level]),
                    bounds.address.eq(store.number[table.mantissa_bits - level:]),
                    bounds.bound.eq(store.bound),
                ]
                above = bounds.above
            for lane in range(lanes):
                target, source = stage.lanes[lane], before.lanes[lane]
                if above is not None:
                    m.d.comb += [
                        bounds.numbers[lane].eq(source.fraction),
                        bounds.nodes[lane].eq(source.node),
                    ]
                    with m.If(free[number]):
                        m.d.sync += target.node.eq(Cat(above[lane], source.node))
                if number == 1:
                    # The number of exponents in the row that are below this one, and of those in the rows below.
                    upto = Signal(_ROW, name=f"upto_{lane}")
                    m.d.comb += upto.eq(Cat(source.exponent[:4] > place for place in range(_ROW)))
                    with m.If(free[number]):
                        m.d.sync += target.exponent.eq(found[lane].below + sum(found[lane].bits & upto))
                    known = Signal(name=f"known_{lane}")
                    m.d.comb += known.eq(found[lane].bits.bit_select(source.exponent[:4], 1))
                    unknown.append(before.valid & free[number] & source.keep & ~known)

        result = stages[-1]
        m.d.comb += [
            assembler.i.valid.eq(result.valid),
            assembler.i.payload.last.eq(result.last),
            free[self.stages].eq(assembler.i.ready),
        ]
        for lane in range(lanes):
            source = result.lanes[lane]
            mantissa = Signal(table.mantissa_bits, name=f"mantissa_{lane}")
            # Where the fraction of zero has the index 0, nothing else has.
            m.d.comb += [
                mantissa.eq(Mux(source.special, Mux(source.zero, 0, Cat(source.node[0] | ~source.node.any(),
                                                                        source.node[1:])), source.node)),
                assembler.i.payload.codes[lane].eq(
                    Mux(source.keep, Cat(source.sign, mantissa, source.exponent), 0)),
            ]
        return Cat(unknown).any()


class Decoder(wiring.Component):
    """Expand packets, in whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. In a packet, one beat is given per cycle
    and no bubble is between groups, as long as words come. The exponents and the centroids take one cycle each, and
    two more. They are read when the codes of the packet before have been taken to be looked up. ``i.ready``
    depends combinationally on ``o.ready``.

    A malformed packet raises ``error``, and the next one is sound again. Where its tables are cut short or out of
    order, it gives nothing. Where it ends within a group, the output ends with the eight in which that is, and what
    is missing there is unspecified. Where an index is beyond its table, the exponent is unspecified.

    Parameters
    ----------
    table : LookupTable
    lanes : int
        Elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(words))
    load : In(stream of {data, last})
        Only with centroids that are not sent: as many words as there are mantissas, each the fraction of one, in
        ascending order. Taken at any time, and effective at once.
    o : Out(stream of beat_layout(lanes, table.format.width))
    error : Out(1)
        Pulse: this packet is malformed, or a wrong number of words was loaded.
    """

    #: Cycles from the acceptance of the beat that completes eight codes to the offer of their first elements.
    latency = ByteUnpacker.latency + GroupSplitter.latency + 2

    def __init__(self, *, table, lanes):
        _check_table(table)
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
        """Parameters of the format."""
        return self._table

    @property
    def lanes(self):
        """Elements per beat."""
        return self._lanes

    @property
    def words(self):
        """Words per beat of the input."""
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
        # Of exponents in ascending order, only the first may be that of zeros, and the last that of infinities.
        first_special, last_special = Signal(), Signal()
        byte = Signal(8)
        latest = Signal(8)
        exponent_write = Signal()
        error = Signal()
        repeated = Signal()
        # The exponent taken last was not to follow. This is known two cycles later, when another may have been taken.
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

        # What is wanted is known one cycle ahead, apart from codes that come in several chunks.
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
                m.d.sync += splitter.size.eq(1 + table.mantissa_bits + _bit_length((count - 1)[:len(last_index)]))
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

        # Look up, and join.
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
        # Tables are written a cycle late, so that what takes their bytes need not reach as far as their memories. The
        # first codes are looked up three cycles after that, or more.
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
        """One centroid per cycle. Of each byte it takes, one bit more is left for the next one than before."""
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
