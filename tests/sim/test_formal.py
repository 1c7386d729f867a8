# amaranth: UnusedElaboratable=no
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim import formal
from tests.refusals import refuses


class Counts(wiring.Component):
    """Unit that asserts that a counter, which saturates at ``stop``, never exceeds ``bound``."""

    step: In(1)

    def __init__(self, *, stop, bound):
        super().__init__()
        self._stop, self._bound = stop, bound

    def elaborate(self, platform):
        m = Module()
        count = Signal(4)
        with m.If(self.step & (count != self._stop)):
            m.d.sync += count.eq(count + 1)
        m.d.comb += Assert(count <= self._bound)
        return m


class Free(wiring.Component):
    """Unit that asserts the handshake rule for a stream that nothing drives."""

    i: In(stream.Signature(2))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += Assert(formal.holds(m, "i", self.i))
        return m


class Passes(wiring.Component):
    """Unit that forwards its input except while ``held`` is high."""

    i: In(stream.Signature(2))
    o: Out(stream.Signature(2))
    held: In(1)
    passed: Out(1)

    def __init__(self, *, held):
        super().__init__()
        self._held = held

    def elaborate(self, platform):
        m = Module()
        passing = ~self.held if self._held else 1
        m.d.comb += [
            self.o.payload.eq(self.i.payload), self.o.valid.eq(self.i.valid & passing),
            self.i.ready.eq(self.o.ready & passing), self.passed.eq(self.o.valid & self.o.ready),
        ]
        return m


def test_offers():
    formal.prove(formal.Offers(Passes(held=False)), depth=2)
    with pytest.raises(formal.RefutedError, match=r"DONE \(FAIL"):
        formal.prove(formal.Offers(Passes(held=True)), depth=4)


class Nested(wiring.Component):
    ports: In(wiring.Signature({"q": In(1)}))


def test_offers_of_signals_and_streams_alone():
    with pytest.raises(TypeError, match=r"^Members of a unit to be proven must be signals and streams, not ports: "):
        formal.Offers(Nested())


def test_proof():
    formal.prove(Counts(stop=5, bound=5), depth=2)


def test_counterexample():
    with pytest.raises(formal.RefutedError, match=r"(?s)DONE \(FAIL.*traces are in (\S+)$") as caught:
        formal.prove(Counts(stop=5, bound=4), depth=8)
    assert list(Path(str(caught.value).rsplit(" ", 1)[1]).glob("engine_0/trace.vcd"))


def test_what_induction_cannot_decide_is_not_proven():
    with pytest.raises(formal.RefutedError, match=r"DONE \(UNKNOWN"):
        formal.prove(Counts(stop=5, bound=8), depth=4)


def test_bound_of_a_bounded_check():
    formal.prove(Counts(stop=15, bound=9), depth=9, mode="bmc")
    with pytest.raises(formal.RefutedError, match=r"DONE \(FAIL"):
        formal.prove(Counts(stop=15, bound=9), depth=12, mode="bmc")


def test_holds_is_not_vacuous():
    with pytest.raises(formal.RefutedError, match=r"DONE \(FAIL"):
        formal.prove(Free(), depth=4)


def test_arguments():
    refuses("Mode must be one of prove, bmc, not 'cover'", formal.prove, Free(), depth=4, mode="cover")
    refuses("Depth must be a positive integer, not 0", formal.prove, Free(), depth=0)
