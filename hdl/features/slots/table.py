"""Generator of a node's slots from its TIME and a table."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.slots.layouts import GAP, GAP_BITS, GROUP, MESSAGE_CYCLES, TARGET_BITS, mode_layout, table_layout

__all__ = ["SlotTable"]


class SlotTable(wiring.Component):
    """Generate the slots of a superframe.

    There is one message slot after every four packet slots, and after the last packet slot. In a packet slot, every
    node sends a packet to its successor. Message slots belong alternately to rank 0 and to rank ``other`` of the
    table, if there is one; nodes after the sender forward arriving words, up to rank 0.

    ``starts`` and ``mode`` are registered; latency from TIME is :attr:`latency` cycle. If TIME is set back, the
    current slot becomes longer, and if it is set forward, the slot becomes shorter.

    Parameters
    ----------
    messages : bool
        Whether there are message slots.

    Members
    -------
    slots : In(table_layout())
    granted : In(1)
    target : In(16)
    sets : In(1)
    gap : In(12)
        As in :class:`~hdl.features.slots.records.RecordLaps`. ``granted`` and ``sets`` are ignored while there are
        slots.
    rank : In(4)
    now : In(32)
        TIME, of which only the low bits are used: a slot, or the wait for a superframe, takes at most 2^15 cycles.
    starts : Out(1)
        Pulse in the first cycle of a slot.
    mode : Out(mode_layout())
        Role of the node in this slot; no role without slots.
    active : Out(1)
        Slots are in progress, or will begin at a known TIME.
    over : Out(1)
        Pulse: the slots have ended, and the next ones begin ``gap`` cycles after their end.
    left : Out(16)
        Cycles of TIME before the first or the next slot begins, minus 1; -1 when it begins. Depends combinationally
        on ``now``.
    reset_link : In(1)
        Level: there are no slots.
    """

    latency = 1

    slots: In(table_layout())
    granted: In(1)
    target: In(TARGET_BITS)
    sets: In(1)
    gap: In(GAP_BITS)
    rank: In(4)
    now: In(32)
    starts: Out(1)
    mode: Out(mode_layout())
    active: Out(1)
    over: Out(1)
    left: Out(TARGET_BITS)
    reset_link: In(1)

    def __init__(self, *, messages=True):
        self._messages = messages
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        mode = self.mode
        kept = Signal(table_layout())
        boundary, passed = Signal(TARGET_BITS), Signal(TARGET_BITS)
        group = Signal(range(GROUP))
        message_next, ends, owner = Signal(), Signal(), Signal(4)
        m.d.comb += [
            passed.eq(self.now[:TARGET_BITS] - boundary),
            owner.eq(Mux(kept.odd, kept.other, 0)), self.left.eq(~passed),
        ]
        empty, last = self.slots.slots == 0, kept.slots == 1
        m.d.sync += [self.starts.eq(0), self.over.eq(0)]
        with m.If(~self.active):
            m.d.sync += [kept.eq(self.slots), self.active.eq(self.granted | self.sets), group.eq(0),
                         message_next.eq(empty & ~self.sets & int(self._messages)),
                         ends.eq(self.sets | (empty & int(not self._messages)))]
            with m.If(self.sets):
                m.d.sync += boundary.eq(self.target)
        with m.Elif(~passed[-1]):
            m.d.sync += boundary.eq(
                boundary + Mux(ends, self.gap, Mux(message_next, MESSAGE_CYCLES, kept.longest + GAP)))
            with m.If(ends):
                m.d.sync += [self.active.eq(0), mode.eq(0), self.over.eq(1)]
            with m.Else():
                m.d.sync += [
                    self.starts.eq(1), mode.message.eq(message_next),
                    mode.drives.eq(~message_next | (owner == self.rank)),
                    mode.passes.eq(message_next & (self.rank > owner)),
                ]
                with m.If(message_next):
                    m.d.sync += [message_next.eq(0), kept.odd.eq(~kept.odd), ends.eq(kept.slots == 0)]
                with m.Else():
                    m.d.sync += [kept.slots.eq(kept.slots - 1), group.eq(group + 1),
                                 message_next.eq(((group == GROUP - 1) | last) & int(self._messages)),
                                 ends.eq(last & int(not self._messages))]
        with m.If(self.reset_link):
            m.d.sync += [self.starts.eq(0), mode.eq(0), self.active.eq(0), self.over.eq(0)]
        return m
