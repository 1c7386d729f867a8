# amaranth: UnusedElaboratable=no
"""Tests of building nodes from lists of engines: hdl/control/engine.py, hdl/engines.py."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import hdl.control
from hdl.config import Memories, NodeConfig, SingleRing
from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach, check_engines
from hdl.control.protocol import EventStatus, Operation, Space
from hdl.engines import engines, operations
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.replay.feature import Replay
from hdl.features.streaming.feature import ServerConfig, ServerMemories, Worker
from hdl.node import Node
from host.driver.command import Command
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.ring import Ring
from host.transports.pysim import PysimRing
from sim.golden import masking
from tests.hdl import fill
from tests.refusals import refuses

CONFIG = NodeConfig(
    lanes=2, segment=32, topology=SingleRing(max_nodes=1),
    memories=Memories(gradient=128, weight=96, state=32, planes=0), masking=False)


@pytest.fixture(scope="module")
def ring():
    """A node with the SPARSIFY engine and a test-only engine, in Amaranth's simulator."""
    described = [engine for engine in engines(CONFIG) if engine.name == "masking"]
    simulated = PysimRing(lambda: Node(CONFIG, [*described, fill.describe(CONFIG)]), nodes=1, latency=1)
    ring = Ring([Device(simulated.transports[0], CONFIG, name="node 0")], timeout=1000)
    ring.connect()
    return ring


def run(ring, **fields):
    return ring.commands.run_apart({0: Command(**fields)})[0]


@pytest.mark.parametrize(("base", "length"), [(0, 1), (32, 37), (96, 32), (64, 0)])
def test_a_new_command_runs(ring, base, length):
    """A new kind of command changes only its own elements, and has an event, counters and cycles like any other."""
    before = np.arange(CONFIG.memories.gradient, dtype=np.float32)
    ring.memory.write_gradients([before])
    ring.devices.write_register("MASK_ALTERNATIVE", 2.5)
    ring.counters.clear()
    event = run(ring, operation=fill.FILL, gradient_base=base, length=length)
    assert (event.status, event.detail) == (EventStatus.OK, length)
    assert ring.counters.read()[0]["COMMAND_CYCLES"] == event.cycles
    before[base:base + length] = 2.5
    np.testing.assert_array_equal(ring.memory.read_gradients(CONFIG.memories.gradient)[0], before)


@pytest.mark.parametrize(("fields", "status", "detail"), [
    ({"gradient_base": 33, "length": 1}, EventStatus.BAD_BASE, 33),
    ({"gradient_base": 160}, EventStatus.BAD_BASE, 160),
    ({"gradient_base": 32, "length": 97}, EventStatus.BAD_LENGTH, 96),
    ({"operation": fill.FILL + 1}, EventStatus.UNKNOWN_OPERATION, fill.FILL + 1),
    ({"operation": Operation.ALL_REDUCE}, EventStatus.UNKNOWN_OPERATION, Operation.ALL_REDUCE),
])
def test_a_new_command_is_refused(ring, fields, status, detail):
    """As described for the command, the checker rejects invalid fields before the command reaches the engine."""
    zeros = np.zeros(CONFIG.memories.gradient, np.float32)
    ring.memory.write_gradients([zeros])
    # Values in fields that FILL does not use are ignored.
    with pytest.raises(RingError, match=status.name) as caught:
        run(ring, **{"operation": fill.FILL, "weight_base": 7, "state_base": 1, "rank": 9, **fields})
    assert caught.value.events[0].detail == detail
    assert not ring.memory.read_gradients(CONFIG.memories.gradient).any()


def test_new_and_old_commands_in_one_queue(ring):
    """FILL runs between two SPARSIFYs in one queue, in order and at nonzero base addresses."""
    generator = np.random.default_rng(5)
    memory = generator.standard_normal(CONFIG.memories.gradient).astype(np.float32)
    errors = generator.standard_normal(32).astype(np.float32)
    ring.memory.write_gradients([memory])
    ring.devices[0].write_memory(Space.WEIGHT, 64, errors)
    ring.devices.write_register("MASK_ALTERNATIVE", 0.75)
    ring.devices.write_register("MASK_THRESHOLD", 0.5)
    sparse = Command(operation=Operation.SPARSIFY, gradient_base=64, weight_base=64, length=32)
    commands = [sparse, Command(operation=fill.FILL, gradient_base=64, length=11), sparse]
    pending = [ring.commands.submit_apart({0: command}) for command in commands]
    events = [node_events[0] for node_events in ring.commands.wait(*pending)]
    kept, errors, bound = memory[64:96].view(np.uint32), errors.view(np.uint32), int(np.float32(0.5).view(np.uint32))
    dropped = []
    for step in range(2):
        kept, errors = masking.sparsify(kept, errors, bound)
        dropped.append(int((kept == 0).sum()))
        if not step:
            kept[:11] = np.float32(0.75).view(np.uint32)
    assert [event.detail for event in events] == [dropped[0], 11, dropped[1]]
    bits = memory.view(np.uint32)
    bits[64:96] = kept
    np.testing.assert_array_equal(ring.memory.read_gradients(CONFIG.memories.gradient)[0].view(np.uint32), bits)
    np.testing.assert_array_equal(ring.devices[0].read_memory(Space.WEIGHT, 64, 32), errors)


def test_engines_of_a_configuration():
    """Each operation belongs to exactly one engine, or to no engine if its engine is omitted."""
    full = NodeConfig(
        topology=Grid(), link=Replay(), programs=Programs(), compute=Compute(rows=1, far=64),
        stub=ComputeStub(quorum=True), features=(Quantization(),))
    assert [engine.name for engine in engines(full)] == [
        "engine", "rounds", "masking", "inference", "compute_stub", "compute", "mover", "latched_settings"]
    assert [engine.queue for engine in engines(full)] == [1, 1, 0, 0, 0, 0, 2, 1]
    everything = [operation for operation in Operation if operation is not Operation.PUSH]
    assert [operation.code for operation in operations(full)] == everything
    assert [operation.code for operation in operations(full.replace(role=Worker()))] == list(Operation)
    server = ServerConfig(memories=ServerMemories(far=32768))
    assert [engine.name for engine in engines(server)] == ["engine"]
    assert Operation.PUSH in [operation.code for operation in operations(server)]
    assert [engine.name for engine in engines(NodeConfig(masking=False, sparsify=False))] == ["engine"]
    lacking = {Operation.MASK, Operation.INFER, Operation.COMPUTE, Operation.LATCH, Operation.LAYERS,
               Operation.SWITCH, Operation.APPLY_LATE, Operation.MOVE_OUT, Operation.MOVE_IN, Operation.PUSH}
    assert {operation.code for operation in operations(NodeConfig(masking=False))} == set(Operation) - lacking
    Node(full, [*engines(full), fill.describe(full)])


def test_engines_that_cannot_be_together():
    filler = fill.describe(CONFIG)
    with pytest.raises(ValueError, match=rf"^Operations of a node must have different codes, not {fill.FILL} twice$"):
        Node(CONFIG, [filler, dataclasses.replace(filler, name="other")])
    other = dataclasses.replace(filler, operations=(OperationDescription(code=20),))
    refuses("Engines of a node must have different names, not filler, filler", Node, CONFIG, [filler, other])
    lacking = EngineDescription(name="x", make=None, operations=(OperationDescription(code=20, extents=(
        Extent(base="state_base", memory="state_0", reach=Reach.BLOCK),)),))
    with pytest.raises(ValueError, match=r"^Memory of engine x must be one of gradients, weights, not 'state_0'$"):
        check_engines([lacking], CONFIG)
    torn = EngineDescription(name="x", make=None, operations=(
        OperationDescription(code=20, queue=0), OperationDescription(code=21),
        OperationDescription(code=22, queue=1)))
    refuses("Operations of engine x must be of one queue, not 0 and 1", check_engines, [torn], CONFIG)


def test_impossible_descriptions():
    with pytest.raises(ValueError, match=r"^Base must be one of gradient_base, weight_base, state_base, not 'base'$"):
        Extent(base="base", memory="weights")
    refuses("Code of an operation must be between 0 and 255, not 256", OperationDescription, code=256)
    refuses("Queue of an operation must be 0, 1, 2 or None, not 3", OperationDescription, code=9, queue=3)
    twice = Extent(base="weight_base", memory="weights")
    with pytest.raises(ValueError, match=r"^Extents of an operation must have different bases, not weight_base, wei"):
        OperationDescription(code=9, extents=(twice, twice))


def test_control_knows_no_engine():
    """Modules in hdl/control import only each other and a few basic modules."""
    imported = set()
    for path in Path(hdl.control.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("hdl"):
                imported.add(node.module)
    assert {name for name in imported if not name.startswith(("hdl.control", "hdl.streams."))} == {
        "hdl.feature", "hdl.group", "hdl.guard", "hdl.memory", "hdl.memory_map"}
