"""Packetizer, which assembles packets for the link from header, payload and CRC."""

import contextlib

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.checksum import crc_after
from hdl.ring.header import header_layout
from hdl.streams.stream import word_layout

__all__ = ["Packetizer"]


class Packetizer(wiring.Component):
    """Assemble packets from header, payload and CRC.

    Latency is :attr:`latency` cycle from a header to its first word, and from a payload word to the same word at
    ``o``; throughput is one word per cycle, without a bubble inside a packet or between packets. ``o`` is a register;
    ``header.ready`` and ``payload.ready`` depend combinationally on ``o.ready``, ``may_start`` and ``give_up``.

    A packet starts only in a cycle with ``may_start``. If the header's length is 0, the packet has no payload, unless
    ``extra`` is high; otherwise the stream's ``last`` ends the payload, regardless of the header's length.

    While ``give_up`` is high, all headers and words offered at ``header`` and ``payload`` are dropped. A packet in
    progress is stomped immediately; then one ABORT packet is sent, as soon as ``may_start`` allows. ``aborted`` is
    then high until ``give_up`` is low; ``give_up`` must not fall earlier.

    Members
    -------
    header : In(stream of header_layout())
        One header per packet, taken with its third word.
    extra : In(1)
        The packet of the offered header has payload words in addition to its elements.
    payload : In(stream of word_layout())
    o : Out(stream of word_layout())
    may_start : In(1)
        The link can accept a whole packet.
    give_up : In(1)
        Level: aborts the packet in progress.
    abort_header : In(header_layout())
        Header of the ABORT packet; must be stable while ``give_up`` is high.
    aborted : Out(1)
        Level: the ABORT packet has been sent, or its last word is at least in the register ``o``.
    stalled : Out(1)
        A packet waits for ``may_start``.
    idle : Out(1)
        No packet is in progress, and ``o`` is empty.
    clear : In(1)
        Level: clears all state, including the offered word.
    """

    latency = 1

    header: In(stream.Signature(header_layout()))
    extra: In(1)
    payload: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    may_start: In(1)
    give_up: In(1)
    abort_header: In(header_layout())
    aborted: Out(1)
    stalled: Out(1)
    idle: Out(1)
    clear: In(1)

    def elaborate(self, platform):
        m = Module()
        starting = Signal()  # no packet is in progress
        aborting = Signal()  # the packet in progress is the ABORT packet
        stomp = Signal()
        room = Signal()
        stage = Signal()  # a word of the header or payload is loaded into the output register
        ends = Signal()  # the CRC enters the output register
        word = Signal(32)
        fields = Signal(96)
        mixed = Signal(32)  # the word in the output register, XORed with the CRC of the preceding words
        crc = Signal(32)  # CRC including the word in the output register

        m.d.comb += [
            crc.eq(crc_after(mixed)),
            room.eq(self.o.ready | ~self.o.valid),
            stomp.eq(self.give_up & ~aborting & ~starting),
            fields.eq(Mux(Mux(starting, self.give_up, aborting),
                          self.abort_header.as_value(), self.header.payload.as_value())),
        ]
        with m.If(room):
            m.d.sync += self.o.valid.eq(stage | ends)
        with m.If(stage | ends):
            m.d.sync += [
                self.o.payload.data.eq(Mux(ends, crc ^ (~stomp).replicate(32), word)),
                self.o.payload.last.eq(ends),
                mixed.eq(Mux(starting, 0xffffffff, crc) ^ word),
            ]
        with m.If(self.give_up):
            m.d.comb += [self.header.ready.eq(1), self.payload.ready.eq(1)]

        @contextlib.contextmanager
        def unless_stomped():
            with m.If(stomp):
                with m.If(room):
                    m.d.comb += ends.eq(1)
                    m.next = "Word0"
            with m.Else():
                yield

        with m.FSM():
            with m.State("Word0"):
                wanted = self.give_up | self.header.valid
                m.d.comb += [
                    starting.eq(1),
                    word.eq(fields[:32]),
                    stage.eq(wanted & self.may_start & room),
                    self.stalled.eq(wanted & ~self.may_start),
                    self.idle.eq(~self.o.valid),
                ]
                with m.If(stage):
                    m.d.sync += aborting.eq(self.give_up)
                    m.next = "Word1"
            with m.State("Word1"), unless_stomped():
                m.d.comb += [word.eq(fields[32:64]), stage.eq(room)]
                with m.If(stage):
                    m.next = "Word2"
            with m.State("Word2"), unless_stomped():
                m.d.comb += [word.eq(fields[64:]), stage.eq(room)]
                with m.If(stage):
                    with m.If(~aborting):
                        m.d.comb += self.header.ready.eq(1)
                    m.next = "Payload"
                    with m.If(aborting | ((self.header.payload.length == 0) & ~self.extra)):
                        m.next = "Trailer"
            with m.State("Payload"), unless_stomped():
                m.d.comb += [word.eq(self.payload.payload.data), stage.eq(self.payload.valid & room)]
                with m.If(room):
                    m.d.comb += self.payload.ready.eq(1)
                with m.If(stage & self.payload.payload.last):
                    m.next = "Trailer"
            with m.State("Trailer"), unless_stomped():
                with m.If(room):
                    m.d.comb += ends.eq(1)
                    m.next = "Word0"
                    with m.If(aborting):
                        m.next = "Aborted"
            with m.State("Aborted"):
                m.d.comb += self.aborted.eq(1)
                with m.If(~self.give_up):
                    m.next = "Word0"
        return ResetInserter(self.clear)(m)
