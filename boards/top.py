"""Top level of a board: clock, reset, and pins around the design."""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Elaboratable, Instance, Module, ResetSignal, Signal
from amaranth.lib import io, wiring
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.lib.wiring import In, Out

from boards.pll import Ecp5Pll, Ice40Pll
from boards.tools import ECP5

__all__ = ["ResetHold", "Top"]


class ResetHold(wiring.Component):
    """Extend an asynchronous reset for some cycles after its release.

    The output rises at the first clock edge after the input has risen, and falls at clock edge number ``cycles + 2``
    after the input's last falling edge; it is initially 1.

    Parameters
    ----------
    cycles : int
        Length of the extension, at least 2.

    Members
    -------
    i : In(1)
        The asynchronous reset.
    o : Out(1)
        The held reset, in the clock domain ``start``, which has no other reset.
    """

    def __init__(self, *, cycles):
        if not isinstance(cycles, int) or cycles < 2:
            raise ValueError(f"Cycles must be an integer of 2 or more, not {cycles!r}")
        self._cycles = cycles
        super().__init__({"i": In(1), "o": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.synchronizer = ResetSynchronizer(self.i, domain="start")
        left = Signal(range(self._cycles), init=self._cycles - 1)
        m.d.start += self.o.eq(left != 0)
        with m.If(left != 0):
            m.d.start += left.eq(left - 1)
        return m


class Top(Elaboratable):
    """Top level: a design on a board.

    The clock comes from the chip's PLL. The design is held in reset until the PLL has locked, while the board's
    button is pressed, and for another :attr:`hold` cycles, because buttons bounce and iCE40 memories read as zeros
    during the first microseconds.

    An ECP5 has a dedicated net that resets all flip-flops, so the reset uses no logic and no routing. nextpnr does
    not know the delay from the release of this net to the flip-flops, so the design's clock is stopped during reset
    and for the :attr:`hold` cycles.

    Parameters
    ----------
    board : Board
    clock : int
        Frequency of the design's clock, in Hz.
    design : Component
        Component with ports ``rx``, ``tx`` and ``lights`` like :class:`~hdl.board.BoardTop`.
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
        pressed = 0
        if self._board.button is not None:
            m.submodules.button = button = io.Buffer("i", request(self._board.button))
            pressed = button.i
        m.domains.start = ClockDomain()
        m.submodules.hold = hold = ResetHold(cycles=self.hold)
        m.d.comb += hold.i.eq(~pll.locked | pressed)
        if self._board.family is ECP5:
            # The dedicated reset net also resets the flip-flops of ``hold``, so the clock is stopped from the start.
            m.domains.sync = ClockDomain(reset_less=True)
            m.d.comb += ClockSignal("start").eq(pll.twin)
            m.submodules.gate = Instance("DCCA", i_CLKI=pll.o, i_CE=~hold.o, o_CLKO=ClockSignal("sync"))
            m.submodules.global_reset = Instance("SGSR", i_CLK=pll.twin, i_GSR=~hold.i)
        else:
            m.domains.sync = ClockDomain()
            m.d.comb += [ClockSignal("start").eq(pll.o), ClockSignal("sync").eq(pll.o),
                         ResetSignal("sync").eq(hold.o)]

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
