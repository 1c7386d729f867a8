"""Prove that hdl/ring/packetizer.py and hdl/ring/depacketizer.py always follow the handshake rules of streams."""

import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from hdl.ring.depacketizer import Depacketizer
from hdl.ring.header import expected_layout, header_layout
from hdl.ring.packetizer import Packetizer
from hdl.streams.stream import connect_stream, word_layout
from sim import formal


class PacketizerHolds(wiring.Component):
    """Specification: offered words stay, whatever the values of ``give_up`` and ``may_start``. Inputs stay until
    ``give_up``."""

    header: In(stream.Signature(header_layout()))
    payload: In(stream.Signature(word_layout()))
    extra: In(1)
    ready: In(1)
    may_start: In(1)
    give_up: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Packetizer()
        connect_stream(m, self.header, unit.header)
        connect_stream(m, self.payload, unit.payload)
        m.d.comb += [
            unit.extra.eq(self.extra),
            unit.o.ready.eq(self.ready),
            unit.may_start.eq(self.may_start),
            unit.give_up.eq(self.give_up),
            Assume(~ResetSignal()),
            Assert(formal.holds(m, "o", unit.o)),
        ]
        return m


class DepacketizerHolds(wiring.Component):
    """Specification: offered words stay unless drained, and ``done`` and ``error`` are mutually exclusive."""

    i: In(stream.Signature(word_layout()))
    expected: In(stream.Signature(expected_layout()))
    ready: In(1)
    epoch: In(8)
    active: In(1)
    drain: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Depacketizer()
        connect_stream(m, self.i, unit.i)
        connect_stream(m, self.expected, unit.expected)
        drained = Signal()
        m.d.sync += drained.eq(self.drain)
        m.d.comb += [
            unit.payload.ready.eq(self.ready),
            unit.epoch.eq(self.epoch),
            unit.active.eq(self.active),
            unit.drain.eq(self.drain),
            Assume(~ResetSignal()),
            Assert(formal.holds(m, "payload", unit.payload) | drained),
            Assert(~(unit.done & unit.error)),
            Assert(~unit.drain | ~(unit.done | unit.error)),
        ]
        return m


@pytest.mark.parametrize("specification", [PacketizerHolds, DepacketizerHolds])
def test_offers_stand(specification):
    formal.prove(specification(), depth=4)
