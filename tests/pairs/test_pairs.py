"""Pairs of queued commands: three that have failed in the past, and a random sample (``make pairs`` runs more)."""

import contextlib

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from sim.golden import ring as golden
from tests.host.rings import library, open_nodes
from tests.pairs.generator import KINDS
from tests.pairs.memories import CONFIG
from tests.pairs.play import Player

TIMEOUT = 4_000


def queue(ring, *commands):
    """Queue commands on all nodes, with the rank of each node; return the statuses of each node."""
    for number, fields in enumerate(commands):
        for rank, device in enumerate(ring.devices):
            device.push(Command(**{"rank": rank, "size": ring.nodes, "collective": number, **fields}))
    return [[device.pop_event(20 * TIMEOUT).status for _ in commands] for device in ring.devices]


def numbers(nodes, length):
    """One array for each node; all elements of node n are n + 1."""
    return [np.full(length, node + 1, dtype=np.float32) for node in range(nodes)]


@pytest.mark.parametrize("nodes", [1, 3])
def test_quiesce_of_any_size(nodes):
    """After a QUIESCE with any ring size, a collective completes, both with and without a link reset."""
    with open_nodes(nodes, config=CONFIG, timeout=TIMEOUT) as (ring, _):
        for size in (0, 32, 64, 255):
            ring.memory.write_gradients(numbers(nodes, 100))
            statuses = queue(ring, {"operation": Operation.QUIESCE, "size": size},
                             {"operation": Operation.ALL_REDUCE, "length": 100})
            assert statuses == [[EventStatus.OK] * 2] * nodes, f"size {size}"
            assert (ring.memory.read_gradients(100) == nodes * (nodes + 1) // 2).all(), f"size {size}"
            # A link reset during a command's preparation ends the command immediately.
            ring.devices.write_register("CONTROL", 1)
            statuses = queue(ring, {"operation": Operation.ALL_REDUCE, "length": 100})
            assert statuses == [[EventStatus.LINK_RESET]] * nodes, f"size {size}"
            ring.recover()


@pytest.mark.parametrize("nodes", [9, 10, 12, 16])
def test_quiesce_between_collectives(nodes):
    """On many nodes, a QUIESCE between two collectives does not affect the second collective."""
    with open_nodes(nodes, config=CONFIG, timeout=TIMEOUT) as (ring, _):
        ring.memory.write_gradients(numbers(nodes, 500))
        ring.memory.write_weights(np.zeros(500, np.float32))
        statuses = queue(ring, {"operation": Operation.ALL_GATHER, "length": 500}, {"operation": Operation.QUIESCE},
                         {"operation": Operation.ALL_REDUCE, "length": 500})
        assert statuses == [[EventStatus.OK] * 3] * nodes
        assert (ring.memory.read_gradients(500) == nodes * (nodes + 1) // 2).all()


def test_no_length_of_another_command():
    """A short ALL_REDUCE after a long QUIESCE changes only its own elements."""
    with open_nodes(3, config=CONFIG, timeout=TIMEOUT) as (ring, _):
        gradients = np.random.default_rng(6).standard_normal((3, 1024)).astype(np.float32)
        ring.memory.write_gradients(list(gradients))
        statuses = queue(ring, {"operation": Operation.QUIESCE, "size": 16, "length": 1024},
                         {"operation": Operation.ALL_REDUCE, "length": 32})
        assert statuses == [[EventStatus.OK] * 2] * 3
        actual = ring.memory.read_gradients(1024).view(np.uint32)
        assert (actual[:, :32] == golden.all_reduce(golden.bits(gradients[:, :32]))[0]).all()
        assert (actual[:, 32:] == golden.bits(gradients[:, 32:])).all()


@pytest.mark.parametrize(("nodes", "pairs"), [(1, 150), (2, 110), (3, 110), (9, 60), (12, 60), (16, 70)])
def test_sample(nodes, pairs):
    with contextlib.closing(Player(library(CONFIG), nodes=nodes, seed=100 + nodes)) as player:
        while player.pairs < pairs:
            player.batch()
        kinds = {kind for pair in player.generator.pairs for kind in pair}
        assert set(KINDS) - kinds <= {"refused"}, f"seed {player.seed}"
