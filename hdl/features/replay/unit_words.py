"""Adapter between the control words of a node and a unit elsewhere in the node."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.control_word import message_layout
from hdl.streams.stream import connect_stream

__all__ = ["UnitWords", "unit_words_signature"]


def unit_words_signature():
    """Streams of a unit's control words, as seen by the unit."""
    words = stream.Signature(message_layout())
    return wiring.Signature({"i": In(words), "o": Out(words)})


class UnitWords(wiring.Component):
    """Pass control words to and from a unit elsewhere in the node, without registers.

    Parameters
    ----------
    name : str
        Name of the interface to the unit.

    Members
    -------
    i, o : In, Out(stream of message_layout())
    <name> : In(unit_words_signature())
    """

    def __init__(self, *, name):
        self._name = name
        words = stream.Signature(message_layout())
        super().__init__({"i": In(words), "o": Out(words), name: In(unit_words_signature())})

    def elaborate(self, platform):
        m = Module()
        unit = getattr(self, self._name)
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        return m
