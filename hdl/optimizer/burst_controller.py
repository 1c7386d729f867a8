"""Burst controller, which selects the beat that enters the arithmetic in each cycle."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.streams.stream import SkidBuffer, connect_stream

__all__ = ["BurstController", "command_layout", "tag_layout"]


def command_layout(workers, depth):
    """Layout of a command: the number of elements in a burst, 1 to ``depth``, and the workers that send gradients."""
    return data.StructLayout({"count": range(depth + 1), "active": workers})


def tag_layout(lanes, update_lanes):
    """Layout of the tag that accompanies each beat of a burst.

    ``keep`` marks the valid elements of the beat, ``part`` is the beat's position in a row of ``lanes`` elements,
    ``row_end`` marks the end of that row, and ``last`` marks the end of the burst.
    """
    return data.StructLayout(
        {"valid": 1, "keep": update_lanes, "part": range(lanes // update_lanes + 1), "row_end": 1, "last": 1}
    )


class BurstController(wiring.Component):
    """Decide in each cycle whether a beat of a burst enters the arithmetic.

    A burst begins when all of its operands are buffered. Its beats enter in consecutive cycles, except in cycles
    without ``room`` for a result. The next burst begins in the cycle after the last beat if its operands are buffered
    by then. The controller holds up to two commands; ``command.ready`` depends only on registers, and a command takes
    effect in the cycle after it is accepted.

    A ``paced`` controller decides one cycle ahead and registers the decision, because its inputs are spread across
    the chip: a beat enters in its ``turn`` if operands and room were available in the preceding cycle.

    Parameters
    ----------
    workers, lanes, update_lanes, depth : int
        See :class:`~hdl.optimizer.burst.StreamedOptimizer`.
    paced : bool
        Whether beats enter in at most every second cycle.

    Members
    -------
    command : In(stream of command_layout(workers, depth))
    filled : In(workers)
        Workers that have a bank of gradients to claim.
    supplied : In(1)
        All other operands of a burst are buffered.
    room : In(1)
        Every result queue has room for one more row.
    turn : In(1)
        The arithmetic accepts a beat in this cycle; always high, unless ``paced``.
    begin : Out(1)
        A burst begins: claim its operands.
    active : Out(workers)
        Workers of the burst, in each of its beats.
    beat : Out(tag_layout(lanes, update_lanes))
        The beat that enters in this cycle, if any.
    waiting : Out(1)
        A command is held.
    """

    def __init__(self, *, workers, lanes, update_lanes, depth, paced):
        self._lanes = lanes
        self._update_lanes = update_lanes
        self._paced = paced
        self._command = command_layout(workers, depth)
        super().__init__(
            {
                "command": In(stream.Signature(self._command)),
                "filled": In(workers),
                "supplied": In(1),
                "room": In(1),
                "turn": In(1),
                "begin": Out(1),
                "active": Out(workers),
                "beat": Out(tag_layout(lanes, update_lanes)),
                "waiting": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.commands = commands = SkidBuffer(shape=self._command)
        connect_stream(m, wiring.flipped(self.command), commands.i)
        command = commands.o.payload

        lane_bits = exact_log2(self._update_lanes)
        parts = self._lanes // self._update_lanes
        final = Signal.like(command.count)  # last element of the burst
        index = Signal(len(final) - lane_bits)
        running = Signal()
        complete = Signal()
        possible = Signal()
        if self._paced:
            decided = Signal()
            m.d.sync += decided.eq(possible)
        else:
            decided = possible
        m.d.comb += [
            final.eq(command.count - 1),
            complete.eq(self.supplied & (self.filled | ~command.active).all()),
            self.waiting.eq(commands.o.valid),
            self.active.eq(command.active),
            self.begin.eq(self.beat.valid & ~running),
            possible.eq(commands.o.valid & (running | complete) & self.room),
            self.beat.valid.eq(decided & self.turn),
            self.beat.last.eq(index == final[lane_bits:]),
            self.beat.part.eq(index & (parts - 1)),
            self.beat.row_end.eq(self.beat.last | (self.beat.part == parts - 1)),
            commands.o.ready.eq(self.beat.valid & self.beat.last),
        ]
        for lane in range(self._update_lanes):
            m.d.comb += self.beat.keep[lane].eq(~self.beat.last | (final[:lane_bits] >= lane))
        with m.If(self.beat.valid):
            m.d.sync += [running.eq(~self.beat.last), index.eq(Mux(self.beat.last, 0, index + 1))]
        return m
