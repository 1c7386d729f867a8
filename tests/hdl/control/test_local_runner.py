# amaranth: UnusedElaboratable=no
"""Runner of local commands, compared with a model in every cycle; the test takes the place of the datapath."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from sim import regression
from sim.golden.local_runner import LocalRunner
from sim.payload import from_int, to_int
from sim.streams import cycles, start
from tests.refusals import refused

MOST = 4
EXPECTED = 50


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    options = {"failure": EventStatus.BAD_MASK, "other": EventStatus.BAD_RULE, "always": p["always"]}
    model, ended, offered = LocalRunner(**options), [], None
    for _ in range(8_000):
        if offered is None and generator.random() < p["given"]:
            offered = {"operation": Operation.MASK, "tag": generator.getrandbits(16),
                       "length": generator.choice([0, 1, 1 << 31, generator.getrandbits(32)])}
        inputs = {"progress": generator.randrange(MOST + 1), "done": generator.random() < 0.05,
                  "bad": generator.random() < (0.05 if p["other"] else 0.02), "number": generator.getrandbits(32),
                  "link_reset": generator.random() < 0.05}
        if p["other"]:
            inputs["is_other"] = generator.random() < 0.5
        taken, version, reset = generator.random() < p["taken"], generator.getrandbits(32), generator.random() < 0.002
        for name, value in inputs.items():
            getattr(dut, name).value = value
        dut.weight_version.value = version
        dut.rst.value = reset
        dut.command__valid.value = offered is not None
        dut.command__payload.value = to_int(command_layout(), {
            name: (offered or {}).get(name, 0) for name, _ in command_layout()})
        dut.event__ready.value = taken
        await FallingEdge(dut.clk)
        ready, expected = model.ready, model.event
        for name in ("reset", "start", "busy"):
            assert getattr(dut, name).value == getattr(model, name), f"{name}, seed {p['seed']}"
        assert dut.command__ready.value == ready, f"seed {p['seed']}"
        assert dut.event__valid.value == (expected is not None), f"seed {p['seed']}"
        if expected is not None:
            actual = from_int(event_layout(), int(dut.event__payload.value))
            assert {name: actual[name] for name in expected} == expected, f"seed {p['seed']}"
            assert actual["weight_version"] == version
            if taken and not reset:
                ended.append(expected)
        if reset:
            model = LocalRunner(**options)
        else:
            model.step(command=offered, taken=taken, **inputs)
            if ready:
                offered = None
        await cycles(dut, 1)
    statuses = [event["status"] for event in ended]
    for status in (EventStatus.OK, EventStatus.BAD_MASK, EventStatus.LINK_RESET,
                   *((EventStatus.BAD_RULE,) if p["other"] else ())):
        assert statuses.count(status) > EXPECTED, f"seed {p['seed']}"
    assert any(event["cycles"] == 0 for event in ended) is not p["always"]


@pytest.mark.parametrize(("offer_rate", "taken", "always", "other"), [
    (1.0, 1.0, False, None), (0.3, 0.2, False, EventStatus.BAD_RULE), (0.5, 0.9, True, EventStatus.BAD_RULE)])
def test_runner(offer_rate, taken, always, other):
    regression.run(CommandRunner(failure=EventStatus.BAD_MASK, most=MOST, other=other, always=always),
                   module=__name__, testcase="follows_the_model", parameters={
                       "given": offer_rate, "taken": taken, "always": always, "other": other is not None, "seed": 23})


_FAILURE = "Failure must be an EventStatus other than OK"
test_errors = refused(CommandRunner, {"failure": EventStatus.BAD_MASK}, [
    ({"failure": EventStatus.OK}, f"{_FAILURE}, not <EventStatus.OK: 0>"),
    ({"other": EventStatus.OK}, f"{_FAILURE}, not <EventStatus.OK: 0>"), ({"failure": 200}, f"{_FAILURE}, not 200"),
    ({"most": 0}, "Most progress in a cycle must be at least 1, not 0"),
    ({"most": True}, "Most progress in a cycle must be at least 1, not True"),
])
