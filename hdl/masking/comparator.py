"""Comparator that checks matrix positions against the bounds of a mask."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.mask import MAX_LANES, check_index_bits, mask_beat_layout, mask_layout
from hdl.streams.stream import check_lanes

__all__ = ["MaskComparator", "position_layout"]


def position_layout(lanes, index_bits):
    """Layout of a position: ``lanes`` consecutive row elements, starting in column ``beat`` · ``lanes``.

    For the other fields, see :func:`~hdl.masking.mask.mask_beat_layout`.
    """
    return data.StructLayout({
        "row": index_bits, "beat": index_bits - (lanes - 1).bit_length(), "keep": lanes, "row_end": 1, "last": 1})


class MaskComparator(wiring.Component):
    """Generate the mask bits for the elements at a position, for every kind of mask except ``external``.

    Latency is :attr:`latency` cycles, throughput one position per cycle, in any order. ``i.ready`` depends
    combinationally on ``o.ready``.

    Each bound is compared once per position, with the first column; in the beat that contains a bound, the low bits
    of the bound select the lanes.

    Parameters
    ----------
    lanes : int
        Number of elements at a position: 1, 2, 4, 8 or 16.
    index_bits : int
        Width of an index, 5 to 16.

    Members
    -------
    mask : In(mask_layout(index_bits))
        Enabled kinds and bounds, taken with each position.
    i : In(stream of position_layout(lanes, index_bits))
    o : Out(stream of mask_beat_layout(lanes))
    """

    latency = 3

    def __init__(self, *, lanes, index_bits=12):
        check_lanes(lanes, most=MAX_LANES)
        check_index_bits(index_bits)
        self._lanes = lanes
        self._index_bits = index_bits
        super().__init__({
            "mask": In(mask_layout(index_bits)),
            "i": In(stream.Signature(position_layout(lanes, index_bits))),
            "o": Out(stream.Signature(mask_beat_layout(lanes))),
        })

    @property
    def lanes(self):
        return self._lanes

    @property
    def index_bits(self):
        return self._index_bits

    def elaborate(self, platform):
        m = Module()
        lanes, bits = self._lanes, self._index_bits
        lane_bits = (lanes - 1).bit_length()  # number of low bits of a column index, which select the lane
        current, mask = self.i.payload, self.mask
        bounded_free, compared_free, output_free = Signal(), Signal(), Signal()

        # First stage: the column bounds of this row. The diagonal and the band end are the last kept columns, which
        # saves an increment; all other upper bounds are the first columns that are not kept.
        bounded = Signal(data.StructLayout({
            "beat": bits - lane_bits, "keep": lanes, "row_end": 1, "last": 1, "row_kept": 1, "hole": 1,
            "triangle": 1, "triangle_inverse": 1, "padding": 1, "rectangle": 1, "band": 1, "external": 1,
            "diagonal": signed(bits + 2), "before_band": signed(bits + 1), "band_end": bits + 1,
            "length_columns": bits, "first_column": bits, "end_column": bits,
        }))
        bounded_valid = Signal()
        inside = Signal()
        m.d.comb += inside.eq((current.row >= mask.first_row) & (current.row < mask.end_row))
        with m.If(bounded_free):
            m.d.sync += [
                bounded_valid.eq(self.i.valid),
                bounded.beat.eq(current.beat),
                bounded.row_end.eq(current.row_end),
                bounded.last.eq(current.last),
                bounded.row_kept.eq((~mask.padding | (current.row < mask.length_rows)) & (~mask.rectangle | inside)),
                bounded.hole.eq(mask.rectangle_inverse & inside),
                bounded.diagonal.eq(current.row + mask.diagonal),
                bounded.before_band.eq(current.row - mask.width),
                bounded.band_end.eq(current.row + mask.width),
                *(bounded[name].eq(mask[name]) for name in (
                    "triangle", "triangle_inverse", "padding", "rectangle", "band", "external", "length_columns",
                    "first_column", "end_column")),
                bounded.keep.eq(current.keep),
            ]

        # Second stage: compare the beat with each bound; it is either before the bound or contains the bound at
        # `lane`.
        names = ("diagonal", "before_band", "band_end", "length_columns", "first_column", "end_column")
        position = data.StructLayout({"below": 1, "around": 1, "lane": max(lane_bits, 1)})
        compared = Signal(data.StructLayout({
            "keep": lanes, "row_end": 1, "last": 1, "row_kept": 1, "hole": 1, "triangle": 1, "triangle_inverse": 1,
            "rectangle": 1, "external": 1, **dict.fromkeys(names, position),
        }))
        compared_valid = Signal()

        def locate(name, enable=None, disabled=0):
            """Compare the beat with a bound; `below` is ``disabled`` if the mask of the bound is not enabled."""
            bound = bounded[name]
            target = compared[name]
            around = bound[lane_bits:].as_signed() if bound.shape().signed else bound[lane_bits:]
            m.d.sync += [
                target.below.eq(bounded.beat < around),
                target.around.eq(bounded.beat == around),
                target.lane.eq(bound[:lane_bits]),
            ]
            if enable is not None:
                with m.If(~enable):
                    m.d.sync += [target.below.eq(disabled), target.around.eq(0)]

        with m.If(compared_free):
            m.d.sync += compared_valid.eq(bounded_valid)
            for name in ("keep", "row_end", "last", "row_kept", "hole", "triangle", "triangle_inverse", "rectangle",
                         "external"):
                m.d.sync += compared[name].eq(bounded[name])
            locate("diagonal")
            locate("before_band", bounded.band, 0)
            locate("band_end", bounded.band, 1)
            locate("length_columns", bounded.padding, 1)
            locate("first_column")
            locate("end_column")

        def reaches(name, lane, *, inclusive=False):
            """Return whether a lane is below a bound or, if ``inclusive``, equal to it."""
            bound = compared[name]
            in_beat = lane <= bound.lane if inclusive else lane < bound.lane
            return bound.below | (bound.around & in_beat)

        with m.If(output_free):
            m.d.sync += [
                self.o.valid.eq(compared_valid),
                self.o.payload.keep.eq(compared.keep),
                self.o.payload.row_end.eq(compared.row_end),
                self.o.payload.external.eq(compared.external),
                self.o.payload.last.eq(compared.last),
            ]
            for lane in range(lanes):
                lower = Signal(name=f"lower_{lane}")
                between = Signal(name=f"between_{lane}")
                m.d.comb += [
                    lower.eq(reaches("diagonal", lane, inclusive=True)),
                    between.eq(reaches("end_column", lane) & ~reaches("first_column", lane)),
                ]
                m.d.sync += self.o.payload.mask[lane].eq(
                    compared.keep[lane] & compared.row_kept
                    & (~compared.triangle | lower) & (~compared.triangle_inverse | ~lower)
                    & (~compared.rectangle | between) & ~(compared.hole & between)
                    & ~reaches("before_band", lane) & reaches("band_end", lane, inclusive=True)
                    & reaches("length_columns", lane))

        m.d.comb += [
            output_free.eq(self.o.ready | ~self.o.valid),
            compared_free.eq(output_free | ~compared_valid),
            bounded_free.eq(compared_free | ~bounded_valid),
            self.i.ready.eq(bounded_free),
        ]
        return m
