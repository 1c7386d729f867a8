"""State of a node's gradients in quorum rounds: contents of the slots, and the outcome for each gradient."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quorum.layouts import (
    SLOTS,
    closing_layout,
    counts_layout,
    judge,
    own_ready_layout,
    resumed_layout,
    slot_layout,
    weights_layout,
    work_layout,
)

__all__ = ["QuorumState"]


class QuorumState(wiring.Component):
    """Manage a node's slots and its share in the current round, and count gradients by outcome.

    A slot is free, or its gradient is being computed, is pending, or is used by a closed round that has not ended
    yet. When a computation ends, its gradient is compared with the latest closed round within :attr:`latency` cycles:
    either it becomes pending and is reported to rank 0 once, or it is dropped because it is too late for any
    weight. When a round is closed, the unit needs :attr:`latency` cycles to assign the node's gradient of that
    round if it is on time, to assign the oldest gradient that has a weight if the round includes a late one from
    this node, and to drop gradients that are too late for any weight, which frees their slots. Weights must not
    increase with age, so that the outcome for a gradient does not depend on whether its computation ends before or
    after rounds are closed without it.

    A gradient stays pending until it is applied, applied late or dropped; it is counted as such in the cycle in which
    its slot stops being pending. A reset drops all pending gradients.

    At most one round after the active one can be closed, since rank 0 does not close a round before its own share of
    the previous round has ended, and this node's share of that round came earlier.

    All outputs depend only on registers, except that ``over`` also depends on ``tag``, and ``known`` on ``asked``.

    Members
    -------
    rank : In(4)
    weights : In(weights_layout())
    closed : In(1), closing : In(closing_layout())
        See :func:`~hdl.features.quorum.layouts.quorum_signature`.
    tag : In(16)
        Round of the next gradient to compute.
    over : Out(1)
        The round ``tag`` is closed.
    room : Out(1), slot : Out(1)
        Some slot is free, and the number of the first free one.
    begun : In(1), into : In(1)
        Computation of a gradient starts in this free slot; only one gradient is computed at a time.
    ended, good : In(1)
        The computation has ended, and has succeeded: its gradient is classified. If it has failed, the slot is free.
    resumed : In(resumed_layout())
        When its ``ready`` rises, the gradient in a slot is pending; it counts as computed.
    asked : In(16)
        Round that the node waits for.
    known : Out(1)
        The round ``asked`` is closed.
    taken : In(1)
        That round is active from the next cycle on.
    work : Out(work_layout())
        This node's share in the active round.
    finished : In(1)
        The active round has ended.
    ready : Out(stream of own_ready_layout())
    slots : Out(array of slot_layout())
    count : Out(counts_layout())
    reset : In(1)
        Level: discard all state.
    """

    latency = 4

    rank: In(4)
    weights: In(weights_layout())
    closed: In(1)
    closing: In(closing_layout())
    tag: In(16)
    over: Out(1)
    room: Out(1)
    slot: Out(1)
    begun: In(1)
    into: In(1)
    ended: In(1)
    good: In(1)
    resumed: In(resumed_layout())
    asked: In(16)
    known: Out(1)
    taken: In(1)
    work: Out(work_layout())
    finished: In(1)
    ready: Out(stream.Signature(own_ready_layout()))
    slots: Out(data.ArrayLayout(slot_layout(), SLOTS))
    count: Out(counts_layout())
    reset: In(1)

    def elaborate(self, platform):
        m = Module()
        states = [Signal(slot_layout(), name=f"slot_{n}") for n in range(SLOTS)]
        reported = Signal(SLOTS)
        pending = Cat(slot.pending for slot in states)
        free = Cat(~(slot.computing | slot.pending | slot.taken) for slot in states)
        latest = Signal(16)  # number of the round that was closed last
        some = Signal()  # a round was closed
        since = Signal(16)
        following = Signal(data.StructLayout({"present": 1, "tag": 16, "work": work_layout()}))
        m.d.comb += [
            self.slots.eq(Cat(states)),
            since.eq(latest - self.tag),
            self.over.eq(some & ~since[-1]),
            self.room.eq(free.any()),
            self.slot.eq(~free[0]),
            self.known.eq(following.present & (following.tag == self.asked)),
        ]

        # Closing a round takes one cycle per slot plus one; otherwise, classifying a gradient takes one cycle.
        turn = Signal(SLOTS + 1)
        ends = Signal(SLOTS)  # the slot's gradient has been computed but not yet classified
        judges, chosen, present = Signal(), Signal(), Signal()
        of = Signal(16)
        m.d.sync += turn.eq(Cat(self.closed, turn))
        with m.If(self.closed):
            m.d.sync += [latest.eq(self.closing.tag), some.eq(1)]
        m.d.comb += [
            judges.eq((turn == 0) & ends.any() & ~self.reset),
            chosen.eq(turn[1] | ((turn == 0) & ~ends[0])),
            of.eq(Mux(chosen, states[1].tag, states[0].tag)),
            present.eq(Mux(turn == 0, some, Mux(chosen, states[1].pending, states[0].pending))),
        ]
        fresh, weight, stale, age = judge(m, "slot", tag=latest, present=present, of=of, weights=self.weights)

        # A gradient becomes pending after its computation or when the host resumes it.
        before, again = Signal(), Signal()
        m.d.sync += before.eq(self.resumed.ready & (before | ~judges))
        m.d.comb += again.eq(self.resumed.ready & ~before & ~judges & ~self.reset)
        for n, slot in enumerate(states):
            with m.If(self.begun & (self.into == n)):
                m.d.sync += [slot.computing.eq(1), slot.tag.eq(self.tag)]
            with m.If(self.ended & slot.computing & ~ends[n]):
                m.d.sync += [ends[n].eq(self.good), slot.computing.eq(self.good)]
            with m.If(judges & (chosen == n)):
                m.d.sync += [ends[n].eq(0), slot.computing.eq(0), slot.pending.eq(~stale), reported[n].eq(0)]
            with m.If(again & (self.resumed.slot == n)):
                m.d.sync += [slot.pending.eq(1), slot.tag.eq(self.resumed.tag), reported[n].eq(0)]
            with m.If(self.finished & slot.taken):
                m.d.sync += slot.taken.eq(0)
        m.d.comb += self.count.gradients_computed.eq(judges | again)

        # If two gradients are unreported, the older one (of the lower round) is reported to rank 0 first.
        unreported = pending & ~reported
        later = Signal(16)
        m.d.comb += later.eq(states[1].tag - states[0].tag)
        with m.If(self.ready.ready | ~self.ready.valid):
            m.d.sync += self.ready.valid.eq(unreported.any())
            chooses = Mux(unreported.all(), later[-1], unreported[1])
            m.d.sync += self.ready.payload.slot.eq(chooses)
            with m.If(chooses):
                m.d.sync += self.ready.payload.tag.eq(states[1].tag)
            with m.Else():
                m.d.sync += self.ready.payload.tag.eq(states[0].tag)
            for n in range(SLOTS):
                with m.If(unreported[n] & (chooses == n)):
                    m.d.sync += reported[n].eq(1)

        # When a round is closed, decide what happens to each slot.
        closing = self.closing
        verdict = data.StructLayout({"fresh": 1, "weight": 5, "stale": 1, "age": 4})
        verdicts = [Signal(verdict, name=f"verdict_{n}") for n in range(SLOTS)]
        for n in range(SLOTS):
            with m.If(turn[n]):
                m.d.sync += [verdicts[n].fresh.eq(fresh), verdicts[n].weight.eq(weight), verdicts[n].stale.eq(stale),
                             verdicts[n].age.eq(age)]
        first, other = verdicts
        on_time, is_late, second = Signal(), Signal(), Signal()
        m.d.sync += [on_time.eq(closing.on_time.bit_select(self.rank, 1)),
                     is_late.eq(closing.late.bit_select(self.rank, 1))]
        m.d.comb += second.eq((other.weight != 0) & ((first.weight == 0) | (other.age > first.age)))
        work = following.work
        takes, drops = Signal(SLOTS), Signal(SLOTS)
        with m.If(turn[-1] & ~self.reset):
            m.d.comb += [
                takes.eq(Cat(((judged.fresh & on_time) | ((judged.weight != 0) & is_late & (second == n)))
                             for n, judged in enumerate(verdicts))),
                drops.eq(Cat(judged.stale for judged in verdicts)),
                self.count.gradients_applied.eq(on_time & (first.fresh | other.fresh)),
                self.count.gradients_applied_late.eq(is_late & ((first.weight != 0) | (other.weight != 0))),
            ]
            m.d.sync += [
                following.present.eq(1), following.tag.eq(closing.tag),
                work.fresh.eq(self.count.gradients_applied), work.late.eq(self.count.gradients_applied_late),
                work.fresh_slot.eq(other.fresh), work.late_slot.eq(second),
                work.weight.eq(Mux(second, other.weight, first.weight)), work.index.eq(closing.index),
                work.masks.eq(Cat(closing.on_time, closing.late)),
            ]
        for n, slot in enumerate(states):
            with m.If(takes[n]):
                m.d.sync += [slot.pending.eq(0), slot.taken.eq(1)]
            with m.If(drops[n]):
                m.d.sync += slot.pending.eq(0)
        with m.If(self.reset):
            m.d.comb += self.count.gradients_dropped.eq(sum(pending))
        with m.Else():
            m.d.comb += self.count.gradients_dropped.eq(sum(drops) + (judges & stale))
        with m.If(self.taken):
            m.d.sync += [self.work.eq(work), following.present.eq(0)]
        return ResetInserter(self.reset)(m)
