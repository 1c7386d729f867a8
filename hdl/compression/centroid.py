# amaranth: UnusedElaboratable=no
# Codecs are made here by their parameters, and asked for latencies and widths even where nothing is elaborated.
"""Weights as indices into a table of centroids, and products with them that need no weights.

A packet is the table, one word per centroid, unless decoders are loaded with it, and the indices, packed as in
:mod:`hdl.compression.planes`. A decoder expands them to the centroids they stand for. A matrix is better not
expanded: to each output, all inputs that meet the same centroid are added up first, and those few sums are
multiplied.
"""

from dataclasses import dataclass

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.planes import GROUP, BytePacker, ByteUnpacker, GroupAssembler, GroupSplitter, word_count
from hdl.floating.stages import register
from hdl.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["CentroidTable", "Decoder", "Encoder", "MatrixVector", "column_layout"]


@dataclass(frozen=True, kw_only=True)
class CentroidTable:
    """Parameters of the format.

    Parameters
    ----------
    centroids : int
        Of a table: 4, 8, 16, 32 or 64.
    loaded : bool
        Whether decoders are loaded with the table, which then is sent with no packet.
    """

    centroids: int = 16
    loaded: bool = False

    def __post_init__(self):
        if self.centroids not in (4, 8, 16, 32, 64):
            raise ValueError(f"Centroid count must be 4, 8, 16, 32 or 64, not {self.centroids!r}")
        if self.loaded not in (False, True):
            raise ValueError(f"Loading must be True or False, not {self.loaded!r}")

    @property
    def index_bits(self):
        """Width of an index."""
        return self.centroids.bit_length() - 1

    @property
    def table_words(self):
        """Words of the table in each packet."""
        return 0 if self.loaded else self.centroids

    def bits(self, count):
        """Bits of so many weights and their table."""
        return count * self.index_bits + 32 * self.table_words

    def words(self, count):
        """Words of a packet of so many weights."""
        return self.table_words + self.index_bits * -(-count // GROUP)

    def create_encoder(self, *, lanes):
        """An encoder of this format."""
        return Encoder(table=self, lanes=lanes)

    def create_decoder(self, *, lanes, expand=True):
        """A decoder of this format."""
        return Decoder(table=self, lanes=lanes, expand=expand)


def _check_table(table):
    if not isinstance(table, CentroidTable):
        raise TypeError(f"Table must be a CentroidTable, not {table!r}")


class Encoder(wiring.Component):
    """Make packets of tables and indices.

    A word of the table or a beat of indices is taken per cycle; what the last group lacks is filled with index 0, in
    as many cycles as if it were given. ``table.ready`` and ``i.ready`` depend combinationally on ``o.ready``. The
    first beat of indices is offered :attr:`latency` cycles after the beat that completes it was accepted.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Indices per beat: 1, 2, 4 or 8.

    Members
    -------
    table : In(stream of {data, last})
        Of each packet, as many words as there are centroids. Zeros take the place of those that lack, and those
        beyond are discarded. There is none where decoders are loaded.
    i : In(stream of beat_layout(lanes, table.index_bits))
    o : Out(stream of beat_layout(words))
    error : Out(1)
        Pulse: a table was of another length.
    """

    def __init__(self, *, table, lanes):
        _check_table(table)
        check_lanes(lanes)
        self._parameters = table
        self._lanes = lanes
        super().__init__({
            **({} if table.loaded else {"table": In(stream.Signature(word_layout()))}),
            "i": In(stream.Signature(beat_layout(lanes, table.index_bits))),
            "o": Out(stream.Signature(beat_layout(self.words))),
            "error": Out(1),
        })

    @property
    def parameters(self):
        """Parameters of the format."""
        return self._parameters

    @property
    def lanes(self):
        """Indices per beat."""
        return self._lanes

    @property
    def words(self):
        """Words per beat of the output."""
        return word_count(self._lanes, self._parameters.index_bits)

    @property
    def latency(self):
        """Cycles from the beat that completes eight indices to the offer of a beat of words which they complete."""
        assembler = GroupAssembler(lanes=self._lanes, width=self._parameters.index_bits)
        return 1 + assembler.latency + BytePacker.latency

    def elaborate(self, platform):
        m = Module()
        lanes, width = self._lanes, self._parameters.index_bits
        m.submodules.assembler = assembler = GroupAssembler(lanes=lanes, width=width)
        m.submodules.packer = packer = BytePacker(words=self.words)
        connect_stream(m, packer.o, self.o)

        # Hold one beat. The last one of a packet is held, without indices, until its group is whole.
        held = Signal(self.i.payload.shape())
        valid = Signal()
        beat = Signal(range(GROUP // lanes))
        closing = Signal()
        move = Signal()
        m.d.comb += [
            closing.eq(beat.all()),
            move.eq(valid & assembler.i.ready),
            self.i.ready.eq(~valid | (assembler.i.ready & (closing | ~held.last))),
            assembler.size.eq(width),
            assembler.i.valid.eq(valid),
            assembler.i.payload.last.eq(held.last & closing),
            *(assembler.i.payload.codes[lane].eq(Mux(held.keep[lane], held.elements[lane], 0))
              for lane in range(lanes)),
        ]
        with m.If(move):
            m.d.sync += [beat.eq(beat + 1), valid.eq(held.last & ~closing), held.keep.eq(0)]
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.payload), valid.eq(self.i.valid)]

        if self._parameters.loaded:
            connect_stream(m, assembler.o, packer.i)
            return m

        place = Signal(range(self._parameters.centroids))
        m.d.sync += self.error.eq(0)

        def give(word, valid):
            m.d.comb += [packer.i.valid.eq(valid), packer.i.payload.data.eq(word), packer.i.payload.count.eq(4)]

        with m.FSM():
            with m.State("Table"):
                give(self.table.payload.data, self.table.valid)
                m.d.comb += self.table.ready.eq(packer.i.ready)
                with m.If(self.table.valid & packer.i.ready):
                    m.d.sync += [place.eq(place + 1), self.error.eq(self.table.payload.last ^ place.all())]
                    with m.If(place.all()):
                        m.next = "Indices"
                        with m.If(~self.table.payload.last):
                            m.next = "Rest"
                    with m.Elif(self.table.payload.last):
                        m.next = "Fill"
            with m.State("Fill"):
                give(0, 1)
                with m.If(packer.i.ready):
                    m.d.sync += place.eq(place + 1)
                    with m.If(place.all()):
                        m.next = "Indices"
            with m.State("Rest"):
                m.d.comb += self.table.ready.eq(1)
                with m.If(self.table.valid & self.table.payload.last):
                    m.next = "Indices"
            with m.State("Indices"):
                connect_stream(m, assembler.o, packer.i)
                with m.If(packer.i.valid & packer.i.ready & packer.i.payload.last):
                    m.next = "Table"
        return m


class Decoder(wiring.Component):
    """Expand packets to the centroids that their indices stand for, in whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. A word of the table takes a cycle; then
    one beat is given per cycle, as long as words come. A table is read when the indices of the packet before have
    been taken to be looked up. ``i.ready`` depends combinationally on ``o.ready``.

    A packet that ends within its table or within a group raises ``error``, and the next one is sound again. The
    first gives nothing, the second ends with the eight in which the packet does, where what is missing is
    unspecified.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Elements per beat: 1, 2, 4 or 8.
    expand : bool
        Otherwise the indices are given themselves, and the centroids apart, before them.

    Members
    -------
    i : In(stream of beat_layout(words))
    load : In(stream of {data, last})
        Only if loaded and expanded: as many words as there are centroids. Taken at any time, and effective at once.
    o : Out(stream of beat_layout(lanes)), or of beat_layout(lanes, table.index_bits) if not expanded
    table : Out(stream of {data, last})
        Only if neither loaded nor expanded. A table that is cut short is given up to where it is.
    error : Out(1)
        Pulse: this packet is malformed, or a wrong number of words was loaded.
    """

    #: Cycles from the acceptance of the beat that completes eight indices to the offer of their first elements.
    latency = ByteUnpacker.latency + GroupSplitter.latency + 2

    def __init__(self, *, table, lanes, expand=True):
        _check_table(table)
        check_lanes(lanes)
        if expand not in (False, True):
            raise ValueError(f"Expansion must be True or False, not {expand!r}")
        self._parameters = table
        self._lanes = lanes
        self._expand = expand
        super().__init__({
            "i": In(stream.Signature(beat_layout(self.words))),
            **({"load": In(stream.Signature(word_layout()))} if table.loaded and expand else {}),
            "o": Out(stream.Signature(beat_layout(lanes, 32 if expand else table.index_bits))),
            **({} if table.loaded or expand else {"table": Out(stream.Signature(word_layout()))}),
            "error": Out(1),
        })

    @property
    def parameters(self):
        """Parameters of the format."""
        return self._parameters

    @property
    def lanes(self):
        """Elements per beat."""
        return self._lanes

    @property
    def words(self):
        """Words per beat of the input."""
        return word_count(self._lanes, self._parameters.index_bits)

    def elaborate(self, platform):
        m = Module()
        lanes, width = self._lanes, self._parameters.index_bits
        m.submodules.unpacker = unpacker = ByteUnpacker(words=self.words)
        m.submodules.splitter = splitter = GroupSplitter(lanes=lanes, width=width)
        connect_stream(m, self.i, unpacker.i)
        m.d.comb += [
            splitter.window.eq(unpacker.window),
            splitter.enough.eq(unpacker.enough),
            splitter.stops.eq(unpacker.stops),
            splitter.take.eq(unpacker.take),
            splitter.size.eq(width),
        ]

        place = Signal(range(self._parameters.centroids))
        room = Signal()
        error = Signal()
        table_take = Signal()
        entry = Signal(32)
        m.d.sync += self.error.eq(error)
        if self._parameters.loaded:
            m.d.comb += [
                splitter.run.eq(1),
                unpacker.want.eq(splitter.want),
                unpacker.allow.eq(splitter.allow),
                unpacker.done.eq(splitter.ended),
                error.eq(splitter.error),
            ]
            if self._expand:
                word = self.load.payload
                m.d.comb += [
                    self.load.ready.eq(1), table_take.eq(self.load.valid), entry.eq(word.data),
                    error.eq(splitter.error | (self.load.valid & (word.last ^ place.all()))),
                ]
                with m.If(self.load.valid):
                    m.d.sync += place.eq(Mux(word.last, 0, place + 1))
        else:
            m.d.comb += [table_take.eq(unpacker.take & ~splitter.run), entry.eq(unpacker.window)]
            self._elaborate_packets(m, unpacker, splitter, place, room, error)
        m.d.comb += self.o.payload.keep.eq(~0)

        # Look up, and give.
        looked = Signal(data.StructLayout({"last": 1, "valid": 1}))
        looking = Signal()
        giving = Signal()
        m.d.comb += [
            giving.eq(self.o.ready | ~self.o.valid),
            looking.eq(giving | ~looked.valid),
            splitter.o.ready.eq(looking),
        ]
        with m.If(looking):
            m.d.sync += [looked.valid.eq(splitter.o.valid), looked.last.eq(splitter.o.payload.last)]
        with m.If(giving):
            m.d.sync += [self.o.valid.eq(looked.valid), self.o.payload.last.eq(looked.last)]
        if not self._expand and not self._parameters.loaded:
            m.d.comb += room.eq(self.table.ready | ~self.table.valid)
            with m.If(room):
                m.d.sync += [
                    self.table.valid.eq(table_take),
                    self.table.payload.data.eq(unpacker.window),
                    self.table.payload.last.eq(place.all() | unpacker.stops),
                ]
        else:
            m.d.comb += room.eq(1)
        for lane in range(lanes):
            if self._expand:
                m.submodules[f"centroids_{lane}"] = memory = Memory(
                    shape=32, depth=self._parameters.centroids, init=[])
                write = memory.write_port()
                read = memory.read_port()
                m.d.comb += [
                    write.addr.eq(place), write.data.eq(entry), write.en.eq(table_take),
                    read.addr.eq(splitter.o.payload.codes[lane]), read.en.eq(looking),
                ]
                element = read.data
            else:
                element = Signal(width, name=f"index_{lane}")
                with m.If(looking):
                    m.d.sync += element.eq(splitter.o.payload.codes[lane])
            with m.If(giving):
                m.d.sync += self.o.payload.elements[lane].eq(element)
        return m

    def _elaborate_packets(self, m, unpacker, splitter, place, room, error):
        """Take packets apart: the table, and then the indices."""
        with m.FSM():
            with m.State("Table"):
                m.d.comb += [
                    unpacker.want.eq(4),
                    unpacker.allow.eq(~splitter.o.valid & room),
                ]
                with m.If(unpacker.take):
                    m.d.sync += place.eq(place + 1)
                    with m.If(place.all()):
                        m.next = "Indices"
                    with m.If(unpacker.stops):
                        m.d.comb += [error.eq(1), unpacker.done.eq(1)]
                        m.d.sync += place.eq(0)
                        m.next = "Table"
            with m.State("Indices"):
                m.d.comb += [
                    splitter.run.eq(1),
                    unpacker.want.eq(splitter.want),
                    unpacker.allow.eq(splitter.allow),
                    unpacker.done.eq(splitter.ended),
                    error.eq(splitter.error),
                ]
                with m.If(splitter.ended):
                    m.next = "Table"


def column_layout(lanes, index_bits, input_width):
    """Payload of a matrix in columns: one input, the index of its weight for each lane's output, and ``last``, which
    is on the last column."""
    return data.StructLayout({
        "input": signed(input_width), "indices": data.ArrayLayout(index_bits, lanes), "last": 1})


class MatrixVector(wiring.Component):
    """Products of rows of centroid weights and a vector of integers, a row in each lane.

    Each lane adds an input to the sum of those with the same index. When the last column is in, its sums are
    multiplied with the centroids, one per cycle and each lane in a multiplier of its own, while the next rows go into
    a second set of sums. Results are exact where all sums fit ``accumulator_width`` bits; they wrap.

    One column is taken per cycle, without bubbles between rows of at least as many columns as there are centroids and
    :attr:`overhead`, if results are taken at once. A result is offered :attr:`latency` cycles after the last column
    was accepted. No ready depends combinationally on any input. After a reset, the sums are cleared first, in as many
    cycles as there are centroids.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Outputs that are computed together: 1, 2, 4 or 8.
    input_width : int
        Bits of an input, 2 to 18; signed, as all numbers are.
    centroid_width : int
        Bits of a centroid, 2 to 18.
    accumulator_width : int
        Bits of a sum, 18 to 35, and no fewer than those of an input.

    Members
    -------
    table : In(stream of {centroid, last})
        Taken in between products.
    i : In(stream of column_layout(lanes, table.index_bits, input_width))
    o : Out(stream of lanes of signed(accumulator_width + centroid_width))
    multiplied : Out(1)
        Pulse: each lane has multiplied once.
    error : Out(1)
        Pulse: a table was not of as many centroids as it has to be.
    """

    #: Columns that a row needs beyond the number of centroids, so that no bubble follows.
    overhead = 5

    def __init__(self, *, table, lanes, input_width=16, centroid_width=16, accumulator_width=32):
        _check_table(table)
        check_lanes(lanes)
        for name, value, least, most in (("Input", input_width, 2, 18), ("Centroid", centroid_width, 2, 18),
                                         ("Accumulator", accumulator_width, 18, 35)):
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} width must be an integer between {least} and {most}, not {value!r}")
        self._parameters = table
        self._lanes = lanes
        self._widths = input_width, centroid_width, accumulator_width
        super().__init__({
            "table": In(stream.Signature(data.StructLayout({"centroid": signed(centroid_width), "last": 1}))),
            "i": In(stream.Signature(column_layout(lanes, table.index_bits, input_width))),
            "o": Out(stream.Signature(data.ArrayLayout(signed(accumulator_width + centroid_width), lanes))),
            "multiplied": Out(1), "error": Out(1),
        })

    @property
    def parameters(self):
        """Parameters of the format."""
        return self._parameters

    @property
    def lanes(self):
        """Outputs that are computed together."""
        return self._lanes

    @property
    def latency(self):
        """Cycles from the last column to the result."""
        return self._parameters.centroids + 6

    def elaborate(self, platform):
        m = Module()
        _, centroid_width, width = self._widths
        count = self._parameters.centroids

        # A column, and its place: as it is read, and as it is added.
        stage = data.StructLayout({"valid": 1, "bank": 1, "input": self.i.payload.input.shape()})
        column, addend = Signal(stage), Signal(stage)
        ended = Signal()  # it is the last one of its rows
        filling = Signal()  # bank of the next column
        begun = Signal()  # it is not the first one of its rows
        occupied = Signal(2)  # banks with all columns
        clearing = Signal(init=1)
        draining = Signal()
        drained = Signal()  # bank that is drained, or is next
        place = Signal(range(count))
        busy = Signal()  # a result is on its way
        loading = Signal(range(count))
        start = Signal()
        taken = Signal()
        m.d.comb += [
            self.i.ready.eq(~clearing & ~occupied.bit_select(filling, 1) & (loading == 0)),
            self.table.ready.eq(~busy & ~occupied.any() & ~begun & ~ended),
            taken.eq(self.o.valid & self.o.ready),
            start.eq(occupied.bit_select(drained, 1) & (~busy | taken) & (loading == 0)),
        ]
        m.d.sync += [
            column.valid.eq(self.i.valid & self.i.ready), column.bank.eq(filling),
            column.input.eq(self.i.payload.input), addend.eq(column),
            ended.eq(self.i.valid & self.i.ready & self.i.payload.last),
            self.error.eq(0), self.multiplied.eq(draining),
        ]
        with m.If(clearing | draining):
            m.d.sync += place.eq(place + 1)
            with m.If(place.all()):
                m.d.sync += [clearing.eq(0), draining.eq(0), drained.eq(drained ^ draining)]
                with m.If(draining):
                    m.d.sync += occupied.eq(occupied & Mux(drained, 0b01, 0b10))
        with m.If(taken):
            m.d.sync += busy.eq(0)
        with m.If(start):
            m.d.sync += [draining.eq(1), busy.eq(1)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += begun.eq(~self.i.payload.last)
            with m.If(self.i.payload.last):
                m.d.sync += filling.eq(~filling)
        # With the last column on its way into its sum, it is there when the first sum is read.
        with m.If(ended):
            m.d.sync += occupied.bit_select(column.bank, 1).eq(1)

        # The drain asks all lanes for the sum of one centroid, so that one table serves them.
        m.submodules.centroids = memory = Memory(shape=signed(centroid_width), depth=count, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(loading), write.data.eq(self.table.payload.centroid),
            write.en.eq(self.table.valid & self.table.ready), read.addr.eq(place),
        ]
        with m.If(write.en):
            m.d.sync += [loading.eq(loading + 1), self.error.eq(self.table.payload.last ^ loading.all())]
            with m.If(self.table.payload.last):
                m.d.sync += loading.eq(0)
        centroid = register(m, "centroid", value=read.data).value
        # Beside the terms go whether there is one, and whether it is the first or the last of a result.
        marks = Signal(data.StructLayout({"term": 1, "first": 1, "last": 1}))
        m.d.comb += [marks.term.eq(draining), marks.first.eq(place == 0), marks.last.eq(draining & place.all())]
        for stage in range(3):
            following = Signal.like(marks, name=f"marks_{stage}")
            m.d.sync += following.eq(marks)
            marks = following
        with m.If(taken):
            m.d.sync += self.o.valid.eq(0)
        with m.If(marks.last):
            m.d.sync += self.o.valid.eq(1)

        # Rows of the sums are addressed out of registers: that of the column, or that which is drained or cleared.
        next_place = Signal.like(place)
        m.d.comb += next_place.eq(place + (clearing | draining))
        for lane in range(self._lanes):
            sums, rows = [], []
            before = Signal(signed(width), name=f"before_{lane}")
            total = Signal(signed(width), name=f"total_{lane}")
            again = Signal(name=f"again_{lane}")  # the sum is that of the column before, which is not yet in memory
            target = Signal.like(place, name=f"target_{lane}")
            for bank in range(2):
                m.submodules[f"sums_{lane}_{bank}"] = memory = Memory(shape=signed(width), depth=count, init=[])
                write = memory.write_port()
                read = memory.read_port(domain="comb")
                add = Signal(name=f"add_{lane}_{bank}")
                row = Signal.like(place, name=f"row_{lane}_{bank}")
                m.d.sync += row.eq(
                    Mux(self.i.valid & self.i.ready & (filling == bank), self.i.payload.indices[lane], next_place))
                m.d.comb += [
                    add.eq(addend.valid & (addend.bank == bank)),
                    read.addr.eq(row),
                    write.addr.eq(Mux(add, target, row)),
                    write.data.eq(Mux(add, total, 0)),
                    write.en.eq(add | clearing | (draining & (drained == bank))),
                ]
                sums.append(read.data)
                rows.append(row)
            m.d.sync += [
                again.eq(column.valid & (column.bank == filling)
                         & (self.i.payload.indices[lane] == Mux(filling, rows[1], rows[0]))),
                before.eq(Mux(again, total, Mux(column.bank, sums[1], sums[0]))),
                target.eq(Mux(column.bank, rows[1], rows[0])),
            ]
            m.d.comb += total.eq(before + addend.input)

            # A sum is wider than a multiplier block: its lower and its upper part are multiplied apart.
            half = width // 2
            given = register(m, f"sum_{lane}", value=Mux(drained, sums[1], sums[0])).value
            products = register(
                m, f"products_{lane}",
                low=Cat(given[:half], C(0, 1)).as_signed() * centroid, high=given[half:].as_signed() * centroid)
            term = register(m, f"term_{lane}", value=products.low + products.high.shift_left(half)).value
            with m.If(marks.term):
                m.d.sync += self.o.payload[lane].eq(Mux(marks.first, 0, self.o.payload[lane]) + term)
        return m
