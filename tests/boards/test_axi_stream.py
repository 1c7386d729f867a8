# amaranth: UnusedElaboratable=no
"""Test exported units with cocotbext-axi's AXI4-Stream models, for every kind of port."""

import functools
import random

import cocotb
import numpy as np
import pytest
from amaranth.hdl import Module, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from boards import verilog, verilog_lint
from hdl.control.protocol import Opcode, Space
from hdl.streams.stream import SkidBuffer
from sim import regression
from sim.golden import zero_value as model
from sim.streams import stalls
from tests.boards.small_units import small
from tests.hdl.control.host_node import CONFIG, Model
from tests.refusals import refuses


@functools.cache
def made(unit, **options):
    """Verilog of a unit, generated once for several tests."""
    return verilog.design(unit, options=options)


# Code that runs inside the simulator, with cocotbext-axi's AXI4-Stream models on both sides.


class Bench:
    """Test bench with a clock, a reset and a model on each stream, which pauses in seeded patterns."""

    def __init__(self, dut, *, inputs=("i",), outputs=("o",)):
        parameters = regression.parameters()
        self._dut = dut
        self.sources = {name: self._model(AxiStreamSource, f"s_axis_{name}") for name in inputs}
        self.sinks = {name: self._model(AxiStreamSink, f"m_axis_{name}") for name in outputs}
        for role, models in (("source", self.sources), ("sink", self.sinks)):
            for number, side in enumerate(models.values()):
                willing = stalls(parameters[role], seed=parameters["seed"] + number)
                side.set_pause_generator(not now for now in willing)

    def _model(self, kind, prefix):
        side = kind(AxiStreamBus.from_prefix(self._dut, prefix), self._dut.aclk, self._dut.aresetn,
                    reset_active_level=False)
        side.log.setLevel("WARNING")
        return side

    async def start(self):
        self._dut.aresetn.value = 0
        Clock(self._dut.aclk, 2, unit="ns").start()
        await self.reset()

    async def reset(self):
        self._dut.aresetn.value = 0
        await ClockCycles(self._dut.aclk, 2)
        self._dut.aresetn.value = 1


def words(frame):
    return np.frombuffer(bytes(frame.tdata), "<u4")


def frame(values):
    return AxiStreamFrame(np.asarray(values, "<u4").tobytes())


def vectors(generator, count):
    """Gradient vectors of various lengths and densities, without -0.0."""
    for _ in range(count):
        vector = generator.integers(1, 1 << 31, generator.integers(1, 150), dtype=np.uint32)
        vector[generator.random(len(vector)) >= generator.choice([0, 0.1, 0.5, 1])] = 0
        yield vector


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def encodes(dut):
    bench = Bench(dut)
    await bench.start()
    expected = list(vectors(np.random.default_rng(regression.parameters()["seed"]), 30))
    for vector in expected:
        await bench.sources["i"].send(frame(vector))
    for vector in expected:
        received = await bench.sinks["o"].recv()
        assert words(received).tolist() == model.encode(vector).tolist()
    assert bench.sinks["o"].empty()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def decodes(dut):
    bench = Bench(dut)
    await bench.start()
    expected = list(vectors(np.random.default_rng(regression.parameters()["seed"]), 30))
    for vector in expected:
        await bench.sources["i"].send(frame(model.encode(vector)))
    for vector in expected:
        received = await bench.sinks["o"].recv(compact=False)
        assert words(received).tolist() == model.decode(model.encode(vector)).tolist()
        assert set(received.tkeep) == {1}
        assert not dut.error.value


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_whole_elements(dut):
    """The encoder treats an element as zero if any of its bytes is missing."""
    bench = Bench(dut)
    await bench.start()
    for missing in range(16):
        keep = [int(n != missing) for n in range(16)]
        await bench.sources["i"].send(AxiStreamFrame(bytes(range(1, 17)), tkeep=keep))
        vector = np.frombuffer(bytes(range(1, 17)), "<u4").copy()
        vector[missing // 4] = 0
        assert words(await bench.sinks["o"].recv()).tolist() == model.encode(vector).tolist()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def begins_again_after_a_reset(dut):
    bench = Bench(dut)
    await bench.start()
    generator = np.random.default_rng(regression.parameters()["seed"])
    for before in (1, 10, 40, 100):
        await bench.sources["i"].send(frame(np.ones(1000)))
        await ClockCycles(dut.aclk, before)
        await bench.reset()
        for models in (bench.sources, bench.sinks):
            for side in models.values():
                side.clear()
        for vector in vectors(generator, 3):
            await bench.sources["i"].send(frame(vector))
            assert words(await bench.sinks["o"].recv()).tolist() == model.encode(vector).tolist()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def serves_the_host(dut):
    """The host reads and writes bursts in both memories; malformed packets come in between."""
    bench = Bench(dut, inputs=("host_i",), outputs=("host_o",))
    await bench.start()
    dut.ring_i__valid.value = 0
    dut.ring_o__credit.value = 0
    generator = random.Random(regression.parameters()["seed"])
    host = Model(random.Random(0), CONFIG)

    def header(opcode, count):
        return opcode << 24 | generator.getrandbits(8) << 16 | count

    def noise(count):
        return [generator.getrandbits(32) for _ in range(count)]

    packets = [[header(Opcode.PING, count), *noise(count)] for count in (0, 1, 64)]
    for space in (Space.GRADIENT, Space.WEIGHT):
        packets.append([header(Opcode.WRITE_MEMORY, 64), space << 28, *noise(64)])
        for _ in range(10):
            first = generator.randrange(64)
            count = generator.randint(1, 64 - first)
            packets += [[header(Opcode.WRITE_MEMORY, count), space << 28 | first, *noise(count)],
                        [header(Opcode.PING, 2), *noise(3)],
                        [header(Opcode.READ_MEMORY, 64), space << 28]]
    for packet in packets:
        await bench.sources["host_i"].send(frame(packet))
    for packet in packets:
        received = words(await bench.sinks["host_o"].recv()).tolist()
        assert received == host.answer(packet), packet


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes_every_field(dut):
    """18-bit elements occupy three bytes each; the byte above holds another four bits and padding."""
    bench = Bench(dut)
    await bench.start()
    generator = random.Random(regression.parameters()["seed"])
    sent = []
    for _ in range(50):
        beats = generator.randint(1, 5)
        content = bytes(generator.randrange(256) for _ in range(7 * beats))
        # An element is not kept if only its upper keep bit is set. The keep bit of the last byte has no effect.
        keep = [generator.choice([0, 1, 1, 1]) for _ in content]
        await bench.sources["i"].send(AxiStreamFrame(content, tkeep=keep))
        sent.append((content, keep))
    for content, keep in sent:
        received = await bench.sinks["o"].recv(compact=False)
        assert len(received.tdata) == len(content)
        for start in range(0, len(content), 7):
            expected, actual = (int.from_bytes(text[start:start + 7], "little") for text in (content, received.tdata))
            assert actual == expected & 0x0F_03FFFF_03FFFF
            lanes = [min(keep[start + lane:start + lane + 3]) for lane in (0, 3)]
            assert received.tkeep[start:start + 7] == [*[lanes[0]] * 3, *[lanes[1]] * 3, 1]


# The following code runs outside the simulator.


class Mixed(wiring.Component):
    """Unit with every kind of port and no logic: each input stream is connected to an output stream."""

    payload = data.StructLayout({
        "pair": data.StructLayout({"low": 3, "high": signed(5)}),
        "table": data.ArrayLayout(signed(4), 3),
        "grid": data.ArrayLayout(data.ArrayLayout(2, 2), 2),
        "keep": 4,
        "last": 1,
    })

    def __init__(self):
        numbers = stream.Signature(signed(12))
        super().__init__({
            "inner": Out(wiring.Signature({"i": In(stream.Signature(self.payload)),
                                           "o": Out(stream.Signature(self.payload)).array(1)})),
            "number_i": In(numbers),
            "number_o": Out(numbers),
            "end_i": In(stream.Signature(data.StructLayout({"last": 1}))),
            "end_o": Out(stream.Signature(data.StructLayout({"last": 1}))),
            "set": In(data.StructLayout({"a": 2, "b": signed(3)})),
            "flag": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        for source, sink in ((self.inner.i, self.inner.o[0]), (self.number_i, self.number_o),
                             (self.end_i, self.end_o)):
            wiring.connect(m, wiring.flipped(source), wiring.flipped(sink))
        m.d.comb += self.flag.eq(self.set.a.any() ^ self.set.b[0])
        return m


MIXED_HEADER = """\
// mixed
//
// No clock and no reset: outputs depend on inputs alone.
//
// AXI4-Stream, s_ to the unit and m_ from it; the first of several numbers has the lowest bits:
//   s_axis_inner__i: tdata[2:0] pair.low, tdata[7:3] pair.high (signed), tdata[19:8] table (3 x 4 bits, signed), \
tdata[23:20] grid[0] (2 x 2 bits), tdata[27:24] grid[1] (2 x 2 bits), tdata[31:28] keep, tlast
//   m_axis_inner__o__0: tdata[2:0] pair.low, tdata[7:3] pair.high (signed), tdata[19:8] table (3 x 4 bits, signed), \
tdata[23:20] grid[0] (2 x 2 bits), tdata[27:24] grid[1] (2 x 2 bits), tdata[31:28] keep, tlast
//   s_axis_number_i: tdata[11:0] (signed), tdata[15:12] ignored
//   m_axis_number_o: tdata[11:0] (signed), tdata[15:12] zero
//   s_axis_end_i: tlast
//   m_axis_end_o: tlast
//
// Other ports:
//   set, input: [1:0] a, [4:2] b (signed)
//   flag, output: [0]
"""


def test_every_kind_of_port(tmp_path):
    design = verilog.wrap(Mixed(), name="gradring_mixed", title=["mixed"])
    assert design.text.startswith(MIXED_HEADER)
    assert [(port.name, port.width) for port in design.ports if port.is_input] == [
        ("s_axis_inner__i_tvalid", 1), ("s_axis_inner__i_tdata", 32), ("s_axis_inner__i_tlast", 1),
        ("m_axis_inner__o__0_tready", 1), ("s_axis_number_i_tvalid", 1), ("s_axis_number_i_tdata", 16),
        ("m_axis_number_o_tready", 1), ("s_axis_end_i_tvalid", 1), ("s_axis_end_i_tlast", 1),
        ("m_axis_end_o_tready", 1), ("set", 5)]
    path = tmp_path / "mixed.v"
    path.write_text(design.text)
    verilog_lint.lint(path)


PADDED = data.StructLayout({
    "keep": 2, "extra": 4, "elements": data.ArrayLayout(18, 2), "last": 1})


@pytest.mark.parametrize("pattern", ["none", "geometric"])
def test_padding(pattern):
    design = verilog.wrap(SkidBuffer(shape=PADDED), name="gradring_padded")
    widths = {port.name: port.width for port in design.ports}
    assert (widths["s_axis_i_tdata"], widths["s_axis_i_tkeep"]) == (56, 7)
    assert "s_axis_i: tdata[47:0] elements (2 x 18 bits, each in 24), tdata[51:48] extra, tdata[55:52] ignored, " \
           "tkeep[5:0] 3 per element, tkeep[6] ignored, tlast\n" in design.text
    assert "tdata[55:52] zero, tkeep[5:0] 3 per element, tkeep[6] ones, tlast\n" in design.text
    regression.run(design, module=__name__, testcase="passes_every_field", parameters={
        "source": pattern, "sink": pattern, "seed": 6})


PATTERNS = [("none", "none", 1), ("geometric", "geometric", 2), ("alternating", "freeze", 3), ("freeze", "none", 4)]


@pytest.mark.parametrize(("source", "sink", "seed"), PATTERNS)
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(("unit", "test"), [("encoder", "encodes"), ("decoder", "decodes")])
def test_zero_value(unit, test, lanes, source, sink, seed):
    regression.run(made(f"compression.zero_value.{unit}", lanes=lanes), module=__name__, testcase=test, parameters={
        "source": source, "sink": sink, "seed": seed})


def test_kept_bytes_and_reset():
    regression.run(verilog.design("compression.zero_value.encoder"), module=__name__, testcase=[
        "keeps_whole_elements", "begins_again_after_a_reset"], parameters={
            "source": "geometric", "sink": "geometric", "seed": 5})


@pytest.mark.parametrize(("source", "sink", "seed"), PATTERNS)
def test_node(source, sink, seed):
    regression.run(made("node", **small("node")), module=__name__, testcase="serves_the_host", parameters={
        "source": source, "sink": sink, "seed": seed})


def test_a_stream_of_nothing():
    refuses("Payload of stream i must have at least one bit, not 0",
            verilog.wrap, SkidBuffer(shape=0), name="gradring_nothing")
