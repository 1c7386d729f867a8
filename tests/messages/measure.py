# amaranth: UnusedElaboratable=no
"""Messages on the ring: their cycles beside packets, and a transport to the host port of rank 0."""

import dataclasses
import functools

import numpy as np

from hdl.ring.slots.layouts import MESSAGE_WORDS
from sim.golden.messages import Header, message
from sim.golden.slots import Table, plan
from sim.verilated.vectors import Feed, Unit
from tests.messages.ring import NODES, Ring

__all__ = ["MOST", "RingTransport", "Times", "measure", "ring", "start"]

#: Cycles that a message may take.
MOST = 1700
#: Cycles of the way from rank 0 to the last: those of seven hops, of which each has a register.
_WAY = (NODES - 1) * (Ring.wire + 1)
#: Cycles from the beginning of a slot of rank 0 to the check of a message at the last rank, before which is a cycle
#: without a word.
_FROM_SLOT = 1 + 3 + _WAY - 1 + MESSAGE_WORDS + 2
_STALL = 5000


@functools.cache
def ring(level="-O0"):
    """The ring on Verilator."""
    return Unit(Ring(), name="MessageRing", level=level)


def start(unit):
    """Reset, and run until there are slots; returns cycles that this took."""
    unit.reset()
    cycles = 0
    while cycles < 20_000:
        found = unit.run({}, cycles=500)
        cycles += 500
        if found["granted"].any():
            return cycles
    raise TimeoutError(f"no slots within {cycles} cycles")


@dataclasses.dataclass
class Times:
    """Cycles of messages, from the last word of the host's packet to the last word at the last rank, cycles of
    superframes with 16 slots, and words of packets in all cycles."""

    taken: list
    superframes: set
    words: int = 0
    cycles: int = 0


def _named(found):
    """Cycles in which slots of rank 0 for messages begin, as its tables say, and cycles of full superframes."""
    starts, full, before = [], set(), None
    for cycle in np.flatnonzero(found["granted"]):
        table = Table(*(int(found["slots"][cycle]) >> low & (1 << width) - 1
                        for low, width in ((0, 5), (5, 12), (17, 4), (21, 1))))
        at = int(cycle) + ((int(found["target"][cycle]) - int(found["now"][cycle])) & 0xFFFF)
        if before is not None:
            full.add(at - before)
        before = at if table.slots == 16 else None
        for slot in plan(table):
            if slot.owner == 0:
                starts.append(at)
            at += slot.cycles
    return starts, full


def measure(unit, *, count, seed, stall=True):
    """Send messages of 64 words to the last rank at random times, and check each word and the cycle of each; one node
    stalls for 5,000 cycles. The last rank drops them, as they are of no request: so no answers take slots."""
    generator = np.random.default_rng(seed)
    begins = 6000 + np.cumsum(generator.integers(MOST, MOST + 200, count))
    cycles = int(begins[-1]) + 6000
    willing, beats, due = np.zeros(cycles, np.uint8), [], []
    for number, begin in enumerate(begins):
        willing[begin:begin + MESSAGE_WORDS + 1] = 1
        header = Header(NODES - 1, count=MESSAGE_WORDS, number=number % 8)
        words = message(header, map(int, generator.integers(0, 1 << 32, MESSAGE_WORDS, np.uint64)))
        due += words
        beats += [word | int(n == MESSAGE_WORDS) << 32 for n, (word, _) in enumerate(words[:-1])]
    stalls = np.zeros(cycles, np.uint8)
    if stall:
        begin = int(generator.integers(6000, cycles - _STALL))
        stalls[begin:begin + _STALL] = 1 << 4
    found = unit.lockstep(sources={"host_i": Feed(np.array(beats, np.uint64), willing)}, sinks={"host_o": True},
                          cycles=cycles, inputs={"stalls": stalls})
    assert not found["bad"].any()
    heard = np.flatnonzero(found["heard"])
    assert found["word"][heard].tolist() == [word | last << 32 for word, last in due]
    ends = heard[found["word"][heard] >> 32 == 1]
    fires = (found["host_i__valid"] & found["host_i__ready"]) != 0
    whole = np.flatnonzero(fires & (found["host_i__payload"] >> 32 == 1))
    named, full = _named(found)
    for last, end in zip(whole, ends, strict=True):
        first = next(slot for slot in named if slot >= last)
        assert end == first + _FROM_SLOT, f"seed {seed}: message of cycle {last} ends in {end}, by the table in " \
                                          f"{first + _FROM_SLOT}"
    words = int(found["count"][-1]) - int(found["count"][0]) & 0xFFFFFF
    return Times((ends - whole).tolist(), full, words, cycles)


class RingTransport:
    """The way to the host port of rank 0.

    Members
    -------
    cycle : int
        Cycles that were run.
    inputs : dict
        Other inputs of the ring, for all cycles from now on.
    """

    def __init__(self, unit):
        self._unit = unit
        self._beats, self._words, self._packets = np.zeros(0, np.uint64), [], []
        self.cycle = 0
        self.inputs = {}

    def send(self, packet):
        words = packet.astype(np.uint64)
        words[-1] |= np.uint64(1 << 32)
        self._beats = np.concatenate([self._beats, words])

    def receive(self, timeout_cycles):
        end = self.cycle + timeout_cycles
        while not self._packets:
            if self.cycle >= end:
                raise TimeoutError(f"no packet from rank 0 within {timeout_cycles} cycles")
            self.run(128)
        return self._packets.pop(0)

    def run(self, cycles):
        """Run for some cycles; returns the ports."""
        found = self._unit.lockstep(sources={"host_i": Feed(self._beats)}, sinks={"host_o": True}, cycles=cycles,
                                    inputs=self.inputs)
        self.cycle += cycles
        self._beats = self._beats[int((found["host_i__valid"] & found["host_i__ready"]).sum()):]
        for beat in found["host_o__payload"][found["host_o__valid"] != 0].tolist():
            self._words.append(beat & 0xFFFFFFFF)
            if beat >> 32:
                self._packets.append(np.array(self._words, np.uint32))
                self._words = []
        return found

    def close(self):
        pass
