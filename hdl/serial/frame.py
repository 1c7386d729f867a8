"""Frames that carry pieces of packets over a byte stream; docs/serial.md gives their layout.

A frame consists of a flag followed by the header, payload words and CRC-32 as little-endian bytes. Flag and escape
bytes among these are sent as an escape and the byte with bit 5 inverted. A flag therefore always starts a frame, so
the receiver can resynchronise after any damage by dropping all bytes before the next flag.
"""

import contextlib

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.checksum import crc_after

__all__ = ["ESCAPE", "FLAG", "INVERTED", "MAX_WORDS", "FrameKind", "FrameReceiver", "FrameTransmitter",
           "header_layout"]

FLAG = 0x7E
"""First byte of a frame. Flag and escape are both rare among the bytes of binary32 numbers near 1."""

ESCAPE = 0x7D
"""Escape byte: the byte after it has bit 5 inverted."""

INVERTED = 0x20

MAX_WORDS = 127
"""Maximum number of payload words in a header."""

_RESIDUE = 0xDEBB20E3  # value of the CRC register after a frame with a correct CRC


class FrameKind(enum.Enum, shape=2):
    """Purpose of a frame."""

    DATA = 0
    """Words, if any, and the acknowledgement of the other side's words."""
    OPEN = 1
    """From the host: a request to restart, or with ``again`` only to answer. From the board: the answer."""
    STATUS = 2
    """From the host: a request for the counters. From the board: the counters."""


def header_layout():
    """Layout of the two header words, lowest first; docs/serial.md explains the fields."""
    return data.StructLayout({
        "kind": FrameKind, "last": 1, "again": 1, "node": 4,
        "length": 7, "reply": 1,
        "sequence": 16,
        "acknowledged": 16, "limit": 16,
    })


class FrameTransmitter(wiring.Component):
    """Serialize frames into bytes, without gaps while the payload arrives in time.

    ``payload.ready`` and, between flags, ``o`` depend only on registers; a flag is offered while a header is offered.
    A payload word is accepted once all bytes of the previous word have left.

    Members
    -------
    header : In(stream of header_layout())
        Header of a frame, accepted together with the flag.
    payload : In(stream of 32)
        Payload words; their count is in the header.
    o : Out(stream of 8)
    done : Out(1)
        The last byte of a frame is accepted in this cycle.
    """

    header: In(stream.Signature(header_layout()))
    payload: In(stream.Signature(32))
    o: Out(stream.Signature(8))
    done: Out(1)

    def elaborate(self, platform):
        m = Module()
        shift = Signal(64)
        left = Signal(range(9))  # number of bytes left in `shift`
        words = Signal(7)
        crc = Signal(32)
        mixed = Signal(32)
        special = Signal()
        escaped = Signal()
        step = Signal()  # a byte leaves in this cycle
        final = Signal()

        m.d.comb += [
            special.eq((shift[:8] == FLAG) | (shift[:8] == ESCAPE)),
            mixed.eq(crc ^ shift[:8]),
            final.eq(left == 1),
        ]

        def send():
            m.d.comb += [
                self.o.valid.eq(1),
                self.o.payload.eq(Mux(special, Mux(escaped, shift[:8] ^ INVERTED, ESCAPE), shift[:8])),
                step.eq(self.o.ready & (~special | escaped)),
            ]
            with m.If(self.o.ready):
                m.d.sync += escaped.eq(special & ~escaped)
            with m.If(step):
                m.d.sync += [shift.eq(shift >> 8), left.eq(left - 1), crc.eq(crc_after(mixed, 8))]

        with m.FSM():
            with m.State("Flag"):
                m.d.comb += [
                    self.o.valid.eq(self.header.valid), self.o.payload.eq(FLAG),
                    self.header.ready.eq(self.o.ready),
                ]
                m.d.sync += [
                    shift.eq(self.header.payload.as_value()), left.eq(8), words.eq(self.header.payload.length),
                    crc.eq(0xFFFFFFFF),
                ]
                with m.If(self.header.valid & self.o.ready):
                    m.next = "Bytes"
            with m.State("Bytes"):
                send()
                with m.If(step & final):
                    m.next = "Word"
            with m.State("Word"):
                m.d.sync += left.eq(4)
                with m.If(words == 0):
                    m.d.sync += shift.eq(~crc)
                    m.next = "Check"
                with m.Else():
                    m.d.comb += self.payload.ready.eq(1)
                    m.d.sync += shift.eq(self.payload.payload)
                    with m.If(self.payload.valid):
                        m.d.sync += words.eq(words - 1)
                        m.next = "Bytes"
            with m.State("Check"):
                send()
                with m.If(step & final):
                    m.d.comb += self.done.eq(1)
                    m.next = "Flag"
        return m


class FrameReceiver(wiring.Component):
    """Parse frames and check their CRCs.

    Payload words are output before their frame has been checked, so a unit that stores them must be able to discard
    them. The end of a frame is marked by ``good``, or by ``bad_crc`` or ``resync`` if the frame is unusable.

    Members
    -------
    value : In(8)
    received : In(1)
        ``value`` is a byte received in this cycle; at most one byte per three cycles.
    broken : In(1)
        A byte was lost, so the frame is dropped.
    header : Out(header_layout())
        Header; valid from ``started`` until the next flag.
    started : Out(1)
        A header has been received.
    word : Out(32)
    index : Out(7)
        Index of the word within its frame.
    write : Out(1)
        ``word`` is a payload word in this cycle, which comes some cycles after ``started``.
    good : Out(1)
        The frame has ended with a correct CRC and is not a reply (for example an echo of a frame that this end sent).
    bad_crc : Out(1)
        The frame has ended with a wrong CRC.
    resync : Out(1)
        The frame was cut short by a flag or by a lost byte.
    """

    value: In(8)
    received: In(1)
    broken: In(1)
    header: Out(header_layout())
    started: Out(1)
    word: Out(32)
    index: Out(7)
    write: Out(1)
    good: Out(1)
    bad_crc: Out(1)
    resync: Out(1)

    def elaborate(self, platform):
        m = Module()
        shift = Signal(64)
        left = Signal(range(8))  # number of bytes left in the header, word or CRC, minus one
        untouched = Signal()  # no byte has arrived since the flag
        escape = Signal()
        crc = Signal(32)
        byte = Signal(8)
        take = Signal()
        final = Signal()

        m.d.comb += [
            byte.eq(self.value ^ (escape << 5)),
            take.eq(self.received & (self.value != FLAG) & (self.value != ESCAPE)),
            final.eq(take & (left == 0)),
            self.word.eq(shift[32:]),
        ]
        m.d.sync += [self.started.eq(0), self.write.eq(0), self.resync.eq(0)]
        with m.If(self.received):
            m.d.sync += escape.eq(self.value == ESCAPE)
        with m.If(take):
            m.d.sync += [
                shift.eq(Cat(shift[8:], byte)), crc.eq(crc_after(crc ^ byte, 8)), left.eq(left - 1),
                untouched.eq(0),
            ]
        with m.If(self.write):
            m.d.sync += self.index.eq(self.index + 1)

        @contextlib.contextmanager
        def state(name):
            with m.State(name):
                with m.If(self.received & (self.value == FLAG)):
                    m.d.sync += [
                        left.eq(7), crc.eq(0xFFFFFFFF), untouched.eq(1),
                        self.resync.eq(0 if name == "Hunt" else ~untouched),
                    ]
                    m.next = "Header"
                with m.Elif(self.broken):
                    m.d.sync += self.resync.eq(name != "Hunt")
                    m.next = "Hunt"
                with m.Else():
                    yield

        with m.FSM():
            with state("Hunt"):
                pass
            with state("Header"):
                with m.If(final):
                    m.next = "Begin"
            with state("Begin"):
                m.d.sync += [self.header.eq(shift), self.started.eq(1), self.index.eq(0), left.eq(3)]
                m.next = "Check"
                with m.If(header_layout()(shift).length != 0):
                    m.next = "Words"
            with state("Words"):
                with m.If(final):
                    m.d.sync += [self.write.eq(1), left.eq(3)]
                    with m.If(self.index == self.header.length - 1):
                        m.next = "Check"
            with state("Check"):
                with m.If(final):
                    m.next = "Verdict"
            with state("Verdict"):
                with m.If(crc == _RESIDUE):
                    m.d.comb += self.good.eq(~self.header.reply)
                with m.Else():
                    m.d.comb += self.bad_crc.eq(1)
                m.next = "Hunt"
        return m
