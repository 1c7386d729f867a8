# amaranth: UnusedElaboratable=no

import pytest
from amaranth.back import rtlil
from amaranth.hdl import IOPort

from boards.boards import BOARDS
from boards.pll import Ecp5Dividers, Ecp5Pll, Ice40Dividers, Ice40Pll
from boards.tools import ECP5
from hdl.board import BOARDS as CONFIGS
from tests.refusals import refuses


@pytest.mark.parametrize(("reference", "clock", "dividers"), [
    (25_000_000, 62_500_000, Ecp5Dividers(2, 5, 10, 625_000_000)),
    (25_000_000, 75_000_000, Ecp5Dividers(1, 3, 8, 600_000_000)),
    (48_000_000, 60_000_000, Ecp5Dividers(4, 5, 10, 600_000_000)),  # printed by the program ecppll
    (12_000_000, 12_000_000, Ecp5Dividers(1, 1, 50, 600_000_000)),
    (400_000_000, 400_000_000, Ecp5Dividers(1, 1, 1, 400_000_000)),
    (100_000_000, 3_125_000, None),
])
def test_ecp5(reference, clock, dividers):
    if dividers is None:
        with pytest.raises(ValueError, match=r"^Clock must be one that the PLL of an ECP5 makes of 100 MHz, with 10 "
                                             r"MHz or more at its phase detector and 400 to 800 MHz of its "
                                             r"oscillator, not 3.125 MHz$"):
            Ecp5Dividers.choose(reference=reference, clock=clock)
    else:
        assert Ecp5Dividers.choose(reference=reference, clock=clock) == dividers


@pytest.mark.parametrize(("reference", "clock", "dividers"), [
    (12_000_000, 24_000_000, Ice40Dividers(0, 63, 5, 1, 768_000_000)),  # printed by the program icepll
    (12_000_000, 30_000_000, Ice40Dividers(0, 79, 5, 1, 960_000_000)),
    (100_000_000, 37_500_000, Ice40Dividers(0, 5, 4, 5, 600_000_000)),
    (133_000_000, 133_000_000, Ice40Dividers(0, 7, 3, 6, 1_064_000_000)),
])
def test_ice40(reference, clock, dividers):
    assert Ice40Dividers.choose(reference=reference, clock=clock) == dividers


@pytest.mark.parametrize("family", [Ecp5Dividers, Ice40Dividers])
def test_dividers_keep_their_limits(family):
    """Every multiple of half a megahertz has valid dividers with every board's reference clock."""
    made = 0
    for reference in (12_000_000, 25_000_000, 48_000_000):
        for clock in range(1_000_000, 200_000_000, 500_000):
            try:
                dividers = family.choose(reference=reference, clock=clock)
            except ValueError:
                continue
            made += 1
            if family is Ecp5Dividers:
                assert reference * dividers.feedback == clock * dividers.reference
                assert reference / dividers.reference >= 10e6
                assert dividers.oscillator == clock * dividers.output
                assert 400e6 <= dividers.oscillator <= 800e6
                assert dividers.feedback <= 80
                assert dividers.output <= 128
            else:
                assert reference * (dividers.divf + 1) == dividers.oscillator * (dividers.divr + 1)
                assert reference / (dividers.divr + 1) >= 10e6
                assert dividers.oscillator == clock << dividers.divq
                assert 533e6 <= dividers.oscillator <= 1066e6
                assert dividers.divf < 128
                assert 1 <= dividers.divq <= 6
    assert made > 10


@pytest.mark.parametrize(("family", "reference", "clock", "message"), [
    (Ecp5Dividers, 25_000_000, 60_000_001, "Clock must be one that the PLL of an ECP5 makes of 25 MHz, with 10 "
     "MHz or more at its phase detector and 400 to 800 MHz of its oscillator, not 60.000001 MHz"),
    (Ecp5Dividers, 25_000_000, 60_000_000, "Clock must be one that the PLL of an ECP5 makes of 25 MHz, with 10 "
     "MHz or more at its phase detector and 400 to 800 MHz of its oscillator, not 60 MHz"),
    (Ecp5Dividers, 5_000_000, 60_000_000, "Reference clock must be between 8 and 400 MHz, not 5 MHz"),
    (Ecp5Dividers, 25e6, 60_000_000, "Reference clock must be a positive integer, not 25000000.0"),
    (Ice40Dividers, 12_000_000, 0, "Clock must be a positive integer, not 0"),
    (Ice40Dividers, 134_000_000, 24_000_000, "Reference clock must be between 10 and 133 MHz, not 134 MHz"),
    (Ice40Dividers, 12_000_000, 25_000_000, "Clock must be one that the PLL of an iCE40 makes of 12 MHz, with 533 to "
     "1066 MHz of its oscillator, not 25 MHz"),
    (Ice40Dividers, 12_000_000, 6_000_000, "Clock must be one that the PLL of an iCE40 makes of 12 MHz, with 533 to "
     "1066 MHz of its oscillator, not 6 MHz"),
])
def test_errors(family, reference, clock, message):
    refuses(message, family.choose, reference=reference, clock=clock)


@pytest.mark.parametrize("name", BOARDS)
def test_clocks_of_boards(name):
    reference = int(BOARDS[name].platform().default_clk_frequency)
    family, least = (Ecp5Dividers, 60_000_000) if BOARDS[name].family is ECP5 else (Ice40Dividers, 24_000_000)
    assert CONFIGS[name].clock >= least
    family.choose(reference=reference, clock=CONFIGS[name].clock)


def test_instances():
    text = rtlil.convert(Ecp5Pll(reference=25_000_000, clock=62_500_000))
    for line in ("parameter \\CLKI_DIV 2", "parameter \\CLKFB_DIV 5", "parameter \\CLKOP_DIV 10",
                 'attribute \\FREQUENCY_PIN_CLKOP "62.5"'):
        assert line in text
    pin = IOPort(1, name="pin")
    text = rtlil.convert(Ice40Pll(pin=pin, reference=12_000_000, clock=24_000_000))
    for line in ("parameter \\DIVR 4'0000", "parameter \\DIVF 7'0111111", "parameter \\DIVQ 3'101",
                 "parameter \\FILTER_RANGE 3'001"):
        assert line in text
