# amaranth: UnusedElaboratable=no
"""Compare the engine that moves activations to and from a far memory with a cycle-accurate model."""

import collections
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus, Operation
from hdl.features.compute.feature import Compute
from hdl.features.far.mover import Mover, counts_layout
from sim import regression
from sim.golden.features.far import mover as golden
from sim.streams import cycles, stalls, start
from tests.hdl.engines import command
from tests.hdl.local_ports import LocalPorts
from tests.refusals import refuses

NEAR, FAR = 1024, 4096


def configuration(lanes):
    return NodeConfig(
        lanes=lanes, memories=Memories(gradient=32, weight=32, state=32),
        compute=Compute(rows=1, activations=NEAR, far=FAR))


def pattern(row, lanes, salt):
    """Row of distinct elements, derived from their addresses and a salt."""
    return [salt * (lanes * row + lane + 1) & 0xFFFFFFFF for lane in range(lanes)]


NEAR_SALT, FAR_SALT = 0x9E370001, 0x85EBCA77


def random_move(generator, lanes):
    rows = generator.choice([0, 1, 2, generator.randrange(1, 40), 20, 50])
    return command(operation=generator.choice([Operation.MOVE_OUT, Operation.MOVE_IN]),
                   length=max(0, lanes * rows - generator.randrange(lanes)), tag=generator.getrandbits(16),
                   weight_base=32 * generator.randrange(16), state_base=32 * generator.randrange(100),
                   gradient_base=generator.getrandbits(32), duration=generator.getrandbits(32))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    generator, lanes = random.Random(p["seed"]), p["lanes"]
    where = f"seed {p['seed']}"
    await start(dut)
    ready = {name: stalls(kind, seed=p["seed"] + n) for n, (name, kind) in enumerate(p["stalls"].items())}
    model, offered = golden.Mover(lanes), None
    ports = LocalPorts(
        dut, "activation", lanes=lanes, counts=counts_layout(), read=lambda row: pattern(row, lanes, NEAR_SALT),
        written=lambda row: pattern(row, lanes, FAR_SALT))
    owed, quiet = collections.deque(), 0
    for cycle in range(p["cycles"]):
        if offered is None and generator.random() < 0.3:
            offered = random_move(generator, lanes)
        if quiet == 0 and generator.random() < 0.0007:
            quiet = generator.choice([300, 700])  # cycles in which the far memory is silent
        quiet = max(0, quiet - 1)
        speaks = owed and owed[0][1] <= cycle and not quiet and next(ready["answer"])
        inputs = golden.Inputs(
            command=offered, link_reset=generator.random() < 0.001, timeout=250,
            answer=owed.popleft()[0] if speaks else None,
            **{f"{name}_ready": next(ready[name]) and not (quiet and name == "far")
               for name in ("event", "read", "write", "far")})
        ports.drive(generator, inputs)
        dut.far__ready.value, dut.timeout.value = inputs.far_ready, 250
        dut.far__response.value = inputs.answer is not None
        for lane in range(lanes):
            getattr(dut, f"far__answer__{lane}").value = (
                generator.getrandbits(32) if inputs.answer is None else pattern(inputs.answer, lanes, FAR_SALT)[lane])
        await FallingEdge(dut.clk)
        where = f"seed {p['seed']}, cycle {cycle}"
        expected = model.outputs()
        ports.compare(expected, inputs, where)
        assert dut.far__valid.value == (expected.far is not None), where
        if expected.far is not None:
            row, source, kept = expected.far
            assert (dut.far__row.value, dut.far__write.value) == (row, source is not None), where
            if source is not None:
                assert dut.far__keep.value == (1 << kept) - 1, where
                assert [int(getattr(dut, f"far__elements__{n}").value) for n in range(kept)] == pattern(
                    source, lanes, NEAR_SALT)[:kept], where
            elif inputs.far_ready:
                owed.append((row, cycle + generator.choice([1, 2, p["latency"]])))
        model.step(inputs)
        if inputs.link_reset:
            owed.clear()
        if expected.command_ready:
            offered = None
        await cycles(dut, 1)
    statuses = [event["status"] for event in ports.ended]
    assert statuses.count(EventStatus.OK) > p["cycles"] // 400, where
    assert statuses.count(EventStatus.LINK_RESET) > p["cycles"] // 4000, where
    assert statuses.count(EventStatus.FAR_TIMEOUT) > p["cycles"] // 8000, where


@pytest.mark.parametrize(("lanes", "latency", "patterns"), [
    (4, 1, ("none", "none", "none", "none", "none")),
    (4, 60, ("geometric", "geometric", "geometric", "geometric", "geometric")),
    (2, 20, ("none", "freeze", "alternating", "none", "alternating")),
])
def test_every_cycle(lanes, latency, patterns):
    names = "event", "read", "write", "far", "answer"
    regression.run(Mover(config=configuration(lanes)), module=__name__, testcase="follows_the_model", parameters={
        "seed": 10 * lanes + latency, "lanes": lanes, "latency": latency, "cycles": 9_000,
        "stalls": dict(zip(names, patterns, strict=True))})


def test_rejects_wrong_parameters():
    with pytest.raises(ValueError, match=r"^Node must have a far memory, not NodeConfig\("):
        Mover(config=NodeConfig(compute=Compute(rows=1)))
    refuses("Compute.far must be 0, or a multiple of 32 up to 16777216, not 33", Compute, far=33)
