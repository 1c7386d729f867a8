"""Order of a collective that sums integers: packets also carry the exponents of a later segment.

A scatter-reduce packet with elements of segment t carries the exponents of segment t + 1, and an all-gather packet
with elements of segment t carries exponents of segment t + 2. With SR(r) and AG(r) as the packets with exponents of
segment r of every block, the order is SR(0), AG(0), SR(1), AG(1), … SR(T), AG(T), AG(T+1), where T is the number of
segments. SR(0), AG(0) and AG(1) have no elements; SR(T), AG(T) and AG(T+1) have no exponents. So the elements follow
each other as in :mod:`hdl.ring.order`: the all-gather lags by one segment. Commands without sums have only elements
and follow that order.
"""

from amaranth.hdl import Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import In

from hdl.ring.order import Phase, SequenceGenerator, record_layout
from hdl.ring.parts.part import RecordOrder
from hdl.ring.topology import SMALL_RING

__all__ = ["AHEAD", "ORDER", "AheadGenerator"]

#: Number of segments by which the exponents in a packet are ahead of its elements, in each phase.
AHEAD = {Phase.SCATTER: 1, Phase.GATHER: 2}


class AheadGenerator(SequenceGenerator):
    """Emit one record per step, with the segment of the elements and the segment of the exponents.

    Timing and parameters are as in :class:`~hdl.ring.order.SequenceGenerator`. Records have two more fields:
    ``ahead`` is the number of elements in the segment of the exponents, and ``ahead_place`` the position of its first
    group. As long as a packet has no elements, ``segment`` wraps and ``length`` is 0.

    Members
    -------
    start, plan, scatter, gather, o, busy
        See :class:`~hdl.ring.order.SequenceGenerator`.
    sums : In(1)
        Whether the command forms sums; stable like ``plan``. A sequence without sums has steps in one phase only.
    silent : In(1)
        Whether an all-gather has only exponents; stable like ``plan``.
    """

    def __init__(self, *, elements, segment, nodes_max=SMALL_RING):
        super().__init__(elements=elements, segment=segment, nodes_max=nodes_max,
                         members={"sums": In(1), "silent": In(1)})

    def _layout(self):
        layout = record_layout(self._elements, self._segment, self._nodes_max)
        members = {name: field.shape for name, field in layout}
        segments = range(-(-self._elements // self._segment) + 1 + max(AHEAD.values()))
        return data.StructLayout({**members, "segment": segments, "ahead": members["length"],
                                  "ahead_place": members["place"]})

    def _follow(self, m, phase, segment, both):
        change, following = Signal(range(2)), Signal(Phase)
        scatters, final, over = Signal(), Signal(), Signal()  # last two: steps SR(T) and AG(T); later steps
        m.d.comb += [
            scatters.eq(phase == Phase.SCATTER),
            final.eq(segment == self.plan.segments),
            over.eq(segment > self.plan.segments),
            change.eq(~(both & scatters)),
            following.eq(Mux(both & (scatters | final), Phase.GATHER, Mux(both, Phase.SCATTER, phase))),
        ]
        end = Mux(scatters, final & ~both, over)
        return change, following, Mux(self.sums, end, segment + 1 == self.plan.segments)

    def _climbs(self, position):
        climbs = super()._climbs(position)
        self._late = {phase: Signal.like(climb, name=f"late_{phase.name.lower()}") for phase, climb in climbs.items()}
        return climbs

    def _climb(self, m, phase, segment, climbs):
        super()._climb(m, phase, segment, climbs)
        with m.If(self.start):
            m.d.sync += [late.eq(0) for late in self._late.values()]
        for half, ahead in AHEAD.items():
            with m.Elif((phase == half) & ((segment >= ahead) | ~self.sums)):
                m.d.sync += self._late[half].eq(self._late[half] + self.plan.pitch)

    def _fields(self, m, group, position, segment, phase, climbs):
        ahead, gathers = Signal(range(3)), phase == Phase.GATHER
        late = Signal.like(segment, name="late_segment")
        m.d.comb += [
            ahead.eq(Mux(self.sums, Mux(gathers, AHEAD[Phase.GATHER], AHEAD[Phase.SCATTER]), 0)),
            late.eq(segment - ahead),
        ]
        block, place, length = self._record(
            m, group, position, late, Mux(gathers, self._late[Phase.GATHER], self._late[Phase.SCATTER]))
        _, ahead_place, ahead_length = self._record(
            m, group, position, segment, Mux(gathers, climbs[Phase.GATHER], climbs[Phase.SCATTER]))
        return {
            "segment": late, "block": block, "place": place,
            "length": Mux((segment < ahead) | (gathers & self.silent), 0, length), "ahead_place": ahead_place,
            "ahead": Mux(self.sums & (segment < self.plan.segments), ahead_length, 0)}


def _connect(m, generator, setup):
    m.d.comb += [generator.sums.eq(setup.fused | setup.sum), generator.silent.eq(setup.sum & ~setup.gather)]


ORDER = RecordOrder(generator=AheadGenerator, connect=_connect)
