"""Memory stub for unit tests that answers each request with values computed from memory number and row."""

import numpy as np
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from hdl.streams.stream import connect_stream

#: Odd factor that spreads word numbers over all 32-bit values.
_SPREAD = 0x9E37_79B1


def answer(space, row, *, rows, lanes):
    """Return the elements of memory rows, along a new last axis of ``lanes``."""
    word = (np.asarray(space, np.uint64) * np.uint64(rows) + np.asarray(row, np.uint64)) * np.uint64(lanes)
    return ((word[..., None] + np.arange(lanes, dtype=np.uint64)) * np.uint64(_SPREAD)).astype(np.uint32)


class Answered(wiring.Component):
    """A unit with a stub of (rows, lanes) memories that answers ``request`` on ``response`` after ``latency`` cycles.

    The unit's other ports are forwarded, except the inputs named in ``loops``, which are driven by a function of the
    unit's signals, delayed by a number of cycles.
    """

    def __init__(self, unit, *, rows, lanes, latency, loops=None):
        self._unit, self._rows, self._lanes, self._latency = unit, rows, lanes, latency
        self._loops = loops or {}
        hidden = {"response", *self._loops}
        super().__init__({name: member for name, member in unit.signature.members.items() if name not in hidden})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit

        def later(value, count, name):
            for number in range(count):
                delayed = Signal.like(value, name=f"{name}_{number}")
                m.d.sync += delayed.eq(value)
                value = delayed
            return value

        for name in self.signature.members:
            inner, outer = getattr(unit, name), getattr(self, name)
            if not self.signature.members[name].is_signature:
                source, sink = (inner, outer) if self.signature.members[name].flow == wiring.Out else (outer, inner)
                m.d.comb += sink.eq(source)
            elif self.signature.members[name].flow == wiring.Out:
                connect_stream(m, inner, outer)
            else:
                connect_stream(m, outer, inner)
        for name, (cause, count) in self._loops.items():
            m.d.comb += getattr(unit, name).eq(later(cause(unit), count, name))
        asked = unit.request.payload
        word = Signal(32)
        m.d.comb += word.eq((asked.place * self._rows + asked.row) * self._lanes)
        response = Signal(unit.response.payload.shape())
        for lane in range(self._lanes):
            m.d.comb += response.elements[lane].eq((word + lane) * _SPREAD)
        m.d.comb += [
            unit.response.valid.eq(later(unit.request.valid & unit.request.ready, self._latency, "valid")),
            unit.response.payload.eq(later(response, self._latency, "answer")),
        ]
        return m
