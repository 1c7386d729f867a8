# amaranth: UnusedElaboratable=no
import functools
import inspect
import os
import random
import re
from pathlib import Path

import cocotb
import numpy as np
import pytest
from amaranth.hdl import Module, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from boards import synth, verilog
from hdl.control.protocol import Opcode, Space
from hdl.floating.format import BF16
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.fixed_point import INT16
from hdl.optimizer.rules import Rule
from hdl.streams.stream import SkidBuffer
from sim import regression
from sim.golden import zero_value as model
from sim.streams import stalls
from sim.verilated import toolchain
from sim.verilated.verilog import Design
from tests.hdl.control.test_host_port import Model

PAGE = Path(__file__).parents[2] / "docs" / "verilog.md"

#: A node that is soon made: one lane, SGD, and memories of two groups.
NODE = {"lanes": 1, "segment": 32, "gradient_words": 64, "weight_words": 64, "state_words": 32, "state_planes": 0,
        "masking": False, "error_feedback": False, "quantization": False}


def small(name):
    """Options with which a unit is soon made and read: one lane where it has lanes, and a small node where it takes
    a NodeConfig. The optimizer with all rules in binary32 is ``optimizer.all``; what is a part of it, or another row
    of the same component, has other formats or rules."""
    factory, arguments = synth.UNITS[name].call({})
    parameters = inspect.signature(factory).parameters
    if "config" in parameters:
        masking, quantization = name == "masking.engine", name == "quantization.engine"
        return {**NODE, "masking": masking, "error_feedback": masking, "quantization": quantization}
    options = {"lanes": 1} if "lanes" in parameters else {}
    if name == "floating.divide":
        options["format"] = BF16
    elif name == "optimizer.update_lane":
        options["rules"] = (Rule.SGD,)
    elif factory is StreamedOptimizer and name != "optimizer.all" and "format" not in arguments:
        options.update(format=INT16, rules=(Rule.SGD, Rule.MOMENTUM))
    return options


@functools.cache
def made(unit, **options):
    """The Verilog of a unit whose tests differ in what they do with it."""
    return verilog.design(unit, options=options)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(verilog, "RESULTS", tmp_path)
    return tmp_path


# --- inside the simulator: AXI4-Stream models of cocotbext-axi on both sides


class Bench:
    """Clock, reset, and a model on each stream, with pauses from seeded patterns."""

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
    """Gradients of uneven lengths and densities, none of them -0.0."""
    for _ in range(count):
        vector = generator.integers(1, 1 << 31, generator.integers(1, 150), dtype=np.uint32)
        vector[generator.random(len(vector)) >= generator.choice([0, 0.1, 0.5, 1])] = 0
        yield vector


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def encodes(dut):
    bench = Bench(dut)
    await bench.start()
    given = list(vectors(np.random.default_rng(regression.parameters()["seed"]), 30))
    for vector in given:
        await bench.sources["i"].send(frame(vector))
    for vector in given:
        received = await bench.sinks["o"].recv()
        assert words(received).tolist() == model.encode(vector).tolist()
    assert bench.sinks["o"].empty()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def decodes(dut):
    bench = Bench(dut)
    await bench.start()
    given = list(vectors(np.random.default_rng(regression.parameters()["seed"]), 30))
    for vector in given:
        await bench.sources["i"].send(frame(model.encode(vector)))
    for vector in given:
        received = await bench.sinks["o"].recv(compact=False)
        assert words(received).tolist() == model.decode(model.encode(vector)).tolist()
        assert set(received.tkeep) == {1}
        assert not dut.error.value


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_whole_elements(dut):
    """An element of which a byte is not kept is not kept; the encoder takes it for zero."""
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
    """Bursts into both memories and out of them, and mistakes among them."""
    bench = Bench(dut, inputs=("host_i",), outputs=("host_o",))
    await bench.start()
    dut.ring_i__valid.value = 0
    dut.ring_o__credit.value = 0
    generator = random.Random(regression.parameters()["seed"])
    host = Model(random.Random(0))

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
    """Elements of 18 bits take three bytes each, and four more bits and their padding a byte above them."""
    bench = Bench(dut)
    await bench.start()
    generator = random.Random(regression.parameters()["seed"])
    sent = []
    for _ in range(50):
        beats = generator.randint(1, 5)
        content = bytes(generator.randrange(256) for _ in range(7 * beats))
        # The upper bit of an element's keep alone does not keep it, and that of the last byte is for nothing.
        keep = [generator.choice([0, 1, 1, 1]) for _ in content]
        await bench.sources["i"].send(AxiStreamFrame(content, tkeep=keep))
        sent.append((content, keep))
    for content, keep in sent:
        received = await bench.sinks["o"].recv(compact=False)
        assert len(received.tdata) == len(content)
        for start in range(0, len(content), 7):
            given, came = (int.from_bytes(text[start:start + 7], "little") for text in (content, received.tdata))
            assert came == given & 0x0F_03FFFF_03FFFF
            lanes = [min(keep[start + lane:start + lane + 3]) for lane in (0, 3)]
            assert received.tkeep[start:start + 7] == [*[lanes[0]] * 3, *[lanes[1]] * 3, 1]


# --- and outside of it


class Mixed(wiring.Component):
    """All that a port can be, and nothing inside: a stream goes on as another one."""

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
    verilog.lint(path)


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


# --- files


@pytest.mark.parametrize("name", sorted(synth.UNITS))
def test_every_unit_is_clean(name, results):
    """Verilator has nothing to say about any unit, and the header has a line for each stream and other port."""
    options = small(name)
    path = verilog.write(name, options=options)
    text = path.read_text()
    header, _, module = text.partition("\nmodule ")
    assert header.startswith(f"// {path.stem}, of gradring {toolchain.version('gradring')}\n")
    assert " at 0x" not in header
    assert "(* top" not in text
    ports = re.findall(r"^  (?:input|output) wire (?:\[\d+:0\] )?(\w+)[,\n]", module.partition(");")[0],
                       flags=re.MULTILINE)
    described = re.findall(r"^//   (\w+)[:,] ", header, flags=re.MULTILINE)
    assert {re.sub(r"_t(valid|ready|data|keep|last)$", "", port) if "_axis_" in port else port
            for port in ports} - {"aclk", "aresetn"} == set(described)


def test_files_are_the_same_each_time(results, monkeypatch):
    first = verilog.write("rows.serializer")
    text, control = first.read_text(), first.with_suffix(".vlt").read_text()
    monkeypatch.setenv("GRADRING_CACHE", str(results / "cache"))  # nothing is found that was made before
    assert verilog.write("rows.serializer").read_text() == text
    assert first.with_suffix(".vlt").read_text() == control
    assert sorted(path.name for path in results.glob("rows*")) == ["rows.serializer.v", "rows.serializer.vlt"]


def test_two_units_in_one_project(results):
    """No module of a file has the name of a module of another one."""
    names = [set(re.findall(r"^module (\S+?) ?\(", verilog.design(unit, options=options).text, flags=re.MULTILINE))
             for unit, options in (("compression.zero_value.encoder", {}), ("compression.zero_value.decoder", {}),
                                   ("compression.zero_value.encoder", {"lanes": 8}))]
    assert all(len(modules) > 2 for modules in names)
    assert len(set.union(*names)) == sum(map(len, names))


def test_primitives_are_named(results):
    text = verilog.write("optimizer.fixed_lane", options={"primitive": True}).read_text()
    assert "\n// Needs MULT18X18D, a primitive of the part, which is not in this file.\n" in text
    assert "Needs" not in verilog.write("optimizer.fixed_lane").read_text()


def test_options_of_a_node(results, monkeypatch, capsys):
    monkeypatch.setattr(verilog, "lint", lambda path: None)
    made = {}

    def wrap(component, *, name, title):
        made.update(config=component.config, name=name, title=title)
        return Design(name, "", ())

    monkeypatch.setattr(verilog, "wrap", wrap)
    assert verilog.main(["--unit", "node", "--lanes", "2", "--set", "weight_codec=mx9", "masking=False",
                         "--set", "state_planes=1"]) == 0
    config = made["config"]
    assert (config.lanes, config.weight_codec, config.masking, config.state_planes) == (2, "mx9", False, 1)
    assert made["name"] == "gradring_node_lanes_2_masking_False_state_planes_1_weight_codec_mx9"
    label = "node-lanes=2-masking=False-state_planes=1-weight_codec=mx9"
    assert capsys.readouterr().out == os.path.relpath(results / f"{label}.v") + "\n"
    assert made["title"][0].startswith(f"{label}, of gradring ")
    assert made["title"][3].startswith("Parameters: lanes=2, segment=256, ")
    assert "weight_codec='mx9', gradient_codec='zero_value'" in made["title"][3]


def test_long_names_are_digests(results, monkeypatch):
    monkeypatch.setattr(verilog, "lint", lambda path: None)
    path = verilog.write("rows.serializer", options={"lanes": 2})
    assert path.name == "rows.serializer-lanes=2.v"
    monkeypatch.setattr(verilog, "LABEL", len(path.stem) - 1)
    path, other = (verilog.write("rows.serializer", options={"lanes": lanes}) for lanes in (2, 4))
    assert re.fullmatch(r"rows\.serializer-[0-9a-f]{8}\.v", path.name)
    assert f"\nmodule gradring_{path.stem.replace('.', '_').replace('-', '_')} (\n" in path.read_text()
    assert "\n// Parameters: lanes=2\n" in path.read_text()
    assert other.name != path.name


# --- mistakes


def test_a_stream_of_nothing():
    with pytest.raises(ValueError, match=r"^Payload of stream i must have at least one bit, not 0$"):
        verilog.wrap(SkidBuffer(shape=0), name="gradring_nothing")


def test_a_warning_is_an_error(tmp_path):
    path = tmp_path / "floating.comparator.v"
    path.write_text(verilog.design("floating.comparator").text.replace(".a(a)", ".a(a[30:0])"))
    with pytest.raises(toolchain.ToolError, match=r"(?s)%Warning-WIDTHEXPAND.*'a' expects 32 bits"):
        verilog.lint(path)
    path.write_text(verilog.design("floating.comparator").text.replace("    .a(a),\n", ""))
    with pytest.raises(toolchain.ToolError, match=r"(?s)%Warning-PINMISSING.*'a'"):
        verilog.lint(path)


def test_words_of_later_languages_are_names(tmp_path):
    """Files are read as Verilog-2005, in which these are no keywords."""
    path = tmp_path / "names.v"
    ports = "input wire logic, output wire bit"
    path.write_text(f"module gradring_names ({ports});\n  assign bit = logic;\nendmodule\n\n")
    verilog.lint(path)


def test_what_verilator_says_is_an_error(results, monkeypatch):
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: "%Something: else\n")
    path = results / "x.v"
    path.write_text("module gradring_x ();\nendmodule\n\n")
    message = r"^Verilator has something to say about x\.v:\n%Something: else\n$"
    with pytest.raises(toolchain.ToolError, match=message):
        verilog.lint(path)


def test_lint_fails_the_command(results, monkeypatch, capsys):
    monkeypatch.setattr(verilog, "WAIVED", {})
    assert verilog.main(["--unit", "stream.skid_buffer"]) == 1
    assert "%Warning-UNUSEDSIGNAL" in capsys.readouterr().err  # the last of what it says


def test_unknown_unit(results, capsys):
    assert verilog.main(["--unit", "floating.subtract"]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: Unit must be one of .*floating\.add, .*node, .*, not 'floating\.subtract'\n", error)
    assert not list(results.iterdir())


@pytest.mark.parametrize(("unit", "option", "message"), [
    ("stream.queue", "width=3", "Option of Queue must be one of shape, depth, block, not 'width'"),
    ("stream.queue", "depth=0", "Queue depth must be a positive integer, not 0"),
    ("stream.queue", "depth=deep", "Queue depth must be a positive integer, not 'deep'"),
    ("node", "lanes=3", "Lane count must be 1, 2, 4 or 8, not 3"),
    ("node", "masking=no", "masking must be True or False, not 'no'"),
    ("node", "width=3", "NodeConfig.__init__() got an unexpected keyword argument 'width'"),
])
def test_wrong_options(unit, option, message, results, capsys):
    assert verilog.main(["--unit", unit, "--set", option]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("option", ["depth", "=3", "depth="])
def test_malformed_option(option, capsys):
    with pytest.raises(SystemExit):
        verilog.main(["--unit", "stream.queue", "--set", option])
    assert f"option must be NAME=VALUE, not {option!r}" in capsys.readouterr().err


def test_list(capsys):
    assert verilog.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == sorted(synth.UNITS)


# --- the page


def test_page_shows_the_header():
    header = verilog.design("compression.zero_value.encoder").text.partition("\n\nmodule ")[0]
    assert f"```\n{header}\n```\n" in PAGE.read_text()


def test_module_of_the_page_has_all_ports(tmp_path):
    """With the encoder in it, Verilator has nothing to say, so that ports and widths are right."""
    module = re.search(r"```verilog\n(module (\w+) .*?)```", PAGE.read_text(), flags=re.DOTALL)
    design = verilog.design("compression.zero_value.encoder")
    assert set(re.findall(r"\.(\w+)\(", module[1])) == {port.name for port in design.ports}
    path = tmp_path / "page.v"
    path.write_text(module[1].replace(module[2], "gradring_page") + "\n" + design.text)
    verilog.lint(path)
