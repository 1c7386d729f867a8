# amaranth: UnusedElaboratable=no
# Units are always created, because their latencies are needed even where they are not elaborated.
"""Encoder of table-compressed packets; see :mod:`hdl.features.table.format`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.byte_packing import BytePacker
from hdl.compression.planes import GroupAssembler, word_count
from hdl.features.codebook.nearest import Bounds
from hdl.features.table.centroid_store import CentroidStore
from hdl.features.table.exponent_set import ROW, ROWS, ExponentSet
from hdl.features.table.format import check_table
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["Encoder"]


def _lowest(bits):
    """Isolate the lowest set bit of ``bits``."""
    return Cat(bit & ~bits[:number].any() for number, bit in enumerate(bits))


def _index(one_hot):
    """Return the index of the only set bit."""
    digits = range((len(one_hot) - 1).bit_length())
    return Cat(Cat(bit for number, bit in enumerate(one_hot) if number >> digit & 1).any() for digit in digits)


def _is_special(exponent):
    """Return whether the exponent encodes zeros or infinities."""
    return ~exponent.any() | exponent.all()


class Encoder(wiring.Component):
    """Compress packets of elements; each packet must be streamed twice.

    The first stream, on ``scan``, collects the exponents; the second, on ``i``, is encoded. No element is stored. One
    packet can be scanned while the previous one is encoded. Weights may also be scanned while another unit writes
    them to their memory, so that they are read only once.

    One beat per cycle is accepted on either port. From the last beat of its scan to its first element, a packet
    takes four cycles plus, for each of the 16 rows of 16 exponents, one cycle per exponent in the row, but at least
    one. Words before the codes take one cycle per exponent, and one for every four bytes of centroids. The last
    group is padded to 32 elements, which takes the cycles of the missing elements. The first beat that a group of
    eight codes completes is offered :attr:`latency` cycles after the group's last element was accepted. ``i.ready``
    depends combinationally on ``o.ready``, and no other ``ready`` on any input.

    Parameters
    ----------
    table : LookupTable
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    scan, i : In(stream of beat_layout(lanes, table.format.width))
    load : In(stream of {data, last})
        Only with centroids: :attr:`~hdl.features.table.format.LookupTable.load_length` words, between packets.
        These are the bounds between centroids, as the highest bits of a fraction that are compared, and then the
        centroids if packets contain them, in the format of the packet.
    o : Out(stream of beat_layout(words))
    error : Out(1)
        Pulse if there are too many exponents, an exponent was not scanned, or the wrong number of words was loaded.
    """

    def __init__(self, *, table, lanes):
        check_table(table)
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
        """Parameters of the table format."""
        return self._table

    @property
    def lanes(self):
        """Number of elements per beat."""
        return self._lanes

    @property
    def words(self):
        """Number of words per beat of the output."""
        return word_count(self._lanes, self._table.width)

    @property
    def stages(self):
        """Number of pipeline registers from the input register to the codes."""
        return self._table.mantissa_bits if self._table.centroids else 2

    @property
    def latency(self):
        """Latency in cycles from a group's eighth code to the output beat that its first bytes complete."""
        assembler = GroupAssembler(lanes=self._lanes, width=self._table.width)
        return 1 + self.stages + assembler.latency + BytePacker.latency

    def elaborate(self, platform):
        m = Module()
        table, lanes = self._table, self._lanes
        m.submodules.exponents = exponents = ExponentSet(lanes=lanes, format=table.format)
        m.submodules.assembler = assembler = GroupAssembler(lanes=lanes, width=table.width)
        m.submodules.packer = packer = BytePacker(words=self.words)
        store = None
        if table.centroids:
            m.submodules.store = store = CentroidStore(table=table)
            connect_stream(m, self.load, store.load)
        connect_stream(m, self.scan, exponents.i)
        connect_stream(m, packer.o, self.o)

        # Rows of exponents, and the number of exponents before each row.
        rows = Signal(data.StructLayout({"bits": ROW, "below": 8}))
        row = Signal(range(ROWS))
        fresh = Signal()
        accepting = Signal()
        unknown = self._elaborate_codes(m, assembler, store, accepting, row, rows, fresh)

        # Preamble: step through the rows and output one byte per set bit.
        bits = Signal(ROW)
        lowest = Signal(ROW)
        rest = Signal(ROW)
        total = Signal(range(257))
        latest = Signal(8)
        following = Signal(range(ROWS + 1))
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
                    with m.If(following == ROWS):
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
                m.d.sync += assembler.size.eq(table.code_size(last_index[:index_bits]))
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
        """Convert elements to codes in a pipeline with a valid bit per stage.

        Returns
        -------
        Value
            Whether the last stage outputs an exponent that was not scanned.
        """
        table, lanes = self._table, self._lanes
        format = table.format

        # Input register for one beat; a packet's last beat stays here, without elements, until its group is complete.
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

        # Contents of the pipeline registers.
        lane_layout = data.StructLayout({
            "keep": 1, "sign": 1, "zero": 1, "special": 1,
            "fraction": table.compared_bits, "node": table.mantissa_bits, "exponent": 8,
        })
        layout = data.StructLayout({"lanes": data.ArrayLayout(lane_layout, lanes), "last": 1, "valid": 1})
        stages = [Signal(layout, name=f"stage_{stage}") for stage in range(self.stages)]
        fetched = [Signal(rows.shape(), name=f"found_{lane}") for lane in range(lanes)]
        opened = Signal(layout)
        m.d.comb += [opened.valid.eq(valid), opened.last.eq(held.last & closing)]
        for lane in range(lanes):
            element = Signal(format.layout, name=f"element_{lane}")
            m.d.comb += [
                element.eq(held.elements[lane]),
                opened.lanes[lane].keep.eq(held.keep[lane]),
                opened.lanes[lane].sign.eq(element.sign),
                opened.lanes[lane].zero.eq(~element.fraction.any()),
                opened.lanes[lane].special.eq(_is_special(element.exponent)),
                opened.lanes[lane].fraction.eq(element.fraction[-table.compared_bits:]),
                opened.lanes[lane].exponent.eq(element.exponent),
            ]
            if not table.centroids:
                m.d.comb += opened.lanes[lane].node.eq(element.fraction[-table.mantissa_bits:])
            m.submodules[f"index_{lane}"] = memory = Memory(shape=rows.shape(), depth=ROWS, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(row), write.data.eq(rows), write.en.eq(fresh),
                read.addr.eq(element.exponent[4:]),
            ]
            with m.If(free[0]):
                m.d.sync += fetched[lane].eq(read.data)

        unknown = []
        for number, stage in enumerate(stages):
            before = stages[number - 1] if number else opened
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
                    # Index of an exponent: the number of smaller exponents in its row and in all lower rows.
                    upto = Signal(ROW, name=f"upto_{lane}")
                    m.d.comb += upto.eq(Cat(source.exponent[:4] > lower for lower in range(ROW)))
                    with m.If(free[number]):
                        m.d.sync += target.exponent.eq(fetched[lane].below + sum(fetched[lane].bits & upto))
                    known = Signal(name=f"known_{lane}")
                    m.d.comb += known.eq(fetched[lane].bits.bit_select(source.exponent[:4], 1))
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
            # If index 0 encodes zero, a nonzero fraction that would map to index 0 maps to 1 instead.
            m.d.comb += [
                mantissa.eq(Mux(source.special, Mux(source.zero, 0, Cat(source.node[0] | ~source.node.any(),
                                                                        source.node[1:])), source.node)),
                assembler.i.payload.codes[lane].eq(
                    Mux(source.keep, Cat(source.sign, mantissa, source.exponent), 0)),
            ]
        return Cat(unknown).any()
