"""The register table, and the register file against a model of it."""

import random
import re

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from hdl.config import NodeConfig
from hdl.control.registers import IDENTIFIER, REGISTERS, Access, Kind, RegisterFile, queue_status_layout, register
from sim import regression
from sim.payload import to_int
from sim.streams import start

CONFIG = NodeConfig(lanes=8, gradient_words=320, weight_words=64, state_words=32, state_planes=2, segment=64)
CONSTANTS = {
    "ID": IDENTIFIER, "CONFIGURATION_HASH": CONFIG.hash, "LANES": 8, "NODES_MAX": 16, "GRADIENT_WORDS": 320,
    "WEIGHT_WORDS": 64, "STATE_WORDS": 32, "STATE_PLANES": 2, "SEGMENT_ELEMENTS": 64,
}
COUNTERS = [entry for entry in REGISTERS if entry.access is Access.COUNTER]
STALLS = ["STALL_NO_CREDIT", "STALL_INGRESS_EMPTY", "STALL_ENCODER", "STALL_OPTIMIZER", "STALL_MEMORY"]


def test_addresses_are_consecutive_and_names_unique():
    assert [entry.address for entry in REGISTERS] == list(range(len(REGISTERS)))
    assert len({entry.name for entry in REGISTERS}) == len(REGISTERS)
    assert REGISTERS[0].name == "ID"
    assert REGISTERS[1].name == "CONFIGURATION_HASH"


@pytest.mark.parametrize("entry", REGISTERS, ids=lambda entry: entry.name)
def test_entries_are_complete(entry):
    assert re.fullmatch(r"[A-Z][A-Z_]*", entry.name)
    assert entry.doc.endswith(".")
    assert entry.reset < 1 << entry.width
    assert bool(entry.fields) == (entry.kind is Kind.BITFIELD)
    bits = [bit for field in entry.fields for bit in range(field.bit, field.bit + field.width)]
    assert bits == sorted(set(bits))
    assert all(bit < entry.width for bit in bits)


def test_unknown_name():
    with pytest.raises(KeyError, match=r"Register must be one of ID, CONFIGURATION_HASH, .*, not 'id'"):
        register("id")


class Model:
    """The register file, cycle by cycle: call :meth:`step` with the inputs of a cycle for the outputs of the next."""

    def __init__(self):
        self.settings = {entry.name: entry.reset for entry in REGISTERS if entry.access is Access.SETTING}
        self.counters = {entry.name: 0 for entry in COUNTERS}
        self.increments = {entry.name: 0 for entry in COUNTERS}
        self.clear = 0
        self.read_data = self.writable = self.set_flags = 0

    def step(self, address, write, write_data, inputs, increments):
        entry = REGISTERS[address] if address < len(REGISTERS) else None
        self.read_data = self._value(entry, inputs)
        self.writable = int(entry is not None and entry.access.writable)
        for name, value in self.counters.items():
            by = 1 if name == "CYCLES" else self.increments[name]
            self.counters[name] = 0 if self.clear else (value + by) % (1 << 32)
        self.increments = increments
        self.clear = self.set_flags = 0
        if write and entry is not None:
            if entry.name == "CONTROL":
                self.settings["CONTROL"] = write_data & 1
                self.clear = write_data >> 1 & 1
            elif entry.access is Access.SETTING:
                self.settings[entry.name] = write_data & (1 << entry.width) - 1
            elif entry.access is Access.SET:
                self.set_flags = write_data & 0xFFFF

    def _value(self, entry, inputs):
        if entry is None:
            return 0
        if entry.name == "STATUS":
            queue = inputs["queue_status"]
            stalls = sum(self.increments[name] << n for n, name in enumerate(STALLS))
            return (queue["running"] | queue["waiting"] << 1 | stalls << 8 | queue["commands"] << 16
                    | queue["events"] << 24)
        for values in (CONSTANTS, self.settings, self.counters):
            if entry.name in values:
                return values[entry.name]
        return inputs[entry.port]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def behaves_as_the_table_says(dut):
    seed = regression.parameters()["seed"]
    generator = random.Random(seed)
    await start(dut)
    model = Model()
    edge = RisingEdge(dut.clk)
    layout = RegisterFile(config=CONFIG).count.shape()
    # The first edge after reset sees the inputs all zero, and so does the model.
    await edge
    model.step(0, 0, 0, {}, {entry.name: 0 for entry in COUNTERS})
    for cycle in range(6_000):
        address = generator.choice([generator.randrange(len(REGISTERS)), 10, 16, generator.randrange(64)])
        write, write_data = generator.random() < 0.3, generator.getrandbits(32)
        if address == 10 and generator.random() < 0.9:
            write = 0
        inputs = {
            "queue_status": {"running": generator.getrandbits(1), "waiting": generator.getrandbits(1),
                             "commands": generator.getrandbits(8), "events": generator.getrandbits(8)},
            "flags": generator.getrandbits(16), "weight_version": generator.getrandbits(32),
            "last_error": generator.getrandbits(32),
        }
        increments = {entry.name: generator.getrandbits(entry.increment) for entry in COUNTERS}
        dut.bus__address.value = address
        dut.bus__write.value = write
        dut.bus__write_data.value = write_data
        dut.queue_status.value = to_int(queue_status_layout(), inputs["queue_status"])
        for port in ("flags", "weight_version", "last_error"):
            getattr(dut, port).value = inputs[port]
        dut.count.value = to_int(layout, {
            entry.port: increments[entry.name] for entry in COUNTERS if entry.name != "CYCLES"})
        expected = {
            "bus__read_data": model.read_data, "bus__writable": model.writable, "set_flags": model.set_flags,
            "link_reset": model.settings["CONTROL"],
            **{name.lower(): value for name, value in model.settings.items() if name != "CONTROL"},
        }
        await edge
        for port, value in expected.items():
            assert int(getattr(dut, port).value) == value, f"{port} in cycle {cycle} of seed {seed}"
        model.step(address, write, write_data, inputs, increments)


@pytest.mark.parametrize("seed", [1, 2])
def test_register_file(seed):
    regression.run(RegisterFile(config=CONFIG), module=__name__, parameters={"seed": seed})
