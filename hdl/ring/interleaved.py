"""Interleaved order of a collective, in which packets of two segments alternate.

With SR(t) and AG(t) as scatter-reduce and all-gather of segment t of every block (:mod:`hdl.ring.order`), the order
SR(0), SR(1), SR(2), AG(0), SR(3), AG(1), … AG(T-1), in which the all-gather lags by two segments, is processed in
pairs of segments with alternating steps. Data to be forwarded was thus received two packets earlier. A collective
with only one phase processes its segments in pairs. If blocks have only one segment, AG(0) depends on all of SR(0)
and comes after it.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In

from hdl.ring.order import Phase, SequenceGenerator
from hdl.ring.parts.part import RecordOrder
from hdl.ring.topology import SMALL_RING, ranks, sizes

__all__ = ["INTERLEAVED_LAG", "ORDER", "InterleavedGenerator"]

#: Lag of the all-gather, in segments.
INTERLEAVED_LAG = 2


class InterleavedGenerator(SequenceGenerator):
    """Emit one record per step, in the interleaved order.

    A record is offered :attr:`pause` cycles after the previous one was accepted, or :attr:`pair_pause` cycles if a
    new pair of segments starts, or at most :attr:`longest_pause` cycles if the sequence has no steps in a phase of
    the collective. ``o`` is a register; only ``o.valid`` depends on ``o.ready``.

    Parameters
    ----------
    elements, segment, nodes_max : int
        See :class:`~hdl.ring.order.SequenceGenerator`.

    Members
    -------
    start, plan, scatter, gather, o, busy
        See :class:`~hdl.ring.order.SequenceGenerator`. A phase without steps is omitted, but if the collective has
        it, its segments keep their positions in the order, so all sequences of a collective pair the same segments.
    both : In(1)
        Whether the collective has both phases, or only the phase with steps of this sequence. Stable like ``plan``.
    """

    pause, pair_pause, longest_pause = 2, 3, 5

    def __init__(self, *, elements, segment, nodes_max=SMALL_RING):
        super().__init__(elements=elements, segment=segment, nodes_max=nodes_max, members={"both": In(1)})

    def elaborate(self, platform):
        m = Module()
        plan, record = self.plan, self.o.payload

        # Number of segments started in each phase, and number of segments by which the all-gather lags.
        entered = {each: Signal(record.segment.shape(), name=f"entered_{each.name.lower()}") for each in Phase}
        behind = Signal(range(INTERLEAVED_LAG + 2))
        taken = {each: Signal(name=f"taken_{each.name.lower()}") for each in Phase}  # the collective has the phase
        remains = {each: Signal(name=f"remains_{each.name.lower()}") for each in Phase}
        onward, more = Signal(Phase), Signal()  # phase of the next segment, and whether there is a next segment
        m.d.comb += [
            taken[Phase.SCATTER].eq(self.both | self.scatter.steps.any()),
            taken[Phase.GATHER].eq(self.both | self.gather.steps.any()),
            *(remains[each].eq(taken[each] & (entered[each] != plan.segments)) for each in Phase),
            more.eq(remains[Phase.SCATTER] | remains[Phase.GATHER]),
            onward.eq(Mux(remains[Phase.SCATTER] & (~self.both | (behind != INTERLEAVED_LAG + 1)),
                          Phase.SCATTER, Phase.GATHER)),
        ]

        # The two segments in progress. `turn` selects the one with the current step.
        turn = Signal()
        lanes = [self._lane(f"lane_{number}") for number in range(2)]
        lane = {name: Mux(turn, *(each[name] for each in reversed(lanes))) for name in lanes[0]}
        idle = Signal()  # the other segment has no steps left
        m.d.comb += idle.eq(Mux(turn, lanes[0]["steps"], lanes[1]["steps"]) == 0)
        climbs = self._climbs(lanes[0]["place"])
        chosen = onward == Phase.GATHER
        steps = Mux(chosen, self.gather.steps, self.scatter.steps)
        first = {name: Mux(chosen, self.gather.first[name], self.scatter.first[name]) for name in ("group", "place")}

        def enter(into):
            """Advance to the next segment of the sequence, if there is one."""
            m.d.sync += [
                into["phase"].eq(onward),
                into["opening"].eq(1),
                into["segment"].eq(Mux(chosen, entered[Phase.GATHER], entered[Phase.SCATTER])),
                into["steps"].eq(Mux(more, steps, 0)),
                into["group"].eq(first["group"]),
                into["place"].eq(first["place"]),
                into["climb"].eq(Mux(chosen, climbs[Phase.GATHER], climbs[Phase.SCATTER])),
            ]
            for each in Phase:
                with m.If(more & (onward == each)):
                    m.d.sync += [entered[each].eq(entered[each] + 1), climbs[each].eq(climbs[each] + plan.pitch),
                                 behind.eq(behind + 1 if each == Phase.SCATTER else behind - 1)]

        active, settled = Signal(), Signal()  # settled: the values have had one cycle to reach the record
        wraps, at_end = Signal(), Signal()
        group, at, segment = (Signal.like(lanes[0][name], name=name) for name in ("group", "place", "segment"))
        left = Signal.like(lanes[0]["steps"])
        m.d.comb += [
            group.eq(lane["group"]), at.eq(lane["place"]), segment.eq(lane["segment"]), left.eq(lane["steps"]),
            wraps.eq(group == 0), at_end.eq(left == 1), self.busy.eq(active | self.o.valid),
        ]
        block, position, length = self._record(m, group, at, segment, lane["climb"])
        after = {"opening": 0, "steps": left - 1, "group": self._next_group(group, wraps),
                 "place": self._next_place(at, wraps)}

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        m.d.sync += settled.eq(0)
        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [behind.eq(0), *(count[each].eq(0) for each in Phase for count in (entered, climbs))]
                with m.If(self.start & (self.scatter.steps.any() | self.gather.steps.any()) & (plan.segments != 0)):
                    m.d.sync += active.eq(1)
                    m.next = "First"
            with m.State("First"):
                enter(lanes[0])
                m.d.sync += turn.eq(0)
                with m.If(more):
                    m.next = "Second"
                with m.Else():
                    m.d.sync += active.eq(0)
                    m.next = "Idle"
            with m.State("Second"):
                with m.If(self.both & (plan.segments == 1)):
                    m.d.sync += lanes[1]["steps"].eq(0)
                with m.Else():
                    enter(lanes[1])
                m.d.sync += settled.eq(1)
                m.next = "Steps"
            with m.State("Steps"):
                m.d.sync += settled.eq(1)
                with m.If(left == 0):
                    # This sequence has no steps in this segment.
                    m.d.sync += [settled.eq(0), turn.eq(~turn)]
                    with m.If(idle):
                        m.next = "First"
                with m.Elif(settled & ~self.o.valid):
                    m.d.sync += [
                        settled.eq(0),
                        turn.eq(turn ^ ~idle),
                        self.o.valid.eq(1),
                        record.phase.eq(lane["phase"]),
                        record.segment.eq(segment),
                        record.block.eq(block),
                        record.place.eq(position),
                        record.length.eq(length),
                        record.first.eq(lane["opening"]),
                        record.last.eq(at_end),
                    ]
                    for number, each in enumerate(lanes):
                        with m.If(turn == number):
                            m.d.sync += [each[name].eq(value) for name, value in after.items()]
                    with m.If(at_end & idle):
                        m.next = "First"
        return m

    def _lane(self, name):
        """Create the registers of a segment in progress."""
        position = Signal(self.plan.pitch.shape(), name=f"{name}_place")
        return {
            "phase": Signal(Phase, name=f"{name}_phase"),
            "segment": Signal(self.o.payload.segment.shape(), name=f"{name}_segment"),
            "steps": Signal(sizes(self._nodes_max), name=f"{name}_steps"),  # remaining steps, including the next one
            "opening": Signal(name=f"{name}_opening"),  # the next step is the first one
            "group": Signal(ranks(self._nodes_max), name=f"{name}_group"),  # first group of the block
            "place": position,  # position of the block's first group
            "climb": Signal(len(self._climbs(position)[Phase.SCATTER]), name=f"{name}_climb"),
        }


def _connect(m, generator, setup):
    m.d.comb += generator.both.eq(setup.both)


#: Order of a node with the role ``Peer(interleaved=True)``.
ORDER = RecordOrder(generator=InterleavedGenerator, connect=_connect)
