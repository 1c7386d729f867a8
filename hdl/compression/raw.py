"""Packets of unmodified elements, one per word."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import beat_layout, check_lanes, connect_stream

__all__ = ["Passage"]


class Passage(wiring.Component):
    """Pass elements through as words, using only wires.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

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
        """Number of words in a beat."""
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        connect_stream(m, self.i, self.o)
        return m
