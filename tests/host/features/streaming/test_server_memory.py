"""Weights and state in far memory: bits, cycles, resets during a command, and missing responses."""

import dataclasses
import functools
from fractions import Fraction

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from hdl.optimizer.rules import Rule
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Settings
from host.training.optimizers import SGD, Adam
from sim.golden import ring as golden
from tests.host import rings

CONFIG = rings.CONFIGS["server"]
OPTIMIZERS = {"sgd": SGD(learning_rate=0.1, clip=2.5), "momentum": SGD(learning_rate=0.1, momentum=0.9),
              "adam": Adam(learning_rate=0.1, weight_decay=0.25)}
SPEEDS = [(1, 4), (16, 4), (40, 1), (16, Fraction(1, 2))]
SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.5, learning_rate=0.1)

open_nodes = functools.partial(rings.open_nodes, config=CONFIG, timeout=20_000)


def begun(ring, generator, length):
    """Broadcast random weights, and return a golden model of the ring."""
    weights = rings.random(generator, length)
    ring.memory.write_weights_of([weights, *[np.zeros_like(weights)] * (ring.nodes - 1)])
    ring.collectives.broadcast(length, root=0)
    reference = rings.Reference(ring, weights, planes=CONFIG.memories.planes)
    reference.compare("broadcast")
    return reference


@pytest.mark.parametrize("packed_state", [False, True])
@pytest.mark.parametrize(("nodes", "speed"), [(2, SPEEDS[0]), (5, SPEEDS[1]), (3, SPEEDS[2]), (1, SPEEDS[3])])
def test_updates(nodes, speed, packed_state):
    """Updates and sums match the golden model for any speed and latency of the far memory."""
    generator = np.random.default_rng(10 * nodes + packed_state)
    with open_nodes(nodes, host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=speed[0], rate=speed[1])
        for length, (name, optimizer) in zip((700, 33, 1500), OPTIMIZERS.items(), strict=True):
            reference = begun(ring, generator, length)
            rings.train_twice(reference, optimizer, generator, packed_state=packed_state,
                              message=f"{name}, {nodes} nodes, {length} elements")
        gradients = rings.random(generator, (nodes, 900), density=0.6)
        ring.memory.write_gradients(list(gradients))
        ring.collectives.all_reduce(900)
        assert (ring.memory.read_gradients(900).view(np.uint32) == golden.all_reduce(golden.bits(gradients))[0]).all()


def test_host_port():
    """Through its port, the host can read and write weights and state without changing adjacent words."""
    generator = np.random.default_rng(3)
    with open_nodes(1) as (ring, simulation):
        device = ring.devices[0]
        content = simulation.far_memory(0)[0]
        content[:] = expected = generator.integers(0, 1 << 32, content.size, dtype=np.uint32)
        expected = expected.copy()
        for space, base in ((Space.WEIGHT, 0), (Space.STATE, CONFIG.memories.weight),
                            (Space.STATE + 1, CONFIG.memories.weight + CONFIG.memories.state)):
            for address, count in ((0, 1), (5, 30), (CONFIG.memories.state - 7, 7)):
                words = generator.integers(0, 1 << 32, count, dtype=np.uint32)
                device.write_memory(space, address, words)
                expected[base + address:base + address + count] = words
                assert (device.read_memory(space, address, count) == words).all()
            assert (device.read_memory(space, 0, 64) == expected[base:base + 64]).all()
        assert (content == expected).all()
        assert (simulation.memory(0, Space.STATE) == expected[CONFIG.memories.weight:][:CONFIG.memories.state]).all()
        assert not _status(device) & 3


def _status(device):
    """Return two bits of STATUS: far_silent as bit 0 and far_lost as bit 1."""
    return int(device.read_register("STATUS")) >> 13 & 3


@pytest.mark.parametrize("seed", range(4))
def test_reset_in_mid_command(seed):
    """After a link reset while memory rows are in transit, the next update still matches the golden model."""
    generator = np.random.default_rng(seed)
    nodes, length = 2, 600
    with open_nodes(nodes, host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=200, rate=Fraction(1, 2))
        for _ in range(4):
            reference = begun(ring, generator, length)
            for rank, device in enumerate(ring.devices):
                device.push(Command(operation=Operation.FUSED_UPDATE, rank=rank, size=nodes, length=length,
                                    collective=99))
            simulation.run(int(generator.integers(100, 2500)))
            ring.recover()
            simulation.run(400)  # gives the remaining rows time to arrive
            ring.memory.write_weights(reference.weights.view(np.float32))
            rings.train_twice(reference, OPTIMIZERS["adam"], generator, packed_state=False, message=f"seed {seed}")


@pytest.mark.parametrize("nodes", [1, 2])
def test_silence(nodes):
    """While the far memory does not respond, commands time out and the host reads zeros. Afterwards, everything works
    again."""
    generator = np.random.default_rng(nodes)
    with open_nodes(nodes, timeout=1000) as (ring, simulation):
        device = ring.devices[0]
        reference = begun(ring, generator, 300)
        ring.memory.write_gradients(list(rings.random(generator, (nodes, 300))))
        ring.settings.write(SETTINGS)
        simulation.set_far_speed(latency=16, rate=0, node=0)
        with pytest.raises(RingError) as caught:
            ring.collectives.fused_update(300)
        assert {event.status for event in caught.value.events} & {
            EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT}
        assert _status(device) & 1
        words = np.arange(1, 65, dtype=np.uint32)
        assert not device.read_memory(Space.WEIGHT, 3, 60).any()
        device.write_memory(Space.WEIGHT, 0, words)
        assert not device.read_memory(Space.STATE, 0, 300).any()
        assert _status(device) == 3
        simulation.set_far_speed(latency=16, rate=1, node=0)
        simulation.run(100)
        assert _status(device) == 2
        assert not (device.read_memory(Space.WEIGHT, 0, 64) == words).all()
        ring.counters.clear()
        assert _status(device) == 0
        reference = begun(ring, generator, 300)
        rings.train_twice(reference, OPTIMIZERS["adam"], generator, packed_state=False, message="after silence")


def test_slow_is_not_silent():
    """On a ring of one node, a command may take longer than the time-out, provided that it keeps moving rows."""
    generator = np.random.default_rng(5)
    with open_nodes(1, host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=100, rate=Fraction(1, 2))
        ring.devices.write_register("TIMEOUT", 300)
        reference = begun(ring, generator, 500)
        rings.train_twice(reference, OPTIMIZERS["adam"], generator, packed_state=False, message="slow")


def cycles(config, generator, speed=None):
    """Cycles of a broadcast of 4,160 elements on two nodes, and cycles of an update with each rule."""
    length = 4160
    with rings.open_nodes(2, config=config, host_port=False, timeout=20_000) as (ring, simulation):
        if speed is not None:
            simulation.set_far_speed(latency=speed[0], rate=speed[1])
        ring.memory.write_weights(rings.random(generator, length))
        measured = {"broadcast": ring.collectives.broadcast(length, root=0).cycles}
        for rule in (Rule.SGD, Rule.MOMENTUM, Rule.ADAM):
            ring.settings.write(dataclasses.replace(SETTINGS, rule=rule))
            ring.memory.write_gradients(list(rings.random(generator, (2, length), density=0.6)))
            measured[rule.name] = ring.collectives.fused_update(length).cycles
        return measured


def test_cycles():
    """At one row per cycle, a far memory adds at most 30 cycles to a broadcast, or to an update that is long enough
    to move its words. At one word per cycle, the number of words moved determines the cycles of an update."""
    generator = np.random.default_rng(1)
    inside = cycles(rings.CONFIGS["default"], generator)
    fast, slow = (cycles(CONFIG, generator, (16, rate)) for rate in (4, 1))
    assert inside["broadcast"] <= fast["broadcast"] <= inside["broadcast"] + 30
    for rule, words in (("SGD", 2), ("MOMENTUM", 4), ("ADAM", 6)):
        moved = 2080 * (words + 1)  # weights and state of the node's own block, and weights of the other block
        if moved <= 4 * inside[rule]:
            assert fast[rule] <= inside[rule] + 30, rule
        assert moved <= slow[rule] <= moved + 30, rule
