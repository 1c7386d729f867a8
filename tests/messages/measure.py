"""Latency of messages during fused updates on a ring, as measured and as computed from slot tables."""

import collections
import contextlib
import dataclasses
import itertools

import numpy as np

from hdl.config import Memories, NodeConfig, Optimizer, Peer
from hdl.control.protocol import Operation
from hdl.features.programs.feature import Programs
from hdl.features.replay.control_word import ControlType
from hdl.features.slots.feature import Slots
from hdl.features.slots.layouts import BEGIN_UNIT, MESSAGE_WORDS, TARGET_BITS, lap_layout
from host.driver.command import Command
from host.driver.optimizer_settings import Rule, Settings
from sim.golden.features.slots.messages import Header, message
from sim.golden.features.slots.slots import Record, Table, plan
from sim.verilated.links import CONTROL, LAST, NEVER
from tests.host import rings
from tests.host.rings import Reference, random

NODES, LATENCY, _STALL = 8, 16, 5000
#: Maximum number of cycles that a message may take.
MOST = 1700
#: Nodes that support messages. Otherwise, they are the same nodes as in the measurements of slots.
CONFIG = NodeConfig(
    memories=Memories(planes=0), optimizer=Optimizer(dsps=1), masking=False, sparsify=False,
    link=Slots(ingress=15, messages=True), role=Peer(interleaved=True), programs=Programs(depth=2))
#: Latency in cycles from the start of a slot of rank 0 to the check of its message at the last rank. It consists of
#: one cycle to the table, 3 to the wires, the latency of all links and one cycle per node between them, header,
#: words, one cycle, and the check.
_FROM_SLOT = 1 + 3 + (NODES - 1) * (LATENCY + 1) - 1 + 1 + MESSAGE_WORDS + 1


@dataclasses.dataclass
class Beside:
    """Measured cycles: of messages, from the last word of the host's packet to the last word at the last rank; of
    updates, from the first command to the last event; and of superframes with the most slots. It also contains the
    number of link restarts."""

    taken: list[int]
    updates: list[int]
    superframes: set[int]
    restarts: int


@contextlib.contextmanager
def open_nodes(nodes=NODES, **options):
    """Open a ring that has a host at each node; return the ring and its simulation."""
    options = {"host_port": False, "timeout": 4 * _STALL, **options}
    with rings.open_nodes(nodes, config=CONFIG, latency=LATENCY, **options) as opened:
        yield opened


def _words(tapped):
    """Yield the cycle and word of each LAP and each record among the control words of a link."""
    left = 0  # words to skip in messages of all other types
    for word in tapped[tapped["place"] & (CONTROL | LAST) == CONTROL]:
        cycle, data = int(word["cycle"]), int(word["data"])
        if left:
            left -= 1
        elif data & 15 in (ControlType.LAP.value, ControlType.RECORD.value):
            yield cycle, data
        else:
            left = data >> 4 & 0xFF


def _tables(first, last):
    """For each superframe, yield the first cycle of rank 0's slots, with TIME counted from reset, and the slot table.
    Both are derived from control words on two links, from rank 0 and to the last rank, which together carry all
    records."""
    first, last = list(_words(first)), list(_words(last))
    laps = [(cycle, lap_layout().from_bits(data)) for cycle, data in first if data & 15 == ControlType.LAP.value]
    records = collections.deque(sorted(word for word in first + last if word[1] & 15 == ControlType.RECORD.value))
    for (cycle, said), (until, _) in itertools.pairwise([*laps, (NEVER, None)]):
        over, odd = cycle + ((said.begin << BEGIN_UNIT) - cycle) % (1 << TARGET_BITS), said.odd
        while over < until:
            odd, came = odd ^ 1, {}
            while records and records[0][0] < over + said.gap + NODES * (LATENCY + 1):
                at, data = records.popleft()
                if at >= over and data >> 8 & 1 == odd:
                    came[data >> 4 & 15] = Record.parse(data)
            if len(came) < NODES:
                break
            table = Table.of(list(came.values()), odd, ranks=list(came))
            yield over + said.gap, table
            over += said.gap + sum(slot.cycles for slot in plan(table))


class _Messages:
    """Sends messages of 64 words to the last rank at random times, at most one per slot. The last rank drops them,
    because they belong to no request, so that no answers occupy slots. For each packet, the cycle and rank 0's check
    are recorded."""

    def __init__(self, simulation, generator, on):
        self.simulation, self.generator, self.sent = simulation, generator, []
        self._due = simulation.cycle if on else 1 << 62

    def run(self, end):
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
    """Run a fused update with one node that starts 5,000 cycles late; return its cycles."""
    devices, begun = ring.devices, messages.simulation.cycle
    tag = begun % (1 << 16)
    epoch, _ = ring.commands.numbers
    commands = [Command(operation=Operation.FUSED_UPDATE, epoch=epoch, collective=tag, tag=tag, rank=rank, size=NODES,
                        length=length) for rank in range(NODES)]
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


def _restarts(ring):
    return sum(node["LINK_RESTARTS"] for node in ring.counters.read())


def beside_updates(ring, simulation, *, updates, length, seed, on=True, stall=True):
    """Run dense updates with a late node, and send messages. Messages must arrive in the cycles computed from slot
    tables."""
    generator, times = np.random.default_rng(seed).spawn(2)
    gradients, weights = random(generator, (NODES, length)), random(generator, length)
    settings = Settings(rule=Rule.SGD, gradient_scale=1 / NODES, learning_rate=0.1)
    ring.memory.write_weights(weights)
    ring.settings.write(settings)
    reference = Reference(ring, weights)
    first, last = simulation.links[0], simulation.links[NODES - 2]
    # Rank 0 starts again, with LAP, after all earlier control words have arrived.
    ring.devices[0].write_register("SLOT_POSITION", 0)
    simulation.run(_STALL)
    for link in (first, last):
        link.tap()
    ring.recover()
    simulation.run(2 * _STALL)
    restarts = _restarts(ring)
    messages, cycles = _Messages(simulation, times, on), []
    for _ in range(updates):
        ring.memory.write_gradients(list(gradients))
        reference.step(gradients, settings)
        cycles.append(_update(ring, messages, length, int(generator.integers(1, NODES)) if stall else None))
    reference.compare(f"seed {seed}")
    simulation.run(6000)
    carried = last.tap(on=False)
    arrived = [(int(word["cycle"]) + LATENCY, int(word["data"])) for word in carried if word["place"] == LAST]
    assert [data for _, data in arrived] == [check for _, check in messages.sent], f"seed {seed}"
    slots, full = [], set()
    for (start, table), (following, _) in itertools.pairwise([*_tables(first.tap(on=False), carried), (0, None)]):
        if table.slots == CONFIG.link.ingress:
            full.add(following - start)
        for slot in plan(table):
            if slot.owner == 0:
                slots.append(start)
            start += slot.cycles
    taken = []
    for (begin, _), (end, _) in zip(messages.sent, arrived, strict=True):
        whole = begin + MESSAGE_WORDS
        named = next(slot for slot in slots if slot >= whole)
        assert end == named + _FROM_SLOT, f"seed {seed}: message of cycle {whole} ends in {end}, by the table in " \
                                          f"{named + _FROM_SLOT}"
        taken.append(end - whole)
    return Beside(taken, cycles, full, _restarts(ring) - restarts)

