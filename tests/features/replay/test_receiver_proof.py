"""Proof that the receiver delivers each word once and in order, under any fault that the check detects."""

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.replay.check import check_of
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.receiver import ReplayReceiver
from sim.formal import prove
from tests.proofs import refuted

NEAR = 3


class OnceAndInOrder(wiring.Component):
    """Specification of a receiver with arbitrary wires. In each cycle, the solver drives the wires with nothing; with
    one of the last or next few words, so that words get lost, duplicated and swapped; with a RESTART that has the
    number of a recent word; or with a word whose check field does not match the expected word. The first RESTART is a
    START.

    A wrong word has 10 free bits besides its check field, so there are more wrong words than the check can
    distinguish.

    Word j has the data j, ends a packet if j is 3 modulo 4, and is a control word if j is 5 modulo 8.

    Parameters
    ----------
    seen : bool
        Whether the check detects all wrong words; otherwise wrong words are arbitrary.
    """

    valid: In(1)
    wrong: In(1)
    is_restart: In(1)
    number: In(10)
    id: In(2)
    noise: In(8)
    noise_check: In(8)
    noise_last: In(1)
    noise_kind: In(1)

    def __init__(self, *, seen=True):
        super().__init__()
        self._seen = seen

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = ReplayReceiver(segments=2, packet_words=5)
        ring = receiver.ring_i
        due, reached = Signal(10), Signal(10)  # next number expected on the wires; number of the first missing word
        waits = Signal(init=1)  # whether the receiver waits for a RESTART word
        begun = Signal()  # whether a START word has arrived

        number = self.number
        control = number[:3] == 5
        word = Cat(number, Const(0, 22), (number[:2] == 3) & ~control, control)
        restart = Cat(Mux(begun, ControlType.RESTART, ControlType.START), number, self.id, Const(0, 16), 1, 1)
        noise = Cat(self.noise, Const(0x5A5A5A, 24), self.noise_last, self.noise_kind)
        bits = Mux(self.wrong, noise, Mux(self.is_restart, restart, word))
        check = Mux(self.wrong, self.noise_check, check_of(bits) ^ Mux(self.is_restart, 0, number[:8]))
        named = Signal(8)
        own = bits[33] & bits[32]
        m.d.comb += [
            Assume(~ResetSignal()),
            named.eq(check_of(bits) ^ check),
            ring.valid.eq(self.valid),
            Cat(ring.data, ring.last, ring.kind, ring.check).eq(Cat(bits, check)),
            receiver.o.ready.eq(1),
            receiver.control.ready.eq(1),
        ]
        with m.If(self.valid & self.wrong):
            if self._seen:
                m.d.comb += Assume(named != Mux(own, 0, due[:8]))
        with m.Elif(self.valid & self.is_restart):
            m.d.comb += Assume(Mux(begun, (reached - number)[:10] <= NEAR, number == 0))
        with m.Elif(self.valid):
            m.d.comb += Assume((number - reached + NEAR)[:10] <= 2 * NEAR)

        good = self.valid & ~self.wrong & ~self.is_restart & ~waits & (number == due)
        with m.If(self.valid & ~self.wrong & self.is_restart):
            m.d.sync += [due.eq(number), waits.eq(0), begun.eq(1)]
        with m.Elif(good):
            m.d.sync += due.eq(due + 1)
            with m.If(due == reached):
                m.d.sync += reached.eq(reached + 1)
        with m.Elif(self.valid):
            m.d.sync += waits.eq(1)

        data, controls = Signal(10), Signal(10, init=5)  # the next words that the ports must output
        m.d.comb += Assert(~receiver.overrun)
        with m.If(receiver.o.valid):
            m.d.comb += [
                Assert(receiver.o.payload.data == data),
                Assert(receiver.o.payload.last == (data[:2] == 3)),
            ]
            m.d.sync += data.eq(data + 1 + (data[:3] == 4))
        with m.If(receiver.control.valid):
            m.d.comb += Assert(receiver.control.payload == controls)
            with m.If(receiver.control.ready):
                m.d.sync += controls.eq(controls + 8)
        return m


def test_once_and_in_order():
    prove(OnceAndInOrder(), depth=9, mode="bmc")


def test_unseen_faults():
    """The proof fails if wrong words are not assumed to be detected by their check field."""
    refuted(OnceAndInOrder(seen=False), depth=8)
