"""Settings copied by LATCH, and one-cycle commands, compared with cycle-accurate models."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.control.immediate import ImmediateRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.control.registers import LATCHED, register
from hdl.features.programs.latched_settings import LatchedSettings, settings_layout
from sim import regression
from sim.payload import from_int, to_int
from sim.streams import cycles, start


class Model:
    """Model of LATCH: a command takes one cycle; its event is then offered until it is accepted."""

    def __init__(self):
        self.tag = None  # tag of the offered event
        self.latched = {register(name).port: register(name).reset for name in LATCHED}

    def step(self, *, command, taken, settings, running):
        begins = self.tag is None and command is not None
        if begins or not running:
            self.latched = settings
        if begins:
            self.tag = command["tag"]
        elif self.tag is not None and taken:
            self.tag = None


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    latches = hasattr(dut, "latched")
    await start(dut)
    model, offered, running, ended, kept = Model(), None, False, 0, 0
    where = f"seed {p['seed']}"
    for _ in range(6_000):
        if offered is None and generator.random() < p["given"]:
            offered = {"operation": Operation.LATCH, "tag": generator.getrandbits(16)}
        running ^= generator.random() < 0.05
        taken, reset, version = generator.random() < p["taken"], generator.random() < 0.01, generator.getrandbits(32)
        settings = {name: generator.getrandbits(32) for name in settings_layout().members}
        dut.rst.value = reset
        dut.weight_version.value = version
        dut.command__valid.value = offered is not None
        dut.command__payload.value = to_int(command_layout(), {
            name: (offered or {}).get(name, 0) for name, _ in command_layout()})
        dut.event__ready.value = taken
        if latches:
            dut.running.value = running
            dut.settings.value = to_int(settings_layout(), settings)
        await FallingEdge(dut.clk)
        assert dut.command__ready.value == (model.tag is None), where
        assert dut.event__valid.value == (model.tag is not None), where
        assert int(dut.count.value) == int(offered is not None and model.tag is None), where
        if model.tag is not None:
            assert from_int(event_layout(), int(dut.event__payload.value)) == {
                "tag": model.tag, "status": EventStatus.OK, "flags": 0, "queue": 0, "detail": 0, "cycles": 1,
                "weight_version": version}, where
            ended += taken
        if latches:
            assert from_int(settings_layout(), int(dut.latched.value)) == model.latched, where
        begins = offered is not None and model.tag is None
        kept += running and not begins
        if reset:
            model = Model()
        else:
            model.step(command=offered, taken=taken, settings=settings, running=running)
            if begins:
                offered = None
        await cycles(dut, 1)
    assert min(ended, kept) > 500, where


@pytest.mark.parametrize(("offered", "taken"), [(1.0, 1.0), (0.3, 0.3)])
def test_latched_settings(offered, taken):
    regression.run(LatchedSettings(), module=__name__, testcase="follows_the_model",
                   parameters={"given": offered, "taken": taken, "seed": 5})


def test_immediate_runner():
    regression.run(ImmediateRunner(), module=__name__, testcase="follows_the_model",
                   parameters={"given": 0.5, "taken": 0.7, "seed": 6})


def test_what_is_latched():
    """LATCH copies exactly the settings that weight updates use."""
    assert [name for name in LATCHED if register(name).port not in settings_layout().members] == []
    first, last = register("GRADIENT_SCALE").address, register("EPSILON").address
    assert [register(name).address for name in LATCHED] == list(range(first, last + 1))
