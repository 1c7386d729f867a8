"""Static order of a collective, which transfers blocks in segments.

A vector of ``length`` elements is partitioned cyclically into ``size`` blocks, in groups of 32 elements: group j
belongs to block (j + block_offset) % size. The first group of block b is therefore (b - block_offset) % size, and out
of G groups the block has G // size, plus one if its first group is below G % size. In memory, successive groups of a
vector are ``stride`` groups apart and successive groups of a block ``pitch`` = size · stride groups apart. A block
moves in segments of S elements. Every block has the same number T of segments, so short blocks end with empty
segments. With SR(t) and AG(t) as scatter-reduce and all-gather of segment t of every block, the order is SR(0),
SR(1), AG(0), SR(2), AG(1), … AG(T-1): the all-gather lags by one segment, which hides the latency of the optimizer.
In a late sequence it lags by :data:`LAG` segments, which also hides the latency of the whole ring.

Each activity of a collective (sending, receiving, reading gradients, updating a block) follows this order with its
own sequence, which has a given number of steps in each phase. The block number, and with it the first group,
decreases by one from step to step.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.ring.header import LONGEST_SEGMENT
from hdl.ring.topology import SMALL_RING, check_nodes, is_predecessor, is_successor, ranks, sizes, successor

__all__ = ["LAG", "STRIDES", "Phase", "Planner", "SequenceGenerator", "first_layout", "path_layout", "pitches",
           "plan_layout", "record_layout"]

#: Shape of a stride, which is the distance between successive groups of a vector.
STRIDES = range(256)


#: Number of segments by which the all-gather lags in a sequence with ``late`` set.
LAG = 3


class Phase(enum.Enum, shape=1):
    """Phase of a collective: scatter-reduce or all-gather."""

    SCATTER = 0
    GATHER = 1


def pitches(nodes_max):
    """Return the shape of the distance in groups between successive groups of a block."""
    return range(len(ranks(nodes_max)) * STRIDES.stop)


def _groups(elements):
    """Return the shape of a number of groups, or of a group's position, in a memory of ``elements`` elements."""
    return range((elements + GROUP - 1) // GROUP + 1)


def plan_layout(elements, nodes_max=SMALL_RING):
    """Layout of the partitioning of up to ``elements`` elements into up to ``nodes_max`` blocks.

    ``quotient`` is the minimum number of groups in a block, ``remainder`` the number of blocks with one more, and
    ``rest`` the number of elements in the vector's last group, modulo 32. ``final`` is the first group of the block
    that contains the last group. ``top`` is the position of group ``size`` - 1. Positions wrap at a power of two.
    """
    groups = _groups(elements)
    return data.StructLayout(
        {
            "size": sizes(nodes_max),
            "block_offset": ranks(nodes_max),
            "rest": range(GROUP),
            "quotient": groups,
            "remainder": sizes(nodes_max),
            "final": ranks(nodes_max),
            "segments": groups,
            "stride": groups,
            "top": groups,
            "pitch": groups,
        }
    )


def first_layout(elements, nodes_max=SMALL_RING):
    """Layout of a block's first group: its number, below the number of blocks, and its position in memory."""
    return data.StructLayout({"group": ranks(nodes_max), "place": _groups(elements)})


def path_layout(elements, nodes_max=SMALL_RING):
    """Layout of the path of a sequence through a phase: number of steps, and first group of the first block."""
    return data.StructLayout({"steps": sizes(nodes_max), "first": first_layout(elements, nodes_max)})


def record_layout(elements, segment, nodes_max=SMALL_RING):
    """Layout of an entry of the static order, which is one segment of a block.

    ``place`` is the position of the segment's first group, in groups from the base. ``length`` is the number of
    elements, 0 if the block ends before it. ``first`` and ``last`` mark the first and last step of a phase.
    """
    return data.StructLayout(
        {
            "phase": Phase,
            "segment": range(-(-elements // segment) + 1),
            "block": ranks(nodes_max),
            "place": _groups(elements),
            "length": range(segment + 1),
            "first": 1,
            "last": 1,
        }
    )


class Planner(wiring.Component):
    """Partition a vector into blocks without a divider or multiplier.

    ``done`` follows ``start`` by at most :attr:`latency` cycles. Results are stable until the next start.

    Parameters
    ----------
    elements : int
        Maximum length of a vector; a multiple of 32.
    segment : int
        Number of elements in a segment: 32 times a power of two.
    nodes_max : int
        Maximum number of blocks: the largest ring, up to :data:`~hdl.ring.topology.MAX_NODES`.

    Members
    -------
    start : In(1)
        Starts planning; the following inputs must be stable until ``done``.
    length, size, rank : In
        Length of the vector; number of blocks, 1 to ``nodes_max``; this node's rank, below ``size``.
    block_offset, stride : In
        Block of the vector's first group, below ``size``; distance between successive groups in groups, at least 1.
    done : Out(1)
        High for one cycle when the results are available.
    plan : Out(plan_layout(elements, nodes_max))
    previous, own, following : Out(first_layout(elements, nodes_max))
        First group of blocks rank - 1, rank and rank + 1, modulo ``size``.
    """

    def __init__(self, *, elements, segment, nodes_max=SMALL_RING):
        if segment & (segment - 1) or not GROUP <= segment <= LONGEST_SEGMENT:
            raise ValueError(f"Segment must be 32 times a power of two, up to {LONGEST_SEGMENT}, not {segment!r}")
        if not isinstance(elements, int) or elements % GROUP or elements < GROUP:
            raise ValueError(f"Longest vector must be a multiple of 32, at least 32, not {elements!r}")
        check_nodes(nodes_max, name="Most blocks")
        self._elements = elements
        self._segment = segment
        self._nodes_max = nodes_max
        first = first_layout(elements, nodes_max)
        super().__init__(
            {
                "start": In(1),
                "length": In(range(elements + 1)),
                "size": In(sizes(nodes_max)),
                "rank": In(ranks(nodes_max)),
                "block_offset": In(ranks(nodes_max)),
                "stride": In(STRIDES),
                "done": Out(1),
                "plan": Out(plan_layout(elements, nodes_max)),
                "previous": Out(first),
                "own": Out(first),
                "following": Out(first),
            }
        )

    @property
    def latency(self):
        return (self._elements // GROUP).bit_length() + max(self._nodes_max, SMALL_RING) + 3

    def elaborate(self, platform):
        m = Module()
        plan = self.plan
        per_segment = self._segment // GROUP

        bits = len(plan.quotient)
        groups = Signal.like(plan.quotient)
        position = Signal(range(bits), init=bits - 1)
        # Current remainder, with the next bit of the dividend appended.
        partial = Signal(range(2 * len(ranks(self._nodes_max))))
        first = Signal(first_layout(self._elements, self._nodes_max))  # first group of the block being processed
        block = Signal(ranks(self._nodes_max))
        widest = Signal(len(plan.quotient) + 1)

        m.d.comb += [
            partial.eq((plan.remainder << 1) | groups.bit_select(position, 1)),
            widest.eq(plan.quotient + (plan.remainder != 0)),
            plan.pitch.eq(first.place),  # position after the first groups of all blocks
        ]
        with m.FSM():
            with m.State("Idle"):
                with m.If(self.start):
                    m.d.sync += [
                        plan.size.eq(self.size),
                        plan.block_offset.eq(self.block_offset),
                        plan.stride.eq(self.stride),
                        plan.rest.eq(self.length),
                        plan.quotient.eq(0),
                        plan.remainder.eq(0),
                        groups.eq((self.length + GROUP - 1) >> 5),
                        position.eq(bits - 1),
                        block.eq(self.block_offset),
                        first.eq(0),
                    ]
                    m.next = "Divide"
            with m.State("Divide"):
                with m.If(partial >= plan.size):
                    m.d.sync += [plan.remainder.eq(partial - plan.size), plan.quotient.eq((plan.quotient << 1) | 1)]
                with m.Else():
                    m.d.sync += [plan.remainder.eq(partial), plan.quotient.eq(plan.quotient << 1)]
                m.d.sync += position.eq(position - 1)
                with m.If(position == 0):
                    m.next = "Deal"
            with m.State("Deal"):
                # Process one group at a time, since each position is the previous one plus a stride.
                with m.If(is_predecessor(block, self.rank, plan.size)):
                    m.d.sync += self.previous.eq(first)
                with m.If(block == self.rank):
                    m.d.sync += self.own.eq(first)
                with m.If(is_successor(block, self.rank, plan.size)):
                    m.d.sync += self.following.eq(first)
                m.d.sync += [
                    first.group.eq(first.group + 1),
                    first.place.eq(first.place + plan.stride),
                    block.eq(successor(block, plan.size)),
                    plan.top.eq(first.place),
                    plan.final.eq(Mux(plan.remainder == 0, plan.size, plan.remainder) - 1),
                    plan.segments.eq((widest + per_segment - 1) >> (per_segment.bit_length() - 1)),
                ]
                with m.If(first.group == plan.size - 1):
                    m.next = "Done"
            with m.State("Done"):
                m.d.comb += self.done.eq(1)
                m.next = "Idle"
        return m


class SequenceGenerator(wiring.Component):
    """Emit one record per step of a sequence, in the static order.

    A record is offered two cycles after the previous one was accepted. ``o`` is a register, and of all registers only
    ``o.valid`` depends on ``o.ready``, which comes from all consumers of the records.

    Parameters
    ----------
    elements : int
        Maximum length of a vector; a multiple of 32.
    segment : int
        Number of elements in a segment: 32 times a power of two.
    nodes_max : int
        Maximum number of blocks.
    chained : bool
        Whether a scatter-reduce may be a chain with one step per node.
    lags : bool
        Whether the all-gather may lag by :data:`LAG` segments (``late``).
    members : mapping, optional
        Additional members, for a subclass with a different order.

    Members
    -------
    start : In(1)
        Starts a sequence; ``plan``, ``scatter`` and ``gather`` must be stable until ``busy`` is low again.
    plan : In(plan_layout(elements, nodes_max))
    scatter, gather : In(path_layout(elements, nodes_max))
        Path in each phase; a phase without steps is omitted from the order.
    opens, closes : In(1)
        Whether the first step of a scatter-reduce is marked ``first``, and the last step ``last``. Present only if
        ``chained``; otherwise they always are.
    late : In(1)
        Whether the all-gather lags by :data:`LAG` segments instead of one. Present only if ``lags``.
    o : Out(stream of record_layout(elements, segment, nodes_max))
    busy : Out(1)
        High from the cycle after ``start`` until the last record has been accepted.
    """

    def __init__(self, *, elements, segment, nodes_max=SMALL_RING, chained=False, lags=False, members=None):
        self._elements = elements
        self._segment = segment
        self._nodes_max = nodes_max
        self._chained = chained
        self._lags = lags
        super().__init__(
            {
                "start": In(1),
                "plan": In(plan_layout(elements, nodes_max)),
                **({"opens": In(1), "closes": In(1)} if chained else {}),
                **({"late": In(1)} if lags else {}),
                **(members or {}),
                "scatter": In(path_layout(elements, nodes_max)),
                "gather": In(path_layout(elements, nodes_max)),
                "o": Out(stream.Signature(self._layout())),
                "busy": Out(1),
            }
        )

    def _layout(self):
        """Layout of the generated records."""
        return record_layout(self._elements, self._segment, self._nodes_max)

    def elaborate(self, platform):
        m = Module()
        plan = self.plan
        active = Signal()
        phase = Signal(Phase)
        segment = Signal.like(self.o.payload.segment)
        steps = Signal(sizes(self._nodes_max))  # remaining steps of the phase, counting the current one
        opening = Signal()  # the current step is the first one
        group = Signal(ranks(self._nodes_max))  # first group of the block
        position = Signal.like(plan.pitch)  # position of the block's first group
        wraps = Signal()
        settled = Signal()  # the record reflects the current group, position and segment

        # Conditions for the step that follows a phase's last step.
        both = Signal()
        enters = Signal()
        onward = Signal(Phase)
        path = Signal(path_layout(self._elements, self._nodes_max))
        m.d.comb += [
            wraps.eq(group == 0),
            both.eq(self.scatter.steps.any() & self.gather.steps.any()),
            path.eq(Mux(onward == Phase.GATHER, self.gather.as_value(), self.scatter.as_value())),
        ]

        change, following, ends = self._follow(m, phase, segment, both)
        climbs = self._climbs(position)
        fields = self._fields(m, group, position, segment, phase, climbs)

        first, last = opening, steps == 1
        if self._chained:
            first = first & (self.opens | (phase == Phase.GATHER))
            last = last & (self.closes | (phase == Phase.GATHER))
        m.d.comb += self.busy.eq(active | self.o.valid)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        m.d.sync += settled.eq(active & ~settled)
        with m.If(self.start):
            m.d.comb += [enters.eq(1), onward.eq(Mux(self.scatter.steps == 0, Phase.GATHER, Phase.SCATTER))]
            m.d.sync += active.eq((self.scatter.steps.any() | self.gather.steps.any()) & (plan.segments != 0))
        with m.Elif(active & settled):
            # A record needs two cycles to settle, so this cycle costs no time, even if a record is taken immediately.
            with m.If(self.o.valid):
                m.d.sync += settled.eq(1)
            with m.Else():
                m.d.sync += [
                    self.o.valid.eq(1),
                    self.o.payload.phase.eq(phase),
                    *(self.o.payload[name].eq(value) for name, value in fields.items()),
                    self.o.payload.first.eq(first),
                    self.o.payload.last.eq(last),
                    opening.eq(0),
                    steps.eq(steps - 1),
                    group.eq(self._next_group(group, wraps)),
                    position.eq(self._next_place(position, wraps)),
                ]
                m.d.comb += enters.eq(steps == 1)

        with m.If(enters):
            m.d.sync += [
                phase.eq(onward),
                segment.eq(segment + change),
                opening.eq(1),
                steps.eq(path.steps),
                group.eq(path.first.group),
                position.eq(path.first.place),
            ]
            self._climb(m, phase, segment, climbs)
            with m.If(self.start):
                m.d.sync += segment.eq(0)
            with m.Elif(ends):
                m.d.sync += active.eq(0)
        with m.If(~self.start):
            m.d.comb += onward.eq(following)
        return m

    def _follow(self, m, phase, segment, both):
        """Return what follows a segment of a phase: the change of the segment's number, the next phase, and whether
        the sequence ends. ``both`` is high if the sequence has steps in both phases."""
        plan = self.plan
        ending, before_end = Signal(), Signal()  # this segment is the last one; the next one is
        following = Signal(Phase)
        change = Signal(signed(4 if self._lags else 3))
        m.d.comb += [ending.eq(segment + 1 == plan.segments), before_end.eq(segment + 2 == plan.segments)]
        # The all-gather lags by one or more segments. At first it waits for this number of segments; at the end,
        # the remaining segments follow one after another.
        awaited, near_end = segment != 0, before_end
        if self._lags:
            lag = Mux(self.late, LAG, 1)
            awaited, near_end = Signal(), Signal()
            m.d.comb += [awaited.eq(segment >= lag), near_end.eq(segment + lag + 1 >= plan.segments)]
            back = Mux(awaited, lag, segment[:LAG.bit_length()])
            with m.If(phase == Phase.SCATTER):
                m.d.comb += change.eq(Mux(both & (awaited | ending), -back, 1))
            with m.Else():
                m.d.comb += change.eq(Mux(both & ~near_end, lag + 1, 1))
        else:
            with m.If(phase == Phase.SCATTER):
                m.d.comb += change.eq(Mux(both & awaited, -1, Mux(both & ending, 0, 1)))
            with m.Else():
                m.d.comb += change.eq(Mux(both & ~near_end, 2, 1))
        with m.If(~both):
            m.d.comb += following.eq(phase)
        with m.Elif(phase == Phase.SCATTER):
            m.d.comb += following.eq(Mux(awaited | ending, Phase.GATHER, Phase.SCATTER))
        with m.Else():
            m.d.comb += following.eq(Mux(near_end, Phase.GATHER, Phase.SCATTER))
        return change, following, ending & ~(both & (phase == Phase.SCATTER))

    def _climb(self, m, phase, segment, climbs):
        """Advance to the segment of a phase that follows ``segment``, or start with the first one."""
        for half in Phase:
            with m.If(self.start):
                m.d.sync += climbs[half].eq(0)
            with m.Elif(phase == half):
                m.d.sync += climbs[half].eq(climbs[half] + self.plan.pitch)

    def _fields(self, m, group, position, segment, phase, climbs):
        """Return the fields of the current step's record that depend on its block and segment. Latency: one cycle."""
        climb = Mux(phase == Phase.GATHER, climbs[Phase.GATHER], climbs[Phase.SCATTER])
        block, offset, length = self._record(m, group, position, segment, climb)
        return {"segment": segment, "block": block, "place": offset, "length": length}

    def _climbs(self, position):
        """Create a signal for each phase: the distance, in groups, from the first segment to the current one, without
        the low bits, which are always zero. The distance is a running sum, so no multiplier is needed."""
        shift = (self._segment // GROUP).bit_length() - 1
        return {phase: Signal(max(len(position) - shift, 1), name=f"climb_{phase.name.lower()}") for phase in Phase}

    def _record(self, m, group, position, segment, climb):
        """Return the current step's record one cycle after its inputs: the block's first group, the group's position,
        the segment, and its distance from the first segment."""
        plan = self.plan
        per_segment = self._segment // GROUP
        shift = per_segment.bit_length() - 1
        offset = Signal.like(position)  # position of the segment
        block = Signal(ranks(self._nodes_max))
        left = Signal.like(plan.quotient)  # number of groups in the block from this segment on, rounded down to even
        odd, final = Signal(), Signal()  # the block has an odd number of groups; it has the vector's last group
        inside = Signal(range(per_segment + 1))  # number of groups in the segment
        ends = Signal()  # the block ends in or before this segment
        partial = Signal()  # the segment's last group is the vector's last group and is not full
        unwrapped = Signal(range(2 * len(ranks(self._nodes_max))))
        m.d.comb += unwrapped.eq(group + plan.block_offset)
        m.d.sync += [
            offset.eq(position + Cat(Const(0, shift), climb)),
            block.eq(Mux(unwrapped >= plan.size, unwrapped - plan.size, unwrapped)),
            left.eq(plan.quotient - (segment << shift)),
            odd.eq(group < plan.remainder),
            final.eq(group == plan.final),
        ]
        m.d.comb += [
            inside.eq(Mux(left < per_segment, left[:len(inside)] + odd, per_segment)),
            ends.eq((left < per_segment) | ((left == per_segment) & ~odd)),
            partial.eq(final & ends & (inside != 0) & (plan.rest != 0)),
        ]
        return block, offset, Cat(Mux(partial, plan.rest, 0), inside - partial)

    def _next_group(self, group, wraps):
        """Return the first group of the preceding block, modulo the ring size."""
        return Mux(wraps, self.plan.size, group) - 1

    def _next_place(self, position, wraps):
        """Return the position of the group from :meth:`_next_group`, computed by one carry chain with a carry-in."""
        plan = self.plan
        return (Cat(Const(1), position) + Cat(~wraps, Mux(wraps, plan.top, ~plan.stride))) >> 1
