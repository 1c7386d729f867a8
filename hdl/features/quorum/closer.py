"""Rank 0's decision about rounds: which gradients are on time or late, and when a round is closed."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.quorum.layouts import INDEX_BITS, ONE, SLOTS, closing_layout, heard_layout, judge, weights_layout

__all__ = ["NODES", "QuorumCloser"]

#: Maximum number of nodes in a round.
NODES = 16


class QuorumCloser(wiring.Component):
    """Close the round that the node waits for once enough gradients are on time, or at a deadline.

    The unit keeps track of all nodes' gradients by node and slot. While its node ``waits`` for a round it examines
    one gradient per cycle; a lap, which examines all of them once, takes :attr:`lap` cycles. At the end of a lap, the
    round is closed if ``quorum`` of the gradients examined in it are on time, or if ``deadline`` cycles have passed
    since the end of the lap with the first one. The next lap removes the gradients of the round, and gradients too
    late for any round; then the round is offered at ``close``. A gradient that arrives takes one cycle of a lap, and
    misses the round if the lap has passed its position.

    Each node can have one on-time gradient, and one late one: the oldest with a weight. Field ``index`` of ``close``
    is the sum of the weights in sixteenths, modulo 512.

    A gradient can arrive in any cycle except during a reset and :attr:`lap` cycles after it. ``close`` is a register.

    Members
    -------
    heard : In(stream of heard_layout())
    waits : In(1)
        The node waits for a round to be closed. It falls when the closing has reached the node.
    tag : In(16)
        Number of the round; held with ``waits``.
    quorum : In(5)
        Required number of on-time gradients; 0 acts as 1.
    deadline : In(32)
        Cycles; 0 for none.
    weights : In(weights_layout())
    close : Out(stream of closing_layout())
    reset : In(1)
        Level: discard all state.
    """

    lap = SLOTS * NODES

    heard: In(stream.Signature(heard_layout()))
    waits: In(1)
    tag: In(16)
    quorum: In(5)
    deadline: In(32)
    weights: In(weights_layout())
    close: Out(stream.Signature(closing_layout()))
    reset: In(1)

    def elaborate(self, platform):
        m = Module()
        row = data.StructLayout({"tag": 16, "present": 1})
        m.submodules.table = table = Memory(shape=row, depth=self.lap, init=[])
        read, write = table.read_port(domain="comb"), table.write_port()
        position = Signal(range(self.lap))  # slot in the lowest bit, node in the bits above
        steps, final, second = Signal(), Signal(), position[0]
        forgets, clears = Signal(), Signal(init=1)
        fresh, weight, stale, age = judge(m, "row", tag=self.tag, present=read.data.present, of=read.data.tag,
                                          weights=self.weights)
        m.d.comb += [
            read.addr.eq(position),
            final.eq(position == self.lap - 1),
            self.heard.ready.eq(~clears),
            write.addr.eq(Mux(self.heard.valid & ~clears, Cat(self.heard.payload.slot, self.heard.payload.source),
                              position)),
            write.data.present.eq(~clears & self.heard.valid),
            write.data.tag.eq(self.heard.payload.tag),
        ]

        # Results of the current lap. The result for a node's first slot is kept until its second slot has been
        # examined; then the masks are rotated by one bit for the next node.
        before = Signal(data.StructLayout({"fresh": 1, "weight": 5, "age": 4}))
        on_time, late, chosen = Signal(NODES), Signal(NODES), Signal(NODES)
        total, count = Signal(INDEX_BITS), Signal(5)
        in_time, has_late, takes_second = Signal(), Signal(), Signal()
        m.d.comb += [
            in_time.eq(before.fresh | fresh),
            takes_second.eq((weight != 0) & ((before.weight == 0) | (age > before.age))),
            has_late.eq((weight != 0) | (before.weight != 0)),
        ]
        left = Signal(32)
        begun, expired = Signal(), Signal()
        counted, enough = Signal(5), Signal()
        m.d.comb += [
            counted.eq(count + in_time),
            enough.eq((counted != 0) & (counted >= self.quorum)),
            expired.eq(begun & (left == 0)),
        ]
        with m.If(begun & (left != 0)):
            m.d.sync += left.eq(left - 1)
        with m.If(steps):
            m.d.sync += position.eq(position + 1)

        with m.FSM():
            with m.State("Clear"):
                m.d.comb += [steps.eq(1), write.en.eq(1)]
                with m.If(final):
                    m.d.sync += clears.eq(0)
                    m.next = "Look"

            with m.State("Look"):
                m.d.comb += [steps.eq(~self.heard.valid & self.waits), write.en.eq(self.heard.valid)]
                with m.If(steps & ~second):
                    m.d.sync += [before.fresh.eq(fresh), before.weight.eq(weight), before.age.eq(age)]
                with m.If(steps & second):
                    m.d.sync += [
                        on_time.eq(Cat(on_time[1:], in_time)),
                        late.eq(Cat(late[1:], has_late)),
                        chosen.eq(Cat(chosen[1:], takes_second)),
                        count.eq(counted),
                        total.eq(total + Mux(in_time, ONE, 0) + Mux(takes_second, weight, before.weight)),
                    ]
                    with m.If(final):
                        with m.If(enough | expired):
                            m.next = "Forget"
                        with m.Else():
                            m.d.sync += [count.eq(0), total.eq(0)]
                            with m.If(~begun & (counted != 0) & (self.deadline != 0)):
                                m.d.sync += [begun.eq(1), left.eq(self.deadline)]
                with m.If(~self.waits):
                    m.d.sync += [position.eq(0), count.eq(0), total.eq(0), begun.eq(0)]

            with m.State("Forget"):
                m.d.comb += [
                    steps.eq(~self.heard.valid),
                    forgets.eq((fresh & on_time[0]) | stale | (late[0] & (weight != 0) & (chosen[0] == second))),
                    write.en.eq(self.heard.valid | forgets),
                ]
                with m.If(steps & second):
                    m.d.sync += [
                        on_time.eq(Cat(on_time[1:], on_time[0])), late.eq(Cat(late[1:], late[0])),
                        chosen.eq(Cat(chosen[1:], chosen[0])),
                    ]
                    with m.If(final):
                        m.d.sync += self.close.valid.eq(1)
                        m.next = "Close"

            with m.State("Close"):
                m.d.comb += write.en.eq(self.heard.valid)
                with m.If(self.close.ready):
                    m.d.sync += self.close.valid.eq(0)
                with m.If(~self.waits & ~self.close.valid):
                    m.d.sync += [count.eq(0), total.eq(0), begun.eq(0)]
                    m.next = "Look"
        m.d.comb += [
            self.close.payload.tag.eq(self.tag),
            self.close.payload.on_time.eq(on_time),
            self.close.payload.late.eq(late),
            self.close.payload.index.eq(total),
        ]
        return ResetInserter(self.reset)(m)
