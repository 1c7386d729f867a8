"""Far memory in gateware for test benches; inputs control when it accepts and answers requests."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from hdl.features.far.port import far_signature
from hdl.streams.stream import Queue


class LateMemory(wiring.Component):
    """Far memory with ``latency``; accepts requests while ``takes`` is high and answers while ``speaks`` is high."""

    def __init__(self, *, rows, lanes, latency):
        self._rows, self._lanes, self._latency = rows, lanes, latency
        super().__init__({"far": In(far_signature(rows, lanes)), "takes": In(1), "speaks": In(1)})

    def elaborate(self, platform):
        m = Module()
        far, bits = self.far, 32 * self._lanes
        m.submodules.memory = memory = Memory(shape=bits, depth=self._rows, init=[])
        read, write = memory.read_port(domain="comb"), memory.write_port(granularity=32)
        m.submodules.queue = queue = Queue(shape=bits, depth=128, block=False)
        taken = far.valid & far.ready
        answer = Cat(read.data, taken & ~far.write)
        for age in range(self._latency - 1):  # the queue of answers adds the last cycle of latency
            later = Signal(bits + 1, name=f"answer_{age}")
            m.d.sync += later.eq(answer)
            answer = later
        m.d.comb += [
            far.ready.eq(self.takes),
            read.addr.eq(far.row), write.addr.eq(far.row), write.data.eq(Cat(far.elements)),
            write.en.eq(far.keep & (taken & far.write).replicate(self._lanes)),
            queue.i.payload.eq(answer[:bits]), queue.i.valid.eq(answer[bits]),
            far.response.eq(queue.o.valid & self.speaks), queue.o.ready.eq(self.speaks),
            Cat(far.answer).eq(queue.o.payload),
        ]
        return m
