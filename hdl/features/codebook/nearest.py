# amaranth: UnusedElaboratable=no
"""Search for the nearest centroid: in each lane, one level of a binary tree of bounds per cycle.

Bound n, starting from 1, is the smallest number that belongs to centroid n rather than the one below it. The root of
the tree is the middle bound.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import beat_layout, check_lanes, word_layout

__all__ = ["Bounds", "NearestCentroid"]

#: Levels with up to this many bounds use registers shared by all lanes instead of a memory per lane.
SHARED = 4


class Bounds(wiring.Component):
    """One level of the nearest-centroid search: compares numbers with the bounds of their nodes.

    Parameters
    ----------
    lanes : int
    level : int
        The level has 2 ** level nodes.
    width : int
        Width of a bound in bits.

    Members
    -------
    write : In(1)
    address : In(level), of at least one bit
    bound : In(width)
        Value to write.
    nodes : In(lanes of level), of at least one bit each
    numbers : In(lanes of width)
    above : Out(lanes)
        Combinational.
    """

    def __init__(self, *, lanes, level, width):
        self._lanes = lanes
        self._level = level
        super().__init__({
            "write": In(1), "address": In(max(level, 1)), "bound": In(width),
            "nodes": In(data.ArrayLayout(unsigned(max(level, 1)), lanes)),
            "numbers": In(data.ArrayLayout(unsigned(width), lanes)), "above": Out(lanes),
        })

    def elaborate(self, platform):
        m = Module()
        count = 1 << self._level
        if count <= SHARED:
            bounds = [Signal.like(self.bound, name=f"bound_{node}") for node in range(count)]
            with m.If(self.write):
                if count == 1:
                    m.d.sync += bounds[0].eq(self.bound)
                else:
                    m.d.sync += Array(bounds)[self.address].eq(self.bound)
        for lane in range(self._lanes):
            if count == 1:
                bound = bounds[0]
            elif count <= SHARED:
                bound = Array(bounds)[self.nodes[lane]]
            else:
                m.submodules[f"bounds_{lane}"] = memory = Memory(shape=self.bound.shape(), depth=count, init=[])
                port = memory.write_port()
                read = memory.read_port(domain="comb")
                m.d.comb += [port.addr.eq(self.address), port.data.eq(self.bound), port.en.eq(self.write),
                             read.addr.eq(self.nodes[lane])]
                bound = read.data
            m.d.comb += self.above[lane].eq(self.numbers[lane] >= bound)
        return m


def _ordered(bits):
    """Map the bits of a binary32 number to an unsigned integer that preserves the order of numbers."""
    return Cat(bits[:31] ^ bits[31].replicate(31), ~bits[31])


class NearestCentroid(wiring.Component):
    """Find the index of the nearest centroid of each binary32 number.

    The index is the number of bounds that are not above the number. An infinity or NaN therefore gets the highest
    index, or the lowest if negative. Latency is :attr:`latency` cycles, one for each bit of an index; throughput is
    one beat per cycle. Every output is a register; ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    centroids : int
        A power of two, at least 4.
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    load : In(stream of {data, last})
        ``centroids`` - 1 words: the bounds as binary32 numbers in ascending order, with zero as -0.0. They are
        accepted at any time and take effect immediately.
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(lanes, bits of an index))
    error : Out(1)
        Pulse: a wrong number of words was loaded.
    """

    def __init__(self, *, centroids, lanes):
        if not isinstance(centroids, int) or centroids < 4 or centroids & (centroids - 1):
            raise ValueError(f"Centroid count must be a power of two, at least 4, not {centroids!r}")
        check_lanes(lanes)
        self._centroids = centroids
        self._lanes = lanes
        super().__init__({
            "load": In(stream.Signature(word_layout())),
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(beat_layout(lanes, self.latency))),
            "error": Out(1),
        })

    @property
    def latency(self):
        """Latency in cycles from when a beat is accepted until its nearest centroids are output."""
        return self._centroids.bit_length() - 1

    def elaborate(self, platform):
        m = Module()
        lanes, levels = self._lanes, self.latency

        # Index of the next bound to load; 0 once all bounds are loaded, when any further word is one too many.
        number = Signal(range(self._centroids), init=1)
        loading = Signal()
        m.d.comb += [self.load.ready.eq(1), loading.eq(self.load.valid & (number != 0))]
        m.d.sync += self.error.eq(self.load.valid & self.load.payload.last & ~number.all())
        with m.If(self.load.valid):
            m.d.sync += number.eq(Mux(self.load.payload.last, 1, number + (number != 0)))

        lane_layout = data.StructLayout({"number": 32, "node": levels})
        layout = data.StructLayout({
            "lanes": data.ArrayLayout(lane_layout, lanes), "keep": lanes, "last": 1, "valid": 1})
        before = Signal(layout, name="given")
        m.d.comb += [before.valid.eq(self.i.valid), before.last.eq(self.i.payload.last),
                     before.keep.eq(self.i.payload.keep)]
        for lane in range(lanes):
            element = Signal(32, name=f"element_{lane}")
            m.d.comb += [element.eq(self.i.payload.elements[lane]), before.lanes[lane].number.eq(_ordered(element))]
        free = [Signal(name=f"free_{level}") for level in range(levels + 1)]
        m.d.comb += [self.i.ready.eq(free[0]), free[levels].eq(self.o.ready)]
        for level in range(levels):
            stage = Signal(layout, name=f"stage_{level}")
            m.submodules[f"bounds_{level}"] = bounds = Bounds(lanes=lanes, level=level, width=32)
            m.d.comb += [
                free[level].eq(free[level + 1] | ~stage.valid),
                bounds.write.eq(
                    loading & number[levels - 1 - level] & ~number[:levels - 1 - level].any()),
                bounds.address.eq(number[levels - level:]),
                bounds.bound.eq(_ordered(self.load.payload.data)),
            ]
            with m.If(free[level]):
                m.d.sync += stage.eq(before)
            for lane in range(lanes):
                source = before.lanes[lane]
                m.d.comb += [bounds.numbers[lane].eq(source.number), bounds.nodes[lane].eq(source.node)]
                with m.If(free[level]):
                    m.d.sync += stage.lanes[lane].node.eq(Cat(bounds.above[lane], source.node))
            before = stage
        m.d.comb += [
            self.o.valid.eq(before.valid),
            self.o.payload.last.eq(before.last),
            self.o.payload.keep.eq(before.keep),
            *(self.o.payload.elements[lane].eq(before.lanes[lane].node) for lane in range(lanes)),
        ]
        return m
