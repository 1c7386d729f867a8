# amaranth: UnusedElaboratable=no
"""Each board is wired as its constraints specify."""


import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from boards import bitstream
from boards.boards import BOARDS, board
from boards.tools import SynthesisError
from boards.top import Top
from hdl import board as configs
from hdl.config import NodeConfig, SingleRing
from tests.refusals import refused

#: Pin assignments and other attributes of the wires.
PINS = {
    "ulx3s-85f": {
        "clk25_0__io": "G2", "button_fire_0__io": "R1", "uart_0__rx__io": "M1", "uart_0__tx__io": "L4",
        "led_0__io": "B2", "led_1__io": "C2", "led_2__io": "C1", "led_3__io": "D2"},
    "orangecrab-25f": {
        "clk_0__io": "A9", "button_0__io": "J17", "uart_0__rx__io": "N17", "uart_0__tx__io": "M18",
        "rgb_led_0__r__io": "K4", "rgb_led_0__g__io": "M3", "rgb_led_0__b__io": "J3"},
    "colorlight-5a-75b": {"clk25_0__io": "P6", "uart_0__rx__io": "M13", "uart_0__tx__io": "P11"},
    "icebreaker": {
        "clk12_0__io": "35", "button_0__io": "10", "uart_0__rx__io": "6", "uart_0__tx__io": "9", "led_0__io": "11",
        "led_1__io": "37"},
}
PINS["ulx3s-25f"] = PINS["ulx3s-85f-compute"] = PINS["ulx3s-85f-tenants"] = PINS["ulx3s-85f"]

REFERENCES = {"ulx3s-85f": "25000000.0 HZ", "ulx3s-85f-tenants": "25000000.0 HZ",
              "ulx3s-85f-compute": "25000000.0 HZ", "ulx3s-25f": "25000000.0 HZ",
              "orangecrab-25f": "48000000.0 HZ", "colorlight-5a-75b": "25000000.0 HZ", "icebreaker": "12.0"}


class Echo(wiring.Component):
    """The smallest design of a board."""

    rx: In(1)
    tx: Out(1)
    lights: Out(4)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += [self.tx.eq(self.rx), self.lights.eq(self.lights + 1)]
        return m


def test_every_board_is_here():
    assert set(PINS) == set(BOARDS) == set(configs.BOARDS) - {"simulated"}


@pytest.mark.parametrize("name", BOARDS)
def test_constraints(name):
    wired, config = board(name)
    made = bitstream.plan(wired, Top(board=wired, clock=config.clock, design=Echo()))
    lines = [line.strip() for line in made.constraints.splitlines()]
    if wired.family.packer == "icepack":
        pins = dict(line.split()[1:] for line in lines if line.startswith("set_io "))
        clock = "set_frequency clk12_0__io 12.0"
    else:
        pins = {line.split('"')[1]: line.split('"')[3] for line in lines if line.startswith("LOCATE ")}
        reference = next(wire for wire in pins if wire.startswith("clk"))
        clock = f'FREQUENCY PORT "{reference}" {REFERENCES[name]};'
        # Every wire has an IOBUF line, which sets its I/O voltage.
        assert {line.split('"')[1] for line in lines if line.startswith("IOBUF ")} == set(pins)
    assert pins == PINS[name]
    assert clock in lines
    # Each wire is also a port of the design, and the design contains the board's PLL.
    for wire in pins:
        assert f"\\{wire}\n" in made.design
    assert ("cell \\EHXPLLL" in made.design) == (wired.family.packer == "ecppack")
    assert ("cell \\SB_PLL40_PAD" in made.design) == (wired.family.packer == "icepack")


@pytest.mark.parametrize(("name", "options"), [
    ("ulx3s-85f", ["--85k", "--package", "CABGA381", "--speed", "6"]),
    ("ulx3s-85f-tenants", ["--85k", "--package", "CABGA381", "--speed", "6"]),
    ("ulx3s-85f-compute", ["--85k", "--package", "CABGA381", "--speed", "6"]),
    ("ulx3s-25f", ["--25k", "--package", "CABGA381", "--speed", "6"]),
    ("orangecrab-25f", ["--25k", "--package", "CSFBGA285", "--speed", "8"]),
    ("colorlight-5a-75b", ["--25k", "--package", "CABGA256", "--speed", "6"]),
    ("icebreaker", ["--up5k", "--package", "sg48"]),
])
def test_parts(name, options):
    wired, config = board(name)
    made = bitstream.plan(wired, Top(board=wired, clock=config.clock, design=Echo()))
    assert " ".join(options) in " ".join(made.place)
    assert made.pack[-1].startswith("top.")
    assert "--timing-allow-fail" not in made.place


def test_the_same_design_each_time():
    wired, config = board("ulx3s-25f")
    first, second = (bitstream.plan(wired, Top(board=wired, clock=config.clock, design=Echo())) for _ in range(2))
    assert first == second


def test_part_names():
    assert BOARDS["ulx3s-85f"].part == "LFE5U-85F-6-BG381"
    assert BOARDS["icebreaker"].part == "iCE40UP5K-SG48"


def test_queues():
    """Only nodes on the largest chip have two queues, and all of them have a compute unit or stub."""
    nodes = {name: config.node for name, config in configs.BOARDS.items()}
    assert {name for name, node in nodes.items() if node.queues == 2} == {
        "ulx3s-85f", "ulx3s-85f-tenants", "ulx3s-85f-compute"}
    assert {name for name, node in nodes.items() if node.stub} == {"ulx3s-85f", "ulx3s-85f-tenants"}
    assert {name for name, node in nodes.items() if node.compute} == {"ulx3s-85f-compute"}
    assert {name for name, node in nodes.items() if node.has("tenants")} == {"ulx3s-85f-tenants"}


def test_unknown_board():
    with pytest.raises(SynthesisError) as caught:
        board("toaster")
    assert str(caught.value) == ("Board must be one of ulx3s-85f, ulx3s-85f-tenants, ulx3s-85f-compute, ulx3s-25f, "
                                 "orangecrab-25f, colorlight-5a-75b, icebreaker, not 'toaster'")


test_configurations = refused(
    configs.BoardConfig, {"node": NodeConfig(topology=SingleRing(max_nodes=4)), "clock": 60_000_000}, [
        ({"nodes": 5}, "Ring must have between 1 and 4 nodes, not 5"),
        ({"nodes": 0}, "Ring must have between 1 and 4 nodes, not 0"),
        ({"nodes": True}, "Ring must have between 1 and 4 nodes, not True"),
        ({"node": NodeConfig(topology=SingleRing(max_nodes=255)), "nodes": 17},
         "Board must have between 1 and 16 nodes, not 17"),
        ({"clock": 10_000_000}, "Baud rate must be at most 2500000, a 4th of the clock, not 3000000"),
    ])
