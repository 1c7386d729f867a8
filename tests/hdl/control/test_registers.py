# amaranth: UnusedElaboratable=no
"""Tests of the register table, and a comparison of the register file with a model."""

import random
import re

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge

from hdl.config import Memories, NodeConfig
from hdl.control.register_file import RegisterFile, queue_status_layout, version_layout
from hdl.control.registers import IDENTIFIER, REGISTERS, TENANT_REGISTERS, Access, Kind, register
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from sim import regression
from sim.payload import to_int
from sim.streams import cycles, start
from sim.verilated.vectors import Unit
from tests.present import needs

needs("quorum", "compute")

CONFIG = NodeConfig(lanes=8, segment=64, memories=Memories(gradient=320, weight=64, state=32, planes=2))
#: Configurations, keyed by the number of queues. The two-queue node has a compute engine, replay, quorum updates,
#: throttles, two program banks, and a settable update counter.
CONFIGS = {1: CONFIG, 2: CONFIG.replace(
    link=Replay(), programs=Programs(depth=100, banks=2), compute={"rows": 1}, stub=ComputeStub(quorum=True),
    features=(*CONFIG.features, SettableVersion(), Throttles()))}
LACKING = ("WEIGHT_STRIDE", "PROGRAM_STATUS", "NODE_TIME", "TRACE_POINTER", "PROGRAM_LOADS", "PROGRAM_RUNS",
           "GEMM_CYCLES", "VECTOR_CYCLES", "LINK_DELAY", "LINK_RESTARTS", "WORDS_REPEATED", "CHECKS_FAILED",
           "GRADIENT_STRIDE", "QUORUM", "DEADLINE", "STALE_WEIGHTS_0", "STALE_WEIGHTS_1", "STALE_WEIGHTS_2",
           "RESUMED_SET", "SLOT_0", "SLOT_1", "GRADIENTS_COMPUTED", "GRADIENTS_APPLIED", "GRADIENTS_APPLIED_LATE",
           "GRADIENTS_DROPPED", "THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST",
           "DELAY_LINK", "PROGRAM_BANK", "PROGRAM_SET")
CONSTANTS = {
    "ID": IDENTIFIER, "LANES": 8, "NODES_MAX": 16, "GRADIENT_WORDS": 320,
    "WEIGHT_WORDS": 64, "STATE_WORDS": 32, "STATE_PLANES": 2, "SEGMENT_ELEMENTS": 64,
}
COUNTERS = [entry for entry in REGISTERS if entry.access is Access.COUNTER]
STATUSES = ("flags", "weight_version", "last_error", "program_status", "node_time", "trace_pointer", "link_delay",
            "slot_0", "slot_1", "program_bank", "program_set")
STALLS = ["STALL_NO_CREDIT", "STALL_INGRESS_EMPTY", "STALL_ENCODER", "STALL_OPTIMIZER", "STALL_MEMORY"]


def test_addresses_are_consecutive_and_names_unique():
    assert [entry.address for entry in REGISTERS] == list(range(len(REGISTERS)))
    assert len({entry.name for entry in REGISTERS}) == len(REGISTERS)
    assert REGISTERS[0].name == "ID"
    assert REGISTERS[1].name == "CONFIGURATION_HASH"
    assert tuple(COUNTERS) == REGISTERS[COUNTERS[0].address:][:len(COUNTERS)]  # visited one after another
    assert all(entry.access is Access.STATUS for entry in REGISTERS[COUNTERS[-1].address + 1:])  # not visited


@pytest.mark.parametrize("entry", REGISTERS, ids=lambda entry: entry.name)
def test_entries_are_complete(entry):
    assert re.fullmatch(r"[A-Z][A-Z_]*(_[0-2])?", entry.name)
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
    """Model of the register file: :meth:`step` takes the inputs of a cycle and computes the next state."""

    def __init__(self, queues):
        self.lacking = LACKING if queues == 1 else ()
        self.constants = {**CONSTANTS, "CONFIGURATION_HASH": CONFIGS[queues].hash, "QUEUES": queues,
                          "PROGRAM_DEPTH": 100 if queues == 2 else 0}
        self.settings = {entry.name: entry.reset for entry in REGISTERS if entry.access is Access.SETTING}
        self.counters = {entry.name: 0 for entry in COUNTERS}
        self.increments = {entry.name: 0 for entry in COUNTERS}
        self.clear = False
        self.set_flags = 0
        self.restorable = CONFIGS[queues].has("settable_version")
        self.set_version = {"valid": 0, "value": 0}
        self.history = []  # values that the host would read in each cycle

    def step(self, inputs, increments):
        self.history.append({entry.address: self._value(entry, inputs) for entry in REGISTERS})
        for name, value in self.counters.items():
            by = 1 if name == "CYCLES" else self.increments[name]
            self.counters[name] = 0 if self.clear else (value + by) % (1 << 32)
        self.increments = increments
        self.clear = False
        self.set_flags = 0
        self.set_version["valid"] = 0

    def write(self, address, data):
        """Write a value, which appears on its port in the next cycle; call this after :meth:`step`."""
        entry = REGISTERS[address] if address < len(REGISTERS) else None
        if entry is None or entry.name in self.lacking:
            return
        if entry.name == "CONTROL":
            self.settings["CONTROL"] = data & 1
            self.clear = bool(data >> 1 & 1)
        elif entry.access is Access.SETTING:
            self.settings[entry.name] = data & (1 << entry.width) - 1
        elif entry.access is Access.SET:
            self.set_flags = data & 0xFFFF
        elif entry.access is Access.RESTORED and self.restorable:
            self.set_version = {"valid": 1, "value": data}

    def _value(self, entry, inputs):
        if entry.name == "STATUS":
            queue = inputs["queue_status"]
            stalls = sum(self.increments[name] << n for n, name in enumerate(STALLS))
            return (queue["running"] | queue["waiting"] << 1 | stalls << 8 | queue["commands"] << 16
                    | queue["events"] << 24)
        if entry.name in self.lacking:
            return 0
        for values in (self.constants, self.settings, self.counters):
            if entry.name in values:
                return values[entry.name]
        return inputs[entry.port]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def behaves_as_the_table_says(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    layout = RegisterFile(config=CONFIGS[p["queues"]]).count.shape()
    control, learning_rate = register("CONTROL").address, register("LEARNING_RATE").address
    edge = RisingEdge(dut.clk)
    for number in range(2):
        # In the second run, a reset has restored the initial values.
        await start(dut) if number == 0 else await reset(dut)
        dut.bus__request.value = 0
        dut.count.value = 0
        model = Model(p["queues"])
        statuses = [port for port in STATUSES if port.upper() not in model.lacking]
        zero = {"queue_status": dict.fromkeys(("running", "waiting", "commands", "events"), 0),
                **dict.fromkeys(STATUSES, 0)}
        for port in ["queue_status", *statuses]:
            getattr(dut, port).value = 0
        # At the first edge after reset, all inputs are zero, and so are the inputs of the model.
        await edge
        model.step(zero, {entry.name: 0 for entry in COUNTERS})
        request = None
        asked = 0
        ready = p["initialisation"]  # first cycle in which the host is served
        density = 0.5
        for cycle in range(1, 5_000):
            if cycle % 500 == 0:
                density = generator.choice([0.0, 0.5, 1.0, 1.0])
            if request is None and generator.random() < p["rate"]:
                address = generator.choice([
                    generator.randrange(len(REGISTERS)), generator.randrange(35, len(REGISTERS)), control,
                    learning_rate, generator.randrange(128)])
                request = address, generator.random() < 0.3, generator.getrandbits(32)
                if address == control and generator.random() < 0.9:
                    request = address, False, 0
                asked = max(cycle, ready)
            inputs = {
                "queue_status": {"running": generator.getrandbits(1), "waiting": generator.getrandbits(1),
                                 "commands": generator.getrandbits(8), "events": generator.getrandbits(8)},
                **{port: generator.getrandbits(19 if port.startswith("slot") else 32) for port in statuses},
                "flags": generator.getrandbits(16),
            }
            increments = {entry.name: (1 << entry.increment) - 1 if density == 1.0 else
                          generator.getrandbits(entry.increment) if generator.random() < 2 * density else 0
                          for entry in COUNTERS}
            address, write, write_data = request or (generator.randrange(128), 1, generator.getrandbits(32))
            dut.bus__request.value = request is not None
            dut.bus__address.value = address
            dut.bus__write.value = write
            dut.bus__write_data.value = write_data
            dut.queue_status.value = to_int(queue_status_layout(), inputs["queue_status"])
            for port in statuses:
                getattr(dut, port).value = inputs[port]
            dut.count.value = to_int(layout, {
                entry.port: increments[entry.name] for entry in COUNTERS if entry.port in layout.members})
            await edge
            where = f"in cycle {cycle} of seed {p['seed']}"
            if dut.bus__done.value:
                assert request is not None, where
                assert cycle - asked <= RegisterFile.latency, where
                if asked == p["initialisation"]:
                    # Once all counters have been visited, a waiting request is not delayed by a further visit.
                    assert cycle - asked <= RegisterFile.latency - 4, where
                entry = REGISTERS[address] if address < len(REGISTERS) else None
                assert int(dut.bus__writable.value) == int(entry is not None and (
                    entry.access.writable or (model.restorable and entry.access is Access.RESTORED))), where
                if write:
                    # The register's port and ``done`` change in the same cycle.
                    model.write(address, write_data)
                    if model.clear:
                        ready = cycle + p["clearing"]
                else:
                    expected = model.history[-RegisterFile.age].get(address, 0)
                    assert int(dut.bus__read_data.value) == expected, f"register {address} {where}"
                request = None
            else:
                assert cycle - asked < RegisterFile.latency or request is None, where
            expected = {
                "set_flags": model.set_flags, "link_reset": model.settings["CONTROL"],
                **{name.lower(): value for name, value in model.settings.items()
                   if name not in ("CONTROL", *model.lacking)},
            }
            if model.restorable:
                expected["set_version"] = to_int(version_layout(), model.set_version)
            for port, value in expected.items():
                assert int(getattr(dut, port).value) == value, f"{port} {where}"
            model.step(inputs, increments)


async def reset(dut):
    dut.rst.value = 1
    await cycles(dut, 2)
    dut.rst.value = 0


@pytest.mark.parametrize(("rate", "seed", "queues"), [(1.0, 1, 2), (0.1, 2, 1)])
def test_register_file(rate, seed, queues):
    registers = RegisterFile(config=CONFIGS[queues])
    regression.run(registers, module=__name__, parameters={
        "seed": seed, "rate": rate, "queues": queues, "initialisation": registers.initialisation,
        "clearing": 4 * len(COUNTERS)})


def test_registers_of_tenants():
    """Tenant registers keep all of their bits until a reset, both on their ports and for the host."""
    registers = RegisterFile(config=CONFIG.replace(features=(*CONFIG.features, Tenants())))
    unit, turn = Unit(registers), 2 * registers.latency
    names = [entry.name for entry in TENANT_REGISTERS]
    addresses = np.array([entry.address for entry in TENANT_REGISTERS])

    def access(values=None):
        """Write all registers, or read them if ``values`` is None; return the values read, and the final values on
        the ports.
        """
        inputs = {"bus__request": np.ones(turn * len(names)), "bus__address": np.repeat(addresses, turn)}
        if values is not None:
            inputs |= {"bus__write": np.ones(turn * len(names)), "bus__write_data": np.repeat(values, turn)}
        trace = unit.run(inputs)
        assert trace["bus__done"].reshape(-1, turn).any(axis=1).all()
        assert trace["bus__writable"][turn - 1::turn].all()
        return (trace["bus__read_data"][turn - 1::turn].tolist(), [int(trace[name.lower()][-1]) for name in names])

    unit.reset()
    unit.run({"bus__request": np.zeros(registers.initialisation)})
    assert access() == ([0] * 5, [0] * 5)
    whole = np.full(5, 2**32 - 1, np.uint32)
    for values in (whole, np.arange(5, dtype=np.uint32) * 0x11111111 + 1, whole):
        kept = [int(value) & (1 << entry.width) - 1 for value, entry in zip(values, TENANT_REGISTERS, strict=True)]
        access(values)
        assert access() == (kept, kept)
    unit.reset()
    unit.run({"bus__request": np.zeros(registers.initialisation)})
    assert access() == ([0] * 5, [0] * 5)
