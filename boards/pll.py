"""Clock generation for boards, using the PLL of an ECP5 or iCE40 UP."""

import dataclasses
import itertools

from amaranth.hdl import Const, Instance, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Ecp5Dividers", "Ecp5Pll", "Ice40Dividers", "Ice40Pll"]


def _check(reference, clock, lowest, highest):
    for name, rate in (("Reference clock", reference), ("Clock", clock)):
        if not isinstance(rate, int) or rate < 1:
            raise ValueError(f"{name} must be a positive integer, not {rate!r}")
    if not lowest <= reference <= highest:
        raise ValueError(f"Reference clock must be between {_mhz(lowest)} and {_mhz(highest)} MHz, not "
                         f"{_mhz(reference)} MHz")


def _mhz(rate):
    return f"{rate / 1e6:.9g}"


@dataclasses.dataclass(frozen=True)
class Ecp5Dividers:
    """Dividers of an ECP5 PLL for reference, feedback and oscillator output, and the oscillator frequency."""

    reference: int
    feedback: int
    output: int
    oscillator: int

    @classmethod
    def choose(cls, *, reference, clock):
        """Choose dividers that derive one clock from another exactly; frequencies are in Hz.

        Limits from the ECP5 data sheet: 8 to 400 MHz for the reference, 10 to 400 MHz at the phase detector, and 400
        to 800 MHz for the oscillator. The choice maximizes the detector frequency and keeps the oscillator as close
        as possible to the middle of its range.
        """
        _check(reference, clock, 8_000_000, 400_000_000)
        for divider in range(1, reference // 10_000_000 + 1):
            # The PLL's feedback is taken from the divided output.
            feedback, rest = divmod(clock * divider, reference)
            outputs = [output for output in range(1, 129) if 400_000_000 <= clock * output <= 800_000_000]
            if rest == 0 and 1 <= feedback <= 80 and outputs:
                output = min(outputs, key=lambda output: abs(clock * output - 600_000_000))
                return cls(divider, feedback, output, clock * output)
        raise ValueError(f"Clock must be one that the PLL of an ECP5 makes of {_mhz(reference)} MHz, with 10 MHz or "
                         f"more at its phase detector and 400 to 800 MHz of its oscillator, not {_mhz(clock)} MHz")


@dataclasses.dataclass(frozen=True)
class Ice40Dividers:
    """Settings of an iCE40 PLL: ``DIVR``, ``DIVF`` and ``DIVQ``, the filter range and the oscillator frequency."""

    divr: int
    divf: int
    divq: int
    filter: int
    oscillator: int

    #: Filter range, keyed by the maximum phase detector frequency in Hz.
    _RANGES = {17_000_000: 1, 26_000_000: 2, 44_000_000: 3, 66_000_000: 4, 101_000_000: 5}

    @classmethod
    def choose(cls, *, reference, clock):
        """Choose settings that derive one clock from another exactly; frequencies are in Hz.

        Limits from the iCE40 PLL guide: 10 to 133 MHz for the reference and at the phase detector, and 533 to 1,066
        MHz for the oscillator.
        """
        _check(reference, clock, 10_000_000, 133_000_000)
        for divr, divq in itertools.product(range(reference // 10_000_000), range(1, 7)):
            oscillator = clock << divq
            feedback, rest = divmod(oscillator * (divr + 1), reference)
            if rest == 0 and 1 <= feedback <= 128 and 533_000_000 <= oscillator <= 1_066_000_000:
                detector = reference / (divr + 1)
                return cls(divr, feedback - 1, divq,
                           next((number for limit, number in cls._RANGES.items() if detector < limit), 6), oscillator)
        raise ValueError(f"Clock must be one that the PLL of an iCE40 makes of {_mhz(reference)} MHz, with 533 to "
                         f"1066 MHz of its oscillator, not {_mhz(clock)} MHz")


class Ecp5Pll(wiring.Component):
    """ECP5 PLL with the same clock on two outputs.

    An output that drives a clock gate cannot also drive flip-flops, so the flip-flops that control the gate use the
    second output.

    Parameters
    ----------
    reference, clock : int
        Frequencies in Hz; for limits, see :meth:`Ecp5Dividers.choose`.

    Members
    -------
    i : In(1)
        Reference clock.
    o, twin : Out(1)
        The clock.
    locked : Out(1)
    """

    i: In(1)
    o: Out(1)
    twin: Out(1)
    locked: Out(1)

    def __init__(self, *, reference, clock):
        self.dividers = Ecp5Dividers.choose(reference=reference, clock=clock)
        self._rates = reference, clock
        super().__init__()

    def elaborate(self, platform):
        reference, clock = self._rates
        m = Module()
        m.submodules.pll = Instance(
            "EHXPLLL",
            # Loop filter settings, as in the defaults of Lattice's own tools.
            a_FREQUENCY_PIN_CLKI=_mhz(reference), a_FREQUENCY_PIN_CLKOP=_mhz(clock),
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED", p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB",
            p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD", p_FEEDBK_PATH="CLKOP", p_CLKOP_ENABLE="ENABLED",
            p_CLKI_DIV=self.dividers.reference, p_CLKFB_DIV=self.dividers.feedback,
            p_CLKOP_DIV=self.dividers.output, p_CLKOP_CPHASE=self.dividers.output - 1, p_CLKOP_FPHASE=0,
            p_CLKOS_ENABLE="ENABLED",
            p_CLKOS_DIV=self.dividers.output, p_CLKOS_CPHASE=self.dividers.output - 1, p_CLKOS_FPHASE=0,
            i_CLKI=self.i, i_CLKFB=self.o, i_RST=Const(0), i_STDBY=Const(0), i_PHASESEL0=Const(0),
            i_PHASESEL1=Const(0), i_PHASEDIR=Const(1), i_PHASESTEP=Const(1), i_PHASELOADREG=Const(1),
            i_PLLWAKESYNC=Const(0), i_ENCLKOP=Const(0), i_ENCLKOS=Const(0), o_CLKOP=self.o,
            o_CLKOS=self.twin, o_LOCK=self.locked)
        return m


class Ice40Pll(wiring.Component):
    """iCE40 PLL with a dedicated input pin.

    Parameters
    ----------
    pin : IOPort
        Reference clock pin, which no other logic can use.
    reference, clock : int
        Frequencies in Hz; for limits, see :meth:`Ice40Dividers.choose`.

    Members
    -------
    o : Out(1)
        The clock.
    locked : Out(1)
    """

    o: Out(1)
    locked: Out(1)

    def __init__(self, *, pin, reference, clock):
        self.dividers = Ice40Dividers.choose(reference=reference, clock=clock)
        self._pin = pin
        super().__init__()

    def elaborate(self, platform):
        dividers = self.dividers
        m = Module()
        m.submodules.pll = Instance(
            "SB_PLL40_PAD",
            p_FEEDBACK_PATH="SIMPLE", p_DIVR=Const(dividers.divr, 4), p_DIVF=Const(dividers.divf, 7),
            p_DIVQ=Const(dividers.divq, 3), p_FILTER_RANGE=Const(dividers.filter, 3),
            io_PACKAGEPIN=self._pin, i_RESETB=Const(1), i_BYPASS=Const(0), o_PLLOUTGLOBAL=self.o,
            o_LOCK=self.locked)
        return m
