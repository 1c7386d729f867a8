"""Frames: pieces of packets on a wire of bytes, found again after any damage; docs/serial.md has their layout.

A frame is a flag, then its header, its payload words and a CRC-32 as little-endian bytes, in which a flag or an
escape is sent as an escape and the byte with bit 5 inverted. So a flag is the start of a frame wherever it comes, and
what went before is forgotten.
"""

import contextlib

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.packet import crc_after

__all__ = ["ESCAPE", "FLAG", "INVERTED", "MOST_WORDS", "FrameKind", "FrameReceiver", "FrameTransmitter",
           "header_layout"]

FLAG = 0x7E
"""Begins a frame. Neither this nor the escape is common among the bytes of binary32 numbers near 1."""

ESCAPE = 0x7D
"""The byte behind it has bit 5 inverted."""

INVERTED = 0x20

MOST_WORDS = 127
"""Payload words that a header can tell."""

_RESIDUE = 0xDEBB20E3  # what the CRC register is after a right CRC


class FrameKind(enum.Enum, shape=2):
    """What a frame is for."""

    DATA = 0
    """Words, if any, and how far those of the other side have come."""
    OPEN = 1
    """The host: begin anew. With ``again``: only answer. The board: the answer."""
    STATUS = 2
    """The host: send counters. The board: counters."""


def header_layout():
    """The two header words, first word lowest; docs/serial.md explains the fields."""
    return data.StructLayout({
        "kind": FrameKind, "last": 1, "again": 1, "node": 4,
        "length": 7, "reply": 1,
        "sequence": 16,
        "acknowledged": 16, "limit": 16,
    })


class FrameTransmitter(wiring.Component):
    """Makes bytes of frames, without a gap as long as payload comes in time.

    ``payload.ready`` and, between flags, ``o`` depend on registers alone; a flag is offered as long as ``header`` is.
    A payload word is taken when the bytes of the one before are gone.

    Members
    -------
    header : In(stream of header_layout())
        Taken with the flag.
    payload : In(stream of 32)
        As many words as the header said.
    o : Out(stream of 8)
    done : Out(1)
        In the cycle in which the last byte of a frame is taken.
    """

    header: In(stream.Signature(header_layout()))
    payload: In(stream.Signature(32))
    o: Out(stream.Signature(8))
    done: Out(1)

    def elaborate(self, platform):
        m = Module()
        shift = Signal(64)
        left = Signal(range(9))  # bytes in it
        words = Signal(7)
        crc = Signal(32)
        mixed = Signal(32)
        special = Signal()
        escaped = Signal()
        step = Signal()  # a byte has gone
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
    """Takes frames apart, and says which ones are whole.

    Payload words come before the verdict over their frame: whoever stores them must be able to forget them. A frame
    ends with ``good``, or with none of its bytes being of use: ``bad_crc`` or ``resync`` tells of it.

    Members
    -------
    value : In(8)
    received : In(1)
        There is a byte; at most in every third cycle.
    broken : In(1)
        A byte was lost: the frame is dropped.
    header : Out(header_layout())
        From ``started`` on, up to the next flag.
    started : Out(1)
        A header has come.
    word : Out(32)
    index : Out(7)
        Number of the word in its frame.
    write : Out(1)
        There is a payload word in this cycle, some cycles after ``started``.
    good : Out(1)
        The frame has ended, with a right CRC, and is not one that was sent from here.
    bad_crc : Out(1)
        The frame has ended with a wrong CRC.
    resync : Out(1)
        The frame has ended in the middle, with a flag or with a lost byte.
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
        left = Signal(range(8))  # bytes of header, word or CRC to come, less one
        untouched = Signal()  # nothing has come since the flag
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
