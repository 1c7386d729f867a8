"""Packets of bfloat16 elements, two per word, with even elements in the low half.

Elements are rounded to nearest even, and every NaN becomes 0x7fc0. For an odd number of elements, the upper half of
the last word is zero. State in memory has the same format, so the units of :mod:`hdl.optimizer.moments` are reused.
"""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.streams.stream import beat_layout, check_lanes, connect_stream

__all__ = ["BLOCK", "BLOCK_BITS", "BFloat16Decoder", "BFloat16Encoder"]

#: Number of elements in a word, and of bits in a word.
BLOCK, BLOCK_BITS = 2, 32


class _BFloat16Unit(wiring.Component):
    """Base class of wrappers for the units that pack and unpack moments in memory."""

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        beats = stream.Signature(beat_layout(lanes))
        super().__init__({"i": In(beats), "o": Out(beats)})

    @property
    def words(self):
        """Number of words in a beat on the packed side."""
        return self._lanes

    @property
    def latency(self):
        """Latency in cycles from the input beat that completes an output beat to the offer of the output beat."""
        return self._unit.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit(lanes=self._lanes)
        m.d.comb += unit.packed_state.eq(1)
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        return m


class BFloat16Encoder(_BFloat16Unit):
    """Encode packets of elements as bfloat16, using a :class:`~hdl.optimizer.moments.MomentPacker`.

    Latency is :attr:`latency` cycles from the beat that completes a row of words; throughput is one beat per cycle.
    Every output is a register.

    Parameters
    ----------
    lanes : int
        Number of elements in an input beat, and of words in an output beat: 1, 2, 4 or 8.

    Members
    -------
    i, o : In, Out(stream of beat_layout(lanes))
    """

    _unit = MomentPacker


class BFloat16Decoder(_BFloat16Unit):
    """Decode packets of bfloat16, using a :class:`~hdl.optimizer.moments.MomentUnpacker`.

    Latency is :attr:`latency` cycle, throughput one beat of the output per cycle. Every output is a register.

    Parameters
    ----------
    lanes : int
        Number of words in an input beat, and of elements in an output beat: 1, 2, 4 or 8.

    Members
    -------
    i, o : In, Out(stream of beat_layout(lanes))
        Both elements of every word are output, even if the packet has an odd number of elements.
    """

    _unit = MomentUnpacker
