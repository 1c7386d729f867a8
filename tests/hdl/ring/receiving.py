"""A test bench for a depacketizer."""

import cocotb
from cocotb.triggers import FallingEdge

from hdl.ring.header import expected_layout
from hdl.streams.stream import word_layout
from sim.golden.packet import packet
from sim.streams import Sink, Source, cycles, stalls
from tests.hdl.ring.packets import EPOCH, accepted_log, framed, record, wait_for


class Receiving:
    """A depacketizer with drivers on all of its ports, and a log of all outputs.

    Log entries, in order: ``("accepted",)``, ``("word", data, last)``, ``("done",)``, ``("error", code, detail)`` and
    ``("abort",)``. With ``prompt``, records do not stall, since the log of a packet without a complete header depends
    on whether its record has arrived. With ``extended``, records have a number of extra words.
    """

    def __init__(self, dut, *, kind="none", seed=1, prompt=False, extended=False):
        self.dut = dut
        self._extended = extended
        self.input = Source(dut, "i", word_layout(), stalls=stalls(kind, seed=seed))
        pattern = stalls("none" if prompt else kind, seed=seed + 1)
        self.expected = Source(dut, "expected", expected_layout(extended=extended), stalls=pattern)
        self.sink = Sink(dut, "payload", word_layout(), stalls=stalls(kind, seed=seed + 2))
        self.log = []
        self.taken = 0
        self.tasks = []
        dut.epoch.value = EPOCH
        dut.active.value = 1
        dut.drain.value = dut.clear.value = 0
        cocotb.start_soon(self.sink.receive())
        cocotb.start_soon(self._watch())

    async def _watch(self):
        dut, edge = self.dut, FallingEdge(self.dut.clk)
        layout = word_layout()
        valid, ready, payload = dut.payload__valid, dut.payload__ready, dut.payload__payload
        accepted, done, error, abort_seen = dut.accepted, dut.done, dut.error, dut.abort_seen
        i_valid, i_ready, drain = dut.i__valid, dut.i__ready, dut.drain
        held = None
        width = layout["data"].width
        while True:
            await edge
            if i_valid.value and i_ready.value:
                self.taken += 1
            if valid.value:
                bits = int(payload.value)
                assert held in (None, bits), "The payload changed while it was on offer"
                assert not accepted.value, "A header was accepted while a word of the packet before was on offer"
                held = bits
                if ready.value:
                    held = None
                    self.log.append(("word", bits & (1 << width) - 1, bits >> width))
            else:
                assert held is None or drain.value or dut.clear.value, "An offer was withdrawn"
                held = None
            if accepted.value:
                self.log.append(("accepted",))
            if done.value:
                self.log.append(("done",))
            if error.value:
                self.log.append(("error", int(dut.code.value), int(dut.detail.value)))
            if abort_seen.value:
                self.log.append(("abort",))

    def offer(self, packets, expected=()):
        """Offer packets, given as lists of words, and records of the expected headers."""
        self.offer_beats([beat for words in packets for beat in framed(words)], expected)

    def offer_beats(self, beats, expected=()):
        self.tasks = [
            cocotb.start_soon(self.input.send(beats)),
            cocotb.start_soon(self.expected.send(
                [record(header, extended=self._extended) for header in expected])),
        ]

    def withdraw(self):
        for task in self.tasks:
            task.cancel()
        self.dut.i__valid.value = 0
        self.dut.expected__valid.value = 0

    async def said(self, *kinds, count=1):
        await wait_for(self.dut, lambda: len(self.entries(*kinds)) >= count,
                       f"{count} of {kinds}, only {self.log[-5:]}")

    def forget(self):
        """Clear the log of outputs."""
        self.log.clear()
        self.taken = 0

    def entries(self, *kinds):
        return [entry for entry in self.log if entry[0] in kinds]

    async def passes(self, packets):
        """Check that packets with the expected headers are accepted and passed on, and nothing else is logged."""
        self.log.clear()
        self.offer([packet(*pair) for pair in packets], [header for header, _ in packets])
        await self.said("done", count=len(packets))
        await wait_for(self.dut, lambda: not self.dut.payload__valid.value, "last word")
        assert [entry for entry in self.log if entry != ("done",)] == accepted_log(packets)
        assert self.log.count(("done",)) == len(packets)

    async def swallowed(self, count):
        await wait_for(self.dut, lambda: self.taken >= count, f"{count} words taken, only {self.taken}")

    async def recover(self):
        """Recover from a rejection as the engine does: discard words until none is in transit."""
        self.dut.drain.value = 1
        await wait_for(self.dut, lambda: self.tasks[0].done(), "input drained")
        self.withdraw()
        await cycles(self.dut, 3)
        self.dut.drain.value = 0
        await cycles(self.dut, 2)

    def words(self):
        return [entry[1:] for entry in self.entries("word")]
