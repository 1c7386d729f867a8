"""Probes with the ports of real nodes. They test the simulation harness, and do not sum gradients."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.ports import port_names

#: Host word that is replaced with the number of the cycle in which it is on the ring's wires.
STAMP = 0xFFFF_FFFF


class Probe(wiring.Component):
    """Probe that sends host packets to the next node, and reports the cycle in which each received word arrives.

    A host packet is sent as one ring packet with the same words, except that each :data:`STAMP` is replaced with the
    cycle in which that word is on the wires. A packet needs a credit to start; there is one credit after reset. For
    every ring word, the host receives two words: the cycle in which it was on the wires, and its data. A packet's
    credit is returned when the host accepts its last report. ``host_i.ready`` depends combinationally on
    ``host_i.valid``, as streams allow. If words keep arriving faster than they are reported, an assertion fails.

    Parameters
    ----------
    depth : int
        Maximum number of waiting reports.
    mask : int
        Data bits to invert in reports.
    """

    host_i: In(stream.Signature(data.StructLayout({"data": 32, "last": 1})))
    host_o: Out(stream.Signature(data.StructLayout({"data": 32, "last": 1})))
    ring_i: In(wiring.Signature({"valid": Out(1), "data": Out(32), "last": Out(1), "credit": In(1)}))
    ring_o: Out(wiring.Signature({"valid": Out(1), "data": Out(32), "last": Out(1), "credit": In(1)}))

    def __init__(self, *, depth=1024, mask=0):
        self._depth, self._mask = depth, mask
        super().__init__()

    def elaborate(self, platform):
        m = Module()

        cycle = Signal(32)
        m.d.sync += cycle.eq(cycle + 1)

        credits = Signal(8, init=1)
        started = Signal()
        first = Signal()
        m.d.comb += [
            self.host_i.ready.eq(self.host_i.valid & (started | (credits != 0))),
            first.eq(self.host_i.valid & self.host_i.ready & ~started),
        ]
        m.d.sync += credits.eq(credits + self.ring_o.credit - first)
        m.d.sync += self.ring_o.valid.eq(0)
        with m.If(self.host_i.valid & self.host_i.ready):
            m.d.sync += [
                started.eq(~self.host_i.p.last),
                self.ring_o.valid.eq(1),
                self.ring_o.data.eq(Mux(self.host_i.p.data == STAMP, cycle + 1, self.host_i.p.data)),
                self.ring_o.last.eq(self.host_i.p.last),
            ]

        with m.FSM(name="sender"):
            with m.State("Rest"):
                with m.If(first & ~self.host_i.p.last):
                    m.next = "Send"
            with m.State("Send"):
                with m.If(self.host_i.valid & self.host_i.ready & self.host_i.p.last):
                    m.next = "Rest"

        m.submodules.reports = reports = fifo.SyncFIFOBuffered(width=65, depth=self._depth)
        second = Signal()
        m.d.comb += [
            reports.w_data.eq(Cat(cycle, self.ring_i.data ^ self._mask, self.ring_i.last)),
            reports.w_en.eq(self.ring_i.valid),
            Assert(~self.ring_i.valid | reports.w_rdy, "Reports are full"),
            self.host_o.valid.eq(reports.r_rdy),
            self.host_o.p.data.eq(reports.r_data.word_select(second, 32)),
            self.host_o.p.last.eq(second & reports.r_data[64]),
            reports.r_en.eq(self.host_o.valid & self.host_o.ready & second),
        ]
        with m.If(self.host_o.valid & self.host_o.ready):
            m.d.sync += second.eq(~second)
        m.d.sync += self.ring_i.credit.eq(reports.r_en & reports.r_data[64])

        return m


class TwoPorts(wiring.Component):
    """Probe that sends host words on two ports of links with replay wires, and reports the state of all wires.

    Bit 0 of a host word selects the port that puts the word on its wires in the next cycle; bits 8 to 15 are also
    used as ``check``, and bit 1 as ``kind``. When a word arrives at a port, the host receives four words: first the
    cycle in bits 9:0, with ``valid``, ``kind``, ``last`` and ``check`` of port 0 from bit 10 and of port 1 from bit
    21; then the data of port 0; the data of port 1; and the last sixteen levels of both output lines, with the latest
    in the lowest bit. The lines of the input ports are bits 1 and 2 of the cycle.
    """

    def __init__(self):
        words = stream.Signature(data.StructLayout({"data": 32, "last": 1}))
        wires = wiring.Signature({
            "valid": Out(1), "data": Out(32), "last": Out(1), "kind": Out(1), "check": Out(8), "line": In(1)})
        ports = {name: flow(wires) for port in range(2)
                 for name, flow in zip(port_names(port), (In, Out), strict=True)}
        super().__init__({"host_i": In(words), "host_o": Out(words), **ports})

    def elaborate(self, platform):
        m = Module()
        cycle = Signal(10)
        m.d.sync += cycle.eq(cycle + 1)
        m.d.comb += self.host_i.ready.eq(1)
        word = self.host_i.p.data
        arriving, levels = [], []
        for port in range(2):
            before, after = (getattr(self, name) for name in port_names(port))
            level = Signal(16, name=f"levels_{port}")
            m.d.sync += [
                after.valid.eq(self.host_i.valid & (word[0] == port)),
                after.data.eq(word), after.last.eq(self.host_i.p.last), after.kind.eq(word[1]),
                after.check.eq(word[8:16]), level.eq(Cat(after.line, level)),
            ]
            m.d.comb += before.line.eq(cycle[1 + port])
            arriving.append(before)
            levels.append(level)
        m.submodules.reports = reports = fifo.SyncFIFOBuffered(width=128, depth=512)
        wires = [Cat(port.valid, port.kind, port.last, port.check) for port in arriving]
        index = Signal(2)
        m.d.comb += [
            reports.w_data.eq(Cat(cycle, *wires, *(port.data for port in arriving), *levels)),
            reports.w_en.eq(arriving[0].valid | arriving[1].valid),
            self.host_o.valid.eq(reports.r_rdy),
            self.host_o.p.data.eq(reports.r_data.word_select(index, 32)),
            self.host_o.p.last.eq(index == 3),
            reports.r_en.eq(self.host_o.valid & self.host_o.ready & (index == 3)),
        ]
        with m.If(self.host_o.valid & self.host_o.ready):
            m.d.sync += index.eq(index + 1)
        return m
