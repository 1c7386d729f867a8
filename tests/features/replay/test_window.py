"""A transmitter's window of word numbers: hdl/features/replay/window.py.

The transmitter's lockstep tests compare its cycles with a model; this file proves that no word is lost.
"""

from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.replay.window import NUMBER_BITS, Window
from sim.formal import prove
from tests.proofs import refuted

ROWS, WINDOW = 8, 3


class KeepsWhatHasNotArrived(wiring.Component):
    """Specification: words are kept until they arrive, if no two consecutive messages are both wrong.

    ``arrived`` is the number that the receiver expects. It may grow in any cycle, up to the number of words sent. A
    true message has a number that the receiver has expected at some time since the last true message; a wrong message
    has an arbitrary number.
    """

    enters: In(1)
    fetches: In(1)
    complete: In(1)
    expect: In(NUMBER_BITS)
    is_true: In(1)
    arrives: In(1)
    demanded: In(1)
    goes_back: In(1)

    def __init__(self, *, two_wrong=False):
        super().__init__()
        self._two_wrong = two_wrong

    def elaborate(self, platform):
        m = Module()
        m.submodules.window = window = Window(rows=ROWS, window=WINDOW)
        arrived, told = Signal(NUMBER_BITS), Signal(NUMBER_BITS)  # number at the receiver; last true number
        was_true, was_complete = Signal(init=1), Signal()

        def distance(first, last):
            return (last - first)[:NUMBER_BITS]

        base = window.acknowledged
        m.d.comb += [
            window.enters.eq(self.enters & window.room),
            window.fetches.eq(self.fetches & window.pending),
            window.complete.eq(self.complete & ~was_complete),
            window.expect.eq(self.expect),
            window.count.eq(1),
            window.demanded.eq(self.demanded & window.judged),
            window.goes_back.eq(self.goes_back),
            Assume(~ResetSignal()),
        ]
        m.d.sync += was_complete.eq(window.complete)
        with m.If(self.arrives & (arrived != window.highest)):
            m.d.sync += arrived.eq(arrived + 1)
        with m.If(window.complete):
            with m.If(self.is_true):
                m.d.comb += Assume(distance(told, self.expect) <= distance(told, arrived))
                m.d.sync += told.eq(self.expect)
            if not self._two_wrong:
                with m.Else():
                    m.d.comb += Assume(was_true)
            m.d.sync += was_true.eq(self.is_true)

        # Properties to be proven.
        kept = distance(base, window.write)
        m.d.comb += [
            Assert(kept <= ROWS),
            Assert(distance(base, arrived) <= WINDOW),
            Assert(distance(base, window.highest) <= WINDOW),
            Assert(distance(base, window.highest) <= kept),
        ]
        return m


def test_nothing_is_given_up_too_early():
    prove(KeepsWhatHasNotArrived(), depth=14, mode="bmc")


def test_two_wrong_messages_are_too_many():
    """After two consecutive wrong messages, the property fails, so the assumption is necessary."""
    refuted(KeepsWhatHasNotArrived(two_wrong=True), depth=14)
