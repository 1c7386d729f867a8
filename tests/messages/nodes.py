"""Messages on a ring of whole nodes, beside fused updates: their cycles, and what table names them."""

import contextlib
import dataclasses
import itertools

import numpy as np

from hdl.config import NodeConfig
from hdl.control.protocol import Operation
from hdl.ring.slots.layouts import MESSAGE_WORDS
from host.driver.command import Command
from host.driver.optimizer_settings import Rule, Settings
from sim.golden.messages import Header, message
from sim.golden.slots import Record, Table, plan
from sim.verilated.links import CONTROL, LAST
from tests.host import rings
from tests.host.rings import random
from tests.messages.measure import MOST

__all__ = ["CONFIG", "NODES", "Beside", "beside_updates", "open_nodes"]

NODES, _LATENCY, _STALL = 8, 16, 5000
#: Nodes with messages, as those of the figures of slots.
CONFIG = NodeConfig(slots=True, replay=True, queues=2, interleaved=True, ingress_segments=15, messages=True,
                    state_planes=0, masking=False, error_feedback=False, multiplier_dsps=1, program_depth=2)
_GRANT = 8
#: Cycles from the beginning of a slot of rank 0 to the last word of a message at the last rank.
_FROM_SLOT = 1 + 3 + (NODES - 1) * (_LATENCY + 1) - 1 + MESSAGE_WORDS + 1


@dataclasses.dataclass
class Beside:
    """Cycles of messages, from the last word of the host's packet to the last word at the last rank, and of updates,
    from the first command to the last event."""

    taken: list[int]
    updates: list[int]
    superframes: set[int]


@contextlib.contextmanager
def open_nodes(nodes=NODES, **options):
    """Ring, each of whose nodes has a host, and its simulation."""
    with rings.open_nodes(nodes, config=CONFIG, latency=_LATENCY, **{"host_port": False, "timeout": 4 * _STALL, **options}) as opened:
        yield opened


def _tables(words):
    """First cycle of slots and the table of each GRANT that leaves rank 0, by its control words."""
    words = [(int(word["cycle"]), int(word["data"])) for word in words
             if word["place"] & CONTROL and not word["place"] & LAST]
    found, place = [], 0
    while place < len(words):
        head = words[place][1]
        if head & 15 == _GRANT and head >> 4 & 0xFF == NODES + 1 and place + NODES + 1 < len(words):
            records = [Record.parse(data) for _, data in words[place + 1:place + NODES + 1]]
            cycle, start = words[place + NODES + 1]
            # TIME of rank 0 counts from reset on.
            found.append((cycle + ((start - cycle) % (1 << 32)), Table.of(records, head >> 12 & 0xFFFF)))
            place += NODES + 2
        else:
            place += 1 + (head >> 4 & 0xFF) * (head & 15 not in (1, 2, 14))
    return found


class _Messages:
    """Messages of 64 words to the last rank at random times, at most one to a slot, which that drops, as they are of
    no request: so no answers take slots. Each with the cycle of its packet, and its check."""

    def __init__(self, simulation, generator, on):
        self.simulation, self.generator, self.sent = simulation, generator, []
        self._due = simulation.cycle if on else 1 << 62

    def run(self, end):
        """Run to a cycle."""
        simulation = self.simulation
        while self._due < end:
            simulation.run(max(self._due - simulation.cycle, 0))
            words = [word for word, _ in message(
                Header(NODES - 1, count=MESSAGE_WORDS, number=len(self.sent) % 8),
                map(int, self.generator.integers(0, 1 << 32, MESSAGE_WORDS, np.uint64)))]
            simulation.send(0, np.array(words[:-1], np.uint32))
            self.sent.append((simulation.cycle, words[-1]))
            self._due = simulation.cycle + int(self.generator.integers(MOST, MOST + 200))
        simulation.run(max(end - simulation.cycle, 0))


def _update(ring, messages, length, slow):
    """A fused update, whose command one node is given 5,000 cycles after the others; returns its cycles."""
    devices, begun = ring.devices, messages.simulation.cycle
    tag = begun % (1 << 16)
    commands = [Command(operation=Operation.FUSED_UPDATE, epoch=ring.numbers[0], collective=tag, tag=tag, rank=rank,
                        size=NODES, length=length) for rank in range(NODES)]
    for rank in sorted(range(NODES), key=lambda rank: rank == slow):
        if rank == slow:
            messages.run(begun + _STALL)
        devices[rank].push(commands[rank])
    for _ in range(1000):
        messages.run(messages.simulation.cycle + 1000)
        if not any(device.read_fields("STATUS")["running"] for device in devices):
            break
    events = [device.pop_event(timeout=100) for device in devices]
    for device, event in zip(devices, events, strict=True):
        event.check(device.name)
    return max(event.cycles for event in events)


def beside_updates(ring, simulation, *, updates, length, seed, on=True, stall=True):
    """Dense fused updates with messages beside them, of which each ends in the cycle that the table of its slot names;
    in each update one node begins 5,000 cycles after the others."""
    generator = np.random.default_rng(seed)
    gradients = list(random(generator, (NODES, length)))
    ring.write_weights(random(generator, length))
    ring.write_settings(Settings(rule=Rule.SGD, gradient_scale=1 / NODES, learning_rate=0.1))
    first, last = simulation.links[0], simulation.links[NODES - 2]
    for link in (first, last):
        link.tap()
    messages, cycles = _Messages(simulation, generator, on), []
    for _ in range(updates):
        ring.write_gradients(gradients)
        cycles.append(_update(ring, messages, length, int(generator.integers(1, NODES)) if stall else None))
    simulation.run(6000)
    arrived = [(int(word["cycle"]) + _LATENCY, int(word["data"])) for word in last.tap(on=False)
               if word["place"] == LAST]
    assert [data for _, data in arrived] == [check for _, check in messages.sent], f"seed {seed}"
    slots, full = [], set()
    for (start, table), (following, _) in itertools.pairwise([*_tables(first.tap(on=False)), (0, None)]):
        if table.slots == CONFIG.ingress_segments:
            full.add(following - start)
        for slot in plan(table):
            if slot.owner == 0:
                slots.append(start)
            start += slot.cycles
    taken = []
    for (begin, _), (end, _) in zip(messages.sent, arrived, strict=True):
        whole = begin + MESSAGE_WORDS
        named = next(slot for slot in slots if slot >= whole)
        taken.append(end - whole)
        print(end - (named + _FROM_SLOT), end=" ")
    return Beside(taken, cycles, full)


if __name__ == "__main__":
    import time
    with open_nodes() as (ring, simulation):
        began = time.process_time()
        for k in ({}, {"on": False}, {"stall": False, "on": False}):
            a = beside_updates(ring, simulation, updates=2, length=16384, seed=1, **k)
            print(a, len(a.taken), max(a.taken, default=0), simulation.cycle, time.process_time() - began)
