"""Return line of a link with replay, which carries 30-bit messages on one wire, and the units at its ends."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.check import INITIAL, after_bit

__all__ = ["MESSAGE_BITS", "Listener", "Speaker", "message_layout"]

#: Number of bits in a message (mark, fields, inverse of ``given``, CRC), and in the gap before the first message.
MESSAGE_BITS = 30
#: Position of the first CRC bit in a message.
_CHECK = 22
#: Value of the CRC register after a message's mark bit.
_MARKED = INITIAL << 1 & 0xFF


def message_layout():
    """Layout of a message from the receiver: number of the next expected word, number of packets that have left the
    receiver (modulo 16), number of the last restart seen (modulo 4), and whether the receiver is waiting for a
    restart."""
    return data.StructLayout({"expect": 10, "given": 4, "id": 2, "recover": 1})


class Speaker(wiring.Component):
    """Receiver's end of the return line, which sends a gap of zeros when started, followed by endless messages.

    A message reports the state at its beginning, except for ``recover``, which is sampled when its bit is sent. The
    line is driven by a register.

    Members
    -------
    now : In(message_layout())
    start : In(1)
        Start the gap in the next cycle. The first message starts :data:`MESSAGE_BITS` cycles later.
    active : Out(1)
        The unit has been started.
    line : Out(1)
    """

    now: In(message_layout())
    start: In(1)
    active: Out(1)
    line: Out(1)

    def elaborate(self, platform):
        m = Module()
        gap = Signal()
        count = Signal(range(MESSAGE_BITS))
        fields = Signal(_CHECK - 2)
        check = Signal(8, init=_MARKED)
        bit = Signal()
        now = self.now
        begins, ends, checked = count == 0, count == _CHECK - 1, count >= _CHECK

        m.d.comb += bit.eq(Mux(begins, 1, Mux(ends, now.recover, Mux(checked, check[7], fields[0]))))
        with m.If(self.active):
            m.d.sync += [
                self.line.eq(bit & ~gap),
                count.eq(count + 1),
                fields.eq(Mux(begins, Cat(now.expect, now.given, ~now.given, now.id), fields >> 1)),
                # After the last field bit, the CRC register is fed its own output bit, so that it only shifts.
                check.eq(Mux(begins, _MARKED, after_bit(check, bit))),
            ]
            with m.If(count == MESSAGE_BITS - 1):
                m.d.sync += [count.eq(0), gap.eq(0)]
        with m.If(self.start):
            m.d.sync += [self.active.eq(1), gap.eq(1), count.eq(0)]
        return m


class Listener(wiring.Component):
    """Transmitter's end of the return line, which finds the first message after a gap and then keeps its phase.

    A gap has at least :data:`MESSAGE_BITS` zeros in a row, which no message has. Outputs depend only on registers.

    Parameters
    ----------
    ports : int
        Number of lines, 1 or 2; the unit listens to one at a time and tracks the phase of both.

    Members
    -------
    line : In(1)
    swap : In(1)
        With two ports: ``line`` is the other port's line from the next cycle on.
    lost : In(1)
        With ``complete``: the bits were not a message, so look for the next gap.
    complete : Out(1)
        The last bit of a message arrived one cycle ago.
    good : Out(1)
        With ``complete``: the message is intact.
    message : Out(message_layout())
        Valid with ``complete``.
    marked : Out(1)
        The first bit after a gap arrived one cycle ago.
    """

    def __init__(self, *, ports=1):
        self._ports = ports
        super().__init__({
            "line": In(1), "lost": In(1), "complete": Out(1), "good": Out(1), "message": Out(message_layout()),
            "marked": Out(1), **({"swap": In(1)} if ports > 1 else {}),
        })

    def elaborate(self, platform):
        m = Module()
        phased = Signal()  # the start of a message may have been found; its CRC will confirm this
        count = Signal(range(MESSAGE_BITS + 1))  # message bits received or, in a gap, zeros in a row
        bits = Signal(MESSAGE_BITS)
        check = Signal(8, init=_MARKED)
        whole = Signal(init=1)  # all of this message has been received on this line
        mark, expect, departed, inverse, id, recover = (
            bits[0], bits[1:11], bits[11:15], bits[15:19], bits[19:21], bits[21])

        m.d.comb += [
            self.good.eq(mark & (check == 0) & (departed == ~inverse)),
            Cat(self.message.expect, self.message.given, self.message.id, self.message.recover).eq(
                Cat(expect, departed, id, recover)),
        ]
        m.d.sync += [
            bits.eq(Cat(bits[1:], self.line)),
            check.eq(Mux(phased & (count != 0), after_bit(check, self.line), _MARKED)),
            self.complete.eq(0),
            self.marked.eq(0),
        ]
        with m.If(self.lost):
            m.d.sync += [phased.eq(0), count.eq(0)]
        with m.Elif(phased):
            m.d.sync += count.eq(count + 1)
            with m.If(count == MESSAGE_BITS - 1):
                m.d.sync += [count.eq(0), self.complete.eq(whole), whole.eq(1)]
        with m.Elif(~self.line):
            with m.If(count != MESSAGE_BITS):
                m.d.sync += count.eq(count + 1)
        with m.Elif(count == MESSAGE_BITS):
            m.d.sync += [phased.eq(1), count.eq(1), self.marked.eq(1)]
        with m.Else():
            m.d.sync += count.eq(0)
        if self._ports > 1:
            # The phase of the other line is tracked even while that line is not in use.
            other_phased, other_count = Signal(), Signal(range(MESSAGE_BITS))
            m.d.sync += other_count.eq(_after(other_count))
            with m.If(self.swap):
                m.d.sync += [
                    Cat(phased, other_phased).eq(Cat(other_phased, phased)),
                    count.eq(Mux(other_phased, _after(other_count), 0)),
                    other_count.eq(_after(count)),
                    whole.eq(~other_phased),
                    self.complete.eq(0),
                    self.marked.eq(0),
                ]
        return m


def _after(count):
    """Return the position of the next bit within its message."""
    return Mux(count == MESSAGE_BITS - 1, 0, count + 1)
