"""Mask multiplexer, which passes each element unchanged or replaces it with an alternative value."""

from amaranth.hdl import Module, Mux
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.mask import MAX_LANES
from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["MaskMultiplexer", "masked_beat_layout"]


def masked_beat_layout(lanes, width=32):
    """Layout of a beat of elements and their mask bits.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat: 1, 2, 4, 8 or 16.
    width : int
        Width of an element in bits; at least 1.
    """
    check_lanes(lanes, most=MAX_LANES)
    beat = beat_layout(lanes, width)
    return data.StructLayout({"elements": beat["elements"].shape, "mask": lanes, "keep": lanes, "last": 1})


class MaskMultiplexer(wiring.Component):
    """Pass the elements with a set mask bit and replace the rest with an alternative value.

    Latency is :attr:`latency` cycle; throughput is one beat per cycle. ``i.ready`` depends
    combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat: 1, 2, 4, 8 or 16.
    width : int
        Width of an element in bits.

    Members
    -------
    alternative : In(width)
        Replacement for masked elements, sampled with each beat.
    i : In(stream of masked_beat_layout(lanes, width))
    o : Out(stream of beat_layout(lanes, width))
    """

    latency = 1

    def __init__(self, *, lanes, width=32):
        check_lanes(lanes, most=MAX_LANES)
        layout = masked_beat_layout(lanes, width)
        self._lanes = lanes
        self._width = width
        super().__init__({
            "alternative": In(width),
            "i": In(stream.Signature(layout)),
            "o": Out(stream.Signature(beat_layout(lanes, width))),
        })

    @property
    def lanes(self):
        return self._lanes

    @property
    def width(self):
        return self._width

    def elaborate(self, platform):
        m = Module()
        beat = self.i.payload
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        with m.If(self.i.ready):
            m.d.sync += [
                self.o.valid.eq(self.i.valid),
                self.o.payload.keep.eq(beat.keep),
                self.o.payload.last.eq(beat.last),
            ]
            for lane in range(self._lanes):
                m.d.sync += self.o.payload.elements[lane].eq(
                    Mux(beat.mask[lane], beat.elements[lane], self.alternative))
        return m
