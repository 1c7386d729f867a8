# amaranth: UnusedElaboratable=no
import itertools

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import SkidBuffer, connect_stream
from sim import regression
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated import toolchain


class Careless(wiring.Component):
    """Unit that violates one of the rules for outputs, selected by ``fault``."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))

    def __init__(self, *, fault):
        super().__init__()
        self._fault = fault

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = SkidBuffer(shape=8)
        connect_stream(m, self.i, skid.i)
        count = Signal(2)
        m.d.sync += count.eq(count + 1)
        m.d.comb += [self.o.valid.eq(skid.o.valid), self.o.payload.eq(skid.o.payload),
                     skid.o.ready.eq(self.o.ready)]
        match self._fault:
            case "valid falls":
                with m.If(count == 3):
                    m.d.comb += [self.o.valid.eq(0), skid.o.ready.eq(0)]
            case "payload changes":
                m.d.comb += self.o.payload.eq(skid.o.payload ^ count)
            case "stuck":
                m.d.comb += [self.o.valid.eq(0), skid.o.ready.eq(0)]
        return m


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def monitored(dut):
    await start(dut)
    source, sink = Source(dut, "i", 8), Sink(dut, "o", 8, stalls=stalls("geometric", seed=3))
    Monitor(dut, "o", 8)
    cocotb.start_soon(source.send(range(100)))
    await sink.receive(100)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def parameters_arrive(dut):
    await start(dut)
    assert regression.parameters() == {"list": [1, 2], "text": "a b"}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_are_before_the_edge(dut):
    """All drivers assume that a read after a rising clock edge returns the values before the edge, and that a write
    takes effect after the edge."""
    await start(dut)
    dut.o__ready.value = 0
    dut.i__payload.value = 0x5a
    dut.i__valid.value = 1
    await cycles(dut, 1)
    assert not dut.o__valid.value  # driven after the last edge, so it is accepted only at this edge
    dut.i__valid.value = 0
    await cycles(dut, 1)
    assert dut.o__valid.value
    assert int(dut.o__payload.value) == 0x5a


def test_parameters():
    regression.run(SkidBuffer(shape=8), module=__name__, testcase="parameters_arrive",
                   parameters={"list": [1, 2], "text": "a b"})


def test_sampling():
    regression.run(SkidBuffer(shape=8), module=__name__, testcase="reads_are_before_the_edge")


@pytest.mark.parametrize(("fault", "message"), [
    ("valid falls", "Stream o: valid fell in cycle .* before ready came"),
    ("payload changes", "Stream o: payload changed from .* before ready came"),
    ("stuck", "Stream o: nothing moved in 20000 cycles, after 0 beats"),
])
def test_faults_are_found(fault, message):
    with pytest.raises(AssertionError, match=rf"(?s)1 of 1 cocotb tests failed .*{message}"):
        regression.run(Careless(fault=fault), module=__name__, testcase="monitored")


def test_a_run_without_tests_fails():
    with pytest.raises(AssertionError, match=r"SkidBuffer"):
        regression.run(SkidBuffer(shape=8), module=__name__, testcase="no_such_test")


def test_simulator_is_built_once(monkeypatch):
    regression.run(SkidBuffer(shape=8), module=__name__, testcase="reads_are_before_the_edge")
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: pytest.fail("built again"))
    regression.run(SkidBuffer(shape=8), module=__name__, testcase="reads_are_before_the_edge")


def test_ports_alone_are_exposed():
    control = regression._control_file(regression.convert(SkidBuffer(shape=8), name="unit"))
    assert control.splitlines()[0] == "`verilator_config"
    assert 'public_flat_rw -module "unit" -var "i__payload"' in control
    assert 'public_flat_rd -module "unit" -var "o__payload"' in control
    assert "skid" not in control


@pytest.mark.parametrize("kind", STALLS)
def test_stall_patterns(kind):
    first = list(itertools.islice(stalls(kind, seed=5), 2_000))
    assert first == list(itertools.islice(stalls(kind, seed=5), 2_000))
    assert first == stall_array(kind, 2_000, seed=5).tolist()
    willing = sum(first)
    assert {"none": willing == 2_000, "alternating": willing == 1_000, "geometric": 900 < willing < 1_100,
            "freeze": 200 < willing < 1_200}[kind]


def test_stall_pattern_name():
    with pytest.raises(ValueError, match=r"^Stall pattern must be one of none, geometric, .*, not 'never'$"):
        stalls("never")
