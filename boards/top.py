"""What is around a design on a board: its clock, its reset and its pins."""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Elaboratable, Module, ResetSignal, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer

from boards.pll import Ecp5Pll, Ice40Pll
from boards.tools import ECP5

__all__ = ["Top"]


class Top(Elaboratable):
    """A design on a board.

    The clock comes from the chip's PLL. The design is held in reset until the PLL has locked, while the board's
    button is pressed, and for :attr:`hold` cycles more: a button bounces, and memories of an iCE40 read zeros for its
    first microseconds.

    Parameters
    ----------
    board : Board
    clock : int
        In Hz.
    design : Component
        With ports ``rx``, ``tx`` and ``lights`` as those of :class:`~hdl.board.BoardTop`.
    """

    hold = 1 << 16

    def __init__(self, *, board, clock, design):
        self._board = board
        self._clock = clock
        self._design = design

    def elaborate(self, platform):
        m = Module()
        m.submodules.board = design = self._design
        platform.add_resources(self._board.resources)

        def request(name, number=0):
            return platform.request(name, number, dir="-")

        m.submodules.pll = pll = self._pll(m, platform, request(platform.default_clk))
        m.domains.sync = ClockDomain()
        m.domains.start = ClockDomain()
        m.d.comb += [ClockSignal("sync").eq(pll.o), ClockSignal("start").eq(pll.o)]
        unlocked = ~pll.locked
        if self._board.button is not None:
            m.submodules.button = button = io.Buffer("i", request(self._board.button))
            unlocked |= button.i
        m.submodules.start = ResetSynchronizer(unlocked, domain="start")
        held = Signal(init=1)
        left = Signal(range(self.hold), init=self.hold - 1)
        m.d.start += held.eq(left != 0)
        with m.If(left != 0):
            m.d.start += left.eq(left - 1)
        m.d.comb += ResetSignal("sync").eq(held)

        uart = request("uart")
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.d.comb += [design.rx.eq(rx.i), tx.o.eq(design.tx)]
        groups = {}
        for (name, which), shown in self._board.lights.items():
            if isinstance(which, str):
                if name not in groups:
                    groups[name] = request(name)
                port = getattr(groups[name], which)
            else:
                port = request(name, which)
            m.submodules[f"light_{name}_{which}"] = light = io.Buffer("o", port)
            m.d.comb += light.o.eq(Cat(design.lights[n] for n in shown).any())
        return m

    def _pll(self, m, platform, port):
        rates = {"reference": int(platform.default_clk_frequency), "clock": self._clock}
        if self._board.family is not ECP5:
            return Ice40Pll(pin=port.io, **rates)
        m.submodules.reference = reference = io.Buffer("i", port)
        pll = Ecp5Pll(**rates)
        m.d.comb += pll.i.eq(reference.i)
        return pll
