# amaranth: UnusedElaboratable=no
"""Compute stub, compared with a cycle-accurate model and connected to memories."""

import functools
import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import FallingEdge

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus, Operation
from hdl.features.compute_stub.compute_model import ComputeModel, compute_cycles, counts_layout
from hdl.features.compute_stub.feature import ComputeStub
from sim import regression
from sim.golden.features.compute_stub import compute_model as golden
from sim.streams import cycles, stalls, start
from sim.verilated.vectors import Unit
from tests.hdl import engines
from tests.hdl.engines import VERSION, Bench, command, content, fill
from tests.hdl.local_ports import LocalPorts

WORDS = 1024
run = functools.partial(engines.run, counts=counts_layout())


def configuration(lanes):
    return NodeConfig(lanes=lanes, memories=Memories(gradient=WORDS, weight=32, state=32), stub=ComputeStub())


@functools.cache
def unit(lanes):
    config = configuration(lanes)
    return Unit(Bench(ComputeModel(config=config), config), name=f"ComputeModelBench{lanes}")


def pattern(row, lanes):
    """Elements of a memory row, each with a different value derived from its address."""
    return [0x9E370001 * (lanes * row + lane + 1) & 0xFFFFFFFF for lane in range(lanes)]


def random_command(generator, lanes):
    rows = generator.choice([0, 1, 2, generator.randrange(1, 40), 20])
    length = max(0, lanes * rows - generator.randrange(lanes))
    duration = generator.choice([0, rows, rows + 4, rows + 5, rows + 7, 3 * rows, generator.randrange(400)])
    return command(operation=Operation.COMPUTE, length=length, duration=duration, tag=generator.getrandbits(16),
                   gradient_base=32 * generator.randrange(10), state_base=512 + 32 * generator.randrange(6),
                   weight_base=generator.getrandbits(32))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    generator, lanes = random.Random(p["seed"]), p["lanes"]
    where = f"seed {p['seed']}"
    await start(dut)
    ready = {name: stalls(kind, seed=p["seed"] + n) for n, (name, kind) in enumerate(p["stalls"].items())}
    model, offered = golden.ComputeModel(lanes), None
    ports = LocalPorts(dut, "gradient", lanes=lanes, counts=counts_layout(), read=lambda row: pattern(row, lanes),
                       written=lambda row: pattern(row, lanes))
    for _ in range(p["cycles"]):
        if offered is None and generator.random() < 0.3:
            offered = random_command(generator, lanes)
        inputs = golden.Inputs(command=offered, link_reset=generator.random() < 0.002,
                               **{f"{name}_ready": next(pattern) for name, pattern in ready.items()})
        ports.drive(generator, inputs)
        await FallingEdge(dut.clk)
        expected = model.outputs()
        ports.compare(expected, inputs, where)
        model.step(inputs)
        if expected.command_ready:
            offered = None
        await cycles(dut, 1)
    statuses = [event["status"] for event in ports.ended]
    assert statuses.count(EventStatus.OK) > p["cycles"] // 400, where
    assert statuses.count(EventStatus.LINK_RESET) > p["cycles"] // 4000, where


@pytest.mark.parametrize(("lanes", "patterns"), [
    (4, ("none", "none", "none")), (4, ("geometric", "geometric", "geometric")),
    (1, ("none", "freeze", "alternating")), (2, ("alternating", "none", "freeze")),
    (8, ("none", "alternating", "none")),
])
def test_every_cycle(lanes, patterns):
    regression.run(ComputeModel(config=configuration(lanes)), module=__name__,
                   testcase="follows_the_model", parameters={
        "seed": 10 * lanes + len(patterns[0]), "lanes": lanes, "cycles": 12_000,
        "stalls": dict(zip(("event", "read", "write"), patterns, strict=True))})


@pytest.mark.parametrize("lanes", [1, 4])
def test_between_memories(lanes):
    """Consecutive commands take the expected cycles and change only their target elements."""
    generator = np.random.default_rng(lanes)
    memory = generator.integers(0, 1 << 32, WORDS, dtype=np.uint32)
    bench = unit(lanes)
    bench.reset()
    fill(bench, 0, memory)
    cases = [(0, 512, 100, 800), (64, 544, 37, 0), (128, 736, 288, 288 // lanes + 9), (0, 0, 0, 50),
             (96, 0, 1, 8), (0, 0, 0, 0), (32, 992, 32, 1000)]
    commands = [command(operation=Operation.COMPUTE, gradient_base=target, state_base=source, length=length,
                        duration=duration, tag=tag, rank=200, size=9, weight_base=5)
                for tag, (target, source, length, duration) in enumerate(cases)]
    expected = [compute_cycles(length, duration, lanes=lanes) for *_, length, duration in cases]
    events, counts = run(bench, *commands, cycles=5_000)
    for target, source, length, _ in cases:
        memory = golden.compute(memory, gradient_base=target, state_base=source, length=length)
    assert events == [{"tag": tag, "status": EventStatus.OK, "flags": 0, "queue": 0, "detail": case[2],
                       "cycles": taken, "weight_version": VERSION}
                      for tag, (case, taken) in enumerate(zip(cases, expected, strict=True))]
    assert expected == [golden.compute_cycles(length, duration, lanes=lanes) for *_, length, duration in cases]
    assert counts == {"command_cycles": sum(expected), "stall_memory": 0}
    np.testing.assert_array_equal(content(bench, 0, WORDS), memory)


def test_the_host_reads_beside_it():
    """Host reads occasionally delay an access, but a command with spare cycles still ends on time."""
    memory = np.arange(WORDS, dtype=np.uint32)
    bench = unit(4)
    bench.reset()
    fill(bench, 0, memory)
    slow = command(operation=Operation.COMPUTE, gradient_base=0, state_base=512, length=400, duration=900)
    (ended,), _ = run(bench, slow, cycles=6_000, reading=0)
    assert (ended["status"], ended["detail"], ended["cycles"]) == (EventStatus.OK, 400, 900)
    memory[:400] = memory[512:912]
    np.testing.assert_array_equal(content(bench, 0, WORDS), memory)


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"^Node must have the stand-in, not NodeConfig\(.*\)$"):
        ComputeModel(config=NodeConfig())
