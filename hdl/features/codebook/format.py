# amaranth: UnusedElaboratable=no
# Units are created even where they are not elaborated, because their latencies are needed.
"""Weight format: indices into a table of centroids.

A packet contains the table, one word per centroid (omitted if the table is loaded into decoders), followed by the
indices, packed as in :mod:`hdl.compression.planes`. A decoder expands the indices to centroids; products with a
matrix in this format need no expansion (:mod:`hdl.features.codebook.gather_reduce`).
"""

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.byte_packing import BytePacker, ByteUnpacker
from hdl.compression.planes import GroupAssembler, GroupSplitter, word_count
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["CentroidTable", "Decoder", "Encoder", "check_table"]


@dataclass(frozen=True, kw_only=True)
class CentroidTable:
    """Parameters of the format.

    Parameters
    ----------
    centroids : int
        Number of centroids per table: 4, 8, 16, 32 or 64.
    loaded : bool
        Whether the table is loaded into decoders instead of being sent in every packet.
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
        """Width of a centroid index in bits."""
        return self.centroids.bit_length() - 1

    @property
    def table_words(self):
        """Number of words of the table in each packet."""
        return 0 if self.loaded else self.centroids

    def bits(self, count):
        """Number of bits for ``count`` weights and their table."""
        return count * self.index_bits + 32 * self.table_words

    def words(self, count):
        """Number of words in a packet of ``count`` weights."""
        return self.table_words + self.index_bits * -(-count // GROUP)


def check_table(table):
    """Raise TypeError unless ``table`` is a :class:`CentroidTable`."""
    if not isinstance(table, CentroidTable):
        raise TypeError(f"Table must be a CentroidTable, not {table!r}")


class Encoder(wiring.Component):
    """Create packets from tables and indices.

    One word of the table or one beat of indices is taken per cycle; the last group is filled up with index 0, one
    beat per cycle. ``table.ready`` and ``i.ready`` depend combinationally on ``o.ready``. The first beat of indices
    is offered :attr:`latency` cycles after the beat that completes it is accepted.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Number of indices per beat: 1, 2, 4 or 8.

    Members
    -------
    table : In(stream of {data, last})
        ``table.centroids`` words per packet. Missing words are replaced by zeros, and excess words are discarded.
        Absent if the table is loaded into decoders.
    i : In(stream of beat_layout(lanes, table.index_bits))
    o : Out(stream of beat_layout(words))
    error : Out(1)
        Pulse: a table had the wrong length.
    """

    def __init__(self, *, table, lanes):
        check_table(table)
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
        """Latency in cycles from the beat that completes eight indices until the completed words are offered."""
        assembler = GroupAssembler(lanes=self._lanes, width=self._parameters.index_bits)
        return 1 + assembler.latency + BytePacker.latency

    def elaborate(self, platform):
        m = Module()
        lanes, width = self._lanes, self._parameters.index_bits
        m.submodules.assembler = assembler = GroupAssembler(lanes=lanes, width=width)
        m.submodules.packer = packer = BytePacker(words=self.words)
        connect_stream(m, packer.o, self.o)

        # Hold one beat. The last beat of a packet is held until its group is complete, but with `keep` cleared, so
        # that it fills up the group with index 0.
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

        position = Signal(range(self._parameters.centroids))
        m.d.sync += self.error.eq(0)

        def give(word, valid):
            m.d.comb += [packer.i.valid.eq(valid), packer.i.payload.data.eq(word), packer.i.payload.count.eq(4)]

        with m.FSM():
            with m.State("Table"):
                give(self.table.payload.data, self.table.valid)
                m.d.comb += self.table.ready.eq(packer.i.ready)
                with m.If(self.table.valid & packer.i.ready):
                    m.d.sync += [position.eq(position + 1), self.error.eq(self.table.payload.last ^ position.all())]
                    with m.If(position.all()):
                        m.next = "Indices"
                        with m.If(~self.table.payload.last):
                            m.next = "Rest"
                    with m.Elif(self.table.payload.last):
                        m.next = "Fill"
            with m.State("Fill"):
                give(0, 1)
                with m.If(packer.i.ready):
                    m.d.sync += position.eq(position + 1)
                    with m.If(position.all()):
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
    """Expand the indices in packets to centroids, in whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. Each word of the table takes one cycle;
    then one beat is offered per cycle, as long as words arrive. A table is read once all indices of the previous
    packet have been taken for look-up. ``i.ready`` depends combinationally on ``o.ready``.

    A packet that ends within its table or within a group raises ``error``, and the next packet is decoded correctly.
    In the first case, there is no output; in the second, the output ends with the incomplete group of eight elements,
    where missing elements are unspecified.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    expand : bool
        If false, the indices are output unexpanded, and the centroids separately before them.

    Members
    -------
    i : In(stream of beat_layout(words))
    load : In(stream of {data, last})
        Only if loaded and expanded: ``table.centroids`` words, accepted at any time and effective immediately.
    o : Out(stream of beat_layout(lanes)), or of beat_layout(lanes, table.index_bits) if not expanded
    table : Out(stream of {data, last})
        Only if neither loaded nor expanded. A truncated table is output up to its last word.
    error : Out(1)
        Pulse: this packet is malformed, or a wrong number of words was loaded.
    """

    #: Latency in cycles from accepting a beat that completes eight indices until their first elements are offered.
    latency = ByteUnpacker.latency + GroupSplitter.latency + 2

    def __init__(self, *, table, lanes, expand=True):
        check_table(table)
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

        position = Signal(range(self._parameters.centroids))
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
                    error.eq(splitter.error | (self.load.valid & (word.last ^ position.all()))),
                ]
                with m.If(self.load.valid):
                    m.d.sync += position.eq(Mux(word.last, 0, position + 1))
        else:
            m.d.comb += [table_take.eq(unpacker.take & ~splitter.run), entry.eq(unpacker.window)]
            self._elaborate_packets(m, unpacker, splitter, position, room, error)
        m.d.comb += self.o.payload.keep.eq(~0)

        # Look up the table entries and output them.
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
                    self.table.payload.last.eq(position.all() | unpacker.stops),
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
                    write.addr.eq(position), write.data.eq(entry), write.en.eq(table_take),
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

    def _elaborate_packets(self, m, unpacker, splitter, position, room, error):
        """Split each packet into its table and its indices."""
        with m.FSM():
            with m.State("Table"):
                m.d.comb += [
                    unpacker.want.eq(4),
                    unpacker.allow.eq(~splitter.o.valid & room),
                ]
                with m.If(unpacker.take):
                    m.d.sync += position.eq(position + 1)
                    with m.If(position.all()):
                        m.next = "Indices"
                    with m.If(unpacker.stops):
                        m.d.comb += [error.eq(1), unpacker.done.eq(1)]
                        m.d.sync += position.eq(0)
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
