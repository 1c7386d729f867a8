"""UART receiver and transmitter, with a start bit, eight data bits (lowest first) and a stop bit per byte."""

import math

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["UartReceiver", "UartTransmitter", "check_rates"]

_LEAST = 4  # minimum number of cycles per bit, so that three samples for the majority vote are within one bit


def check_rates(clock, baud):
    """Raise ValueError unless ``clock`` and ``baud``, in Hz, allow at least four cycles per bit."""
    for name, rate in (("Clock", clock), ("Baud rate", baud)):
        if not isinstance(rate, int) or rate < 1:
            raise ValueError(f"{name} must be a positive integer, not {rate!r}")
    if clock < _LEAST * baud:
        raise ValueError(f"Baud rate must be at most {clock // _LEAST}, a {_LEAST}th of the clock, not {baud!r}")


class _BitClock:
    """Bit clock with a fractional number of cycles per bit and no accumulated rounding error.

    The phase counts bits in units of 1 / denominator, starting below zero. A bit ends in the cycle when the sign bit
    of the phase is clear.
    """

    def __init__(self, clock, baud):
        check_rates(clock, baud)
        divisor = math.gcd(clock, baud)
        self.numerator, self.denominator = baud // divisor, clock // divisor
        self.shape = signed(self.denominator.bit_length() + 1)


class UartReceiver(wiring.Component):
    """Receive bytes.

    The wire passes through a synchroniser and a majority vote over three samples. Each bit is sampled in its middle,
    counted from the leading edge of the start bit, so the bit lengths of sender and receiver may differ by 4 %. A
    start bit that ends before its middle is treated as noise. A byte with a low stop bit is dropped, and the receiver
    waits until the wire is high again before it expects the next start bit.

    Parameters
    ----------
    clock, baud : int
        Clock cycles and bits per second; at least four cycles per bit, not necessarily a whole number.

    Members
    -------
    rx : In(1)
        Wire, high when idle; not synchronous to the clock.
    value : Out(8)
    received : Out(1)
        A byte is available in this cycle, in the middle of its stop bit.
    framing_error : Out(1)
        High for one cycle, instead of a byte.
    """

    def __init__(self, *, clock, baud):
        self._bits = _BitClock(clock, baud)
        super().__init__({
            "rx": In(1, init=1),
            "value": Out(8),
            "received": Out(1),
            "framing_error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        numerator, denominator = self._bits.numerator, self._bits.denominator
        wire = Signal(init=1)
        before = Signal(2, init=3)
        level = Signal(init=1)
        phase = Signal(self._bits.shape)
        middle = Signal()
        bits = Signal(9)  # shift register; eight more bits push the start bit out of its low end
        first = Signal()

        m.submodules.synchronizer = FFSynchronizer(self.rx, wire, init=1)
        m.d.comb += middle.eq(~phase[-1])
        m.d.sync += [
            before.eq(Cat(wire, before)),
            level.eq((wire & before[0]) | (wire & before[1]) | (before[0] & before[1])),
            phase.eq(phase + numerator),
            self.received.eq(0),
            self.framing_error.eq(0),
        ]
        with m.If(middle):
            m.d.sync += phase.eq(phase + (numerator - denominator))

        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [first.eq(1), bits.eq(0x1FF)]
                with m.If(~level):
                    # On average, the edge came half a cycle before this cycle, and the phase is set one cycle late.
                    m.d.sync += phase.eq(numerator + numerator // 2 - denominator // 2)
                    m.next = "Bits"
            with m.State("Bits"):
                with m.If(middle):
                    m.d.sync += [first.eq(0), bits.eq(Cat(bits[1:], level))]
                    with m.If(first & level):
                        m.next = "Idle"
                    with m.Elif(~bits[0]):
                        m.d.sync += [self.value.eq(bits[1:]), self.received.eq(level)]
                        m.next = "Idle"
                        with m.If(~level):
                            m.d.sync += self.framing_error.eq(1)
                            m.next = "Break"
            with m.State("Break"):
                with m.If(level):
                    m.next = "Idle"
        return m


class UartTransmitter(wiring.Component):
    """Send bytes back to back.

    ``tx`` is a register. ``i.ready`` depends only on registers.

    Parameters
    ----------
    clock, baud : int
        See :class:`UartReceiver`.

    Members
    -------
    i : In(stream of 8)
    tx : Out(1)
        Wire, high when idle.
    busy : Out(1)
        A byte is on the wire.
    """

    def __init__(self, *, clock, baud):
        self._bits = _BitClock(clock, baud)
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1), "busy": Out(1)})

    def elaborate(self, platform):
        m = Module()
        numerator, denominator = self._bits.numerator, self._bits.denominator
        phase = Signal(self._bits.shape)
        passed = Signal()
        bits = Signal(9, init=0x1FF)  # number of remaining bits after the one being sent
        left = Signal(range(11))

        m.d.comb += [
            passed.eq(~phase[-1]),
            self.busy.eq(left != 0),
            self.i.ready.eq((left == 0) | ((left == 1) & passed)),
        ]
        m.d.sync += phase.eq(phase + numerator)
        with m.If(passed):
            m.d.sync += phase.eq(phase + (numerator - denominator))
            with m.If(left != 0):
                m.d.sync += [self.tx.eq(bits[0]), bits.eq(Cat(bits[1:], 1)), left.eq(left - 1)]
        with m.If(self.i.ready & self.i.valid):
            m.d.sync += [self.tx.eq(0), bits.eq(Cat(self.i.payload, 1)), left.eq(10)]
            with m.If(left == 0):
                m.d.sync += phase.eq(numerator - denominator)
        return m
