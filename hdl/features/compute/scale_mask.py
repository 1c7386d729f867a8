# amaranth: UnusedElaboratable=no
# The constructor creates the submodules because their latencies are needed even without elaboration.
"""Matrix product epilogue that scales results and replaces masked results."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.features.compute.array import ONE, check_units, result_layout
from hdl.features.compute.loop_nest import SIZE_BITS, tile_layout
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.stages import register, wait
from hdl.masking.comparator import MaskComparator
from hdl.masking.mask import INDEX_BITS, mask_layout
from hdl.streams.stream import Queue, connect_stream, step_count

__all__ = ["ScaleMask", "scale_mask_layout"]

#: Maximum number of result rows in flight; exceeds the number of cycles that a row takes from entry to departure.
_ROWS = 17
#: Maximum number of announced tiles; exceeds the maximum number of unfinished tiles of the drain.
_TILES = 33


def scale_mask_layout():
    """Epilogue parameters: whether results are ``scaled`` and ``masked``, and with which values.

    ``scale`` and ``alternative`` are binary32 encodings. The mask's external kind has no effect.
    """
    return data.StructLayout({
        "scaled": 1, "masked": 1, "scale": FP32.width, "alternative": FP32.width, "mask": mask_layout(INDEX_BITS)})


class ScaleMask(wiring.Component):
    """Multiply final results by a constant, and replace masked results with an alternative.

    The product is rounded to nearest even and NaNs are canonical, except that a NaN alternative is not changed.
    Whether a result is masked depends on its row and column of C. Partial results pass unchanged, as do all results
    of a job that is neither scaled nor masked (they are multiplied by 1.0).

    Latency is :attr:`latency` cycles, throughput a row of results per cycle. ``i.ready`` depends only on registers.
    Results of a tile wait until it has been announced.

    Parameters
    ----------
    rows : int
        Number of rows of the array: 1, 2 or 4.
    lanes : int
        Number of columns of the array: 2, 4 or 8.
    dsps : int
        Number of DSP blocks each multiplier may use: 4, 2 or 1.

    Members
    -------
    epilogue : In(scale_mask_layout())
        Held while there are results.
    tiles : In(stream of tile_layout())
    i, o : In, Out(stream of result_layout(rows, lanes))
    """

    def __init__(self, *, rows, lanes, dsps=4):
        check_units(rows, lanes)
        self._lanes = lanes
        self._lane_bits = exact_log2(lanes)
        self._multipliers = [FloatMultiplier(dsps=dsps) for _ in range(lanes)]
        self._comparator = MaskComparator(lanes=lanes, index_bits=INDEX_BITS)
        super().__init__({
            "epilogue": In(scale_mask_layout()),
            "tiles": In(stream.Signature(tile_layout())),
            "i": In(stream.Signature(result_layout(rows, lanes))),
            "o": Out(stream.Signature(result_layout(rows, lanes))),
        })

    @property
    def latency(self):
        """Latency in cycles from a result row's arrival to its offer: a register, the multiplier and a queue."""
        return self._multipliers[0].latency + 2

    def elaborate(self, platform):
        m = Module()
        m.submodules.tiles = tiles = Queue(
            shape=data.StructLayout({"m": SIZE_BITS, "n": SIZE_BITS, "partial": 1}), depth=_TILES)
        m.submodules.results = results = Queue(shape=self.i.payload.shape(), depth=_ROWS)
        m.submodules.comparator = comparator = self._comparator
        epilogue, result, tile = self.epilogue, self.i.payload, tiles.o.payload
        m.d.comb += [
            tiles.i.valid.eq(self.tiles.valid), self.tiles.ready.eq(tiles.i.ready),
            *(tiles.i.p[name].eq(self.tiles.p[name]) for name in tile.shape().members),
        ]

        # A row is taken only if the queue has room for it and for all rows in flight.
        under_way = Signal(range(_ROWS + 1))
        take = Signal()
        m.d.comb += [
            take.eq(self.i.valid & self.i.ready),
            self.i.ready.eq(tiles.o.valid & (under_way != _ROWS)),
            tiles.o.ready.eq(take & result.last),
        ]
        step_count(m, under_way, up=take, down=self.o.valid & self.o.ready)

        # Register for the operands and the position in C.
        delay = self._multipliers[0].latency
        final = ~tile.partial
        taken = register(
            m, "taken", elements=result.elements, factor=Mux(epilogue.scaled & final, epilogue.scale, ONE),
            masked=epilogue.masked & final, row=(tile.m + result.row)[:INDEX_BITS],
            beat=((tile.n >> self._lane_bits) + result.group)[:INDEX_BITS - self._lane_bits],
            marks=Cat(result.row, result.group, result.last))
        arrived = Signal(delay + 1)
        m.d.sync += arrived.eq(Cat(take, arrived))
        position = comparator.i.payload
        m.d.comb += [
            comparator.mask.eq(epilogue.mask), comparator.i.valid.eq(1), comparator.o.ready.eq(1),
            position.row.eq(taken.row), position.beat.eq(taken.beat), position.keep.eq(~0)]

        # Align the product and the mask bits for the queue.
        masked = wait(m, "masked", taken.masked, comparator.latency)
        keep = wait(m, "keep", comparator.o.p.mask | (~masked).replicate(self._lanes), delay - comparator.latency)
        marks = wait(m, "marks", taken.marks, delay)
        out = results.i.payload
        m.d.comb += [results.i.valid.eq(arrived[-1]), Cat(out.row, out.group, out.last).eq(marks)]
        for lane, multiplier in enumerate(self._multipliers):
            m.submodules[f"multiplier_{lane}"] = multiplier
            element = taken.elements.word_select(lane, FP32.width)
            m.d.comb += [
                multiplier.a.eq(element), multiplier.b.eq(taken.factor),
                out.elements[lane].eq(Mux(keep[lane], multiplier.o, epilogue.alternative))]
        connect_stream(m, results.o, self.o)
        return m
