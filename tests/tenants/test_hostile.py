"""Attacks of hostile tenants, and their effect on another tenant's job (``make hostile`` runs many more)."""

import numpy as np
import pytest

from hdl.control.protocol import EVENT_WORDS, EventStatus, Opcode, Operation
from host.driver.command import Command
from host.driver.device import Device
from host.features.tenants.tenants import TenantHost
from sim.golden import ring as golden
from tests.host.rings import library, open_nodes
from tests.pairs.memories import CONFIG
from tests.tenants.hostile import attack

HALVES = {1: {name: (0, CONFIG.memory_map[name].words // 2) for name in ("gradients", "weights", "state_0",
                                                                      "activations")}}
HALVES[2] = {name: (length, length) for name, (_, length) in HALVES[1].items()}


@pytest.mark.parametrize(("nodes", "seed"), [(1, 103), (2, 102)])
def test_twins(nodes, seed):
    """Twin rings give the same answers to every batch of requests, in 50 batches with 3,000 requests."""
    summary = attack(library(CONFIG), nodes, seed, 25)
    assert not summary["leak"]
    assert summary["requests"] == 25 * 40 * nodes, f"{seed=}"
    assert summary["guarded"] > 5, f"{seed=}"
    assert {"OK", "OUT_OF_WINDOW", "FOREIGN_TENANT", "OVER_BUDGET"} <= set(summary["statuses"]), f"{seed=}"


def tenants(ring, number):
    """Devices of a tenant, with transports that add the tenant's number to each request."""
    return [Device(device.transport, CONFIG, name=f"tenant {number} at {device.name}", tenant=number)
            for device in ring.devices]


@pytest.mark.parametrize("attacked", [False, True])
def test_job_beside_an_attack(attacked):
    """The collectives of a tenant are correct even while another tenant sends random requests between words."""
    generator = np.random.default_rng(5)
    gradients = generator.standard_normal((2, 700)).astype(np.float32)
    with open_nodes(2, config=CONFIG) as (ring, simulation):
        host = TenantHost(ring.devices)
        for number, windows in HALVES.items():
            host.grant(number, windows)
        host.change(1)
        own, foreign = tenants(ring, 1), tenants(ring, 2)
        for device, values in zip(own, gradients, strict=True):
            device.write_memory(0, 0, values)
        for rank, device in enumerate(own):
            for number in range(3):
                device.push(Command(operation=Operation.ALL_REDUCE, rank=rank, size=2, length=700, tenant=1,
                                    collective=number))
        for _ in range(60 if attacked else 0):
            for node in range(2):
                opcode = int(generator.choice([*Opcode]))
                count = int(generator.choice([1, EVENT_WORDS, 16, 200]))
                body = generator.integers(0, 1 << 32, int(generator.choice([1, 2, 16])), dtype=np.uint32)
                body[0] &= 0xF00003FF
                packet = np.concatenate([np.array([2, opcode << 24 | count], np.uint32), body])
                simulation.send(node, packet)
                simulation.run(20_000, until_packet_at=node)
                assert simulation.receive(node) is not None
        events = [[device.pop_event(20_000) for _ in range(3)] for device in own]
        assert [[event.status for event in row] for row in events] == [[EventStatus.OK] * 3] * 2
        expected = golden.bits(gradients)
        for _ in range(3):
            expected = np.broadcast_to(golden.all_reduce(expected)[0], expected.shape)
        for device, words in zip(own, expected, strict=True):
            assert (device.read_memory(0, 0, 700) == words).all()
        assert all(not device.read_memory(0, 700, 324).any() for device in own)
        assert (host.tenant, [device.config.has("tenants") for device in foreign]) == (1, [True, True])


def test_neighbours_of_different_tenants():
    """If nodes execute commands of different tenants, the commands do not form one collective, even if their numbers
    are equal."""
    with open_nodes(2, config=CONFIG) as (ring, _):
        hosts = [TenantHost([device]) for device in ring.devices]
        for rank, host in enumerate(hosts):
            for number, windows in HALVES.items():
                host.grant(number, windows)
            host.change(1 + rank)
            ring.devices[rank].write_register("TIMEOUT", 2_000)
            ring.devices[rank].write_memory(0, 0, np.full(2048, rank + 1, np.float32))
        for rank, device in enumerate(ring.devices):
            device.push(Command(operation=Operation.ALL_REDUCE, rank=rank, size=2, length=100, tenant=1 + rank))
        events = [device.pop_event(20_000) for device in ring.devices]
        assert all(event.status in (EventStatus.WRONG_CODEC, EventStatus.PEER_ABORT, EventStatus.INGRESS_TIMEOUT)
                   for event in events), events
        assert EventStatus.WRONG_CODEC in [event.status for event in events]
        for rank, device in enumerate(ring.devices):
            assert (device.read_memory(0, 0, 2048).view(np.float32) == rank + 1).all()
