"""APPLY_LATE: add a node's weighted late gradient to its on-time gradient in a closed round."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.features.quorum.layouts import work_layout
from hdl.features.quorum.weighting import Weighting
from hdl.floating.add import FloatAdder
from hdl.floating.stages import wait
from hdl.memory import read_signature, write_signature
from hdl.streams.stream import Queue, connect_stream

__all__ = ["ApplyLate", "ApplyLateFlow"]


class ApplyLate(wiring.Component):
    """Run APPLY_LATE: wait until the command's round is closed, then apply the late gradient.

    If there are both an on-time and a late gradient, the late one is multiplied by its weight and added to the
    on-time one; if there is only a late one, it is replaced by the product. Product and sum are computed in binary32,
    each rounded to nearest even. Without a late gradient nothing happens. Gradients of ``length`` elements are stored
    in slots, starting at ``gradient_base`` and ``stride`` elements apart.

    Elements are processed one by one, in rows: a row takes ``lanes`` plus 4 cycles, or plus 7 with two gradients.

    A command that has waited for its round for ``timeout`` cycles, counted from the last cycle with a node ``alive``,
    ends with ``CLOSE_TIMEOUT``, and the number of the round as its detail. Otherwise the detail contains the masks of
    the round: the nodes on time in the low half, the late ones in the high half.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    command : In(stream of command_layout())
    event : Out(stream of event_layout())
    link_reset, alive : In(1)
    timeout, stride : In(32)
    weight_version : In(32)
        Weight version for the event.
    waits : Out(1), tag : Out(16)
        The command waits, and the round that it waits for.
    known : In(1)
        The round is closed.
    taken : Out(1)
        The round is active from the next cycle on, with ``work``.
    work : In(work_layout())
    busy : Out(1)
        The command runs in this cycle.
    gradient_read, gradient_write : memory ports
    """

    def __init__(self, *, config):
        self._config = config
        rows, lanes = config.memories.gradient // config.lanes, config.lanes
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "alive": In(1),
            "timeout": In(32),
            "stride": In(32),
            "weight_version": In(32),
            "waits": Out(1),
            "tag": Out(16),
            "known": In(1),
            "taken": Out(1),
            "work": In(work_layout()),
            "busy": Out(1),
            "gradient_read": Out(read_signature(rows, lanes)),
            "gradient_write": Out(write_signature(rows, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.runner = runner = CommandRunner(
            failure=EventStatus.CLOSE_TIMEOUT, most=(1 << 32) - 1, always=True)
        flow = ApplyLateFlow(rows=config.memories.gradient // config.lanes, lanes=config.lanes)
        m.submodules.flow = ResetInserter(runner.reset)(flow)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        wiring.connect(m, flow=flow.read, memory=wiring.flipped(self.gradient_read))
        wiring.connect(m, flow=flow.write, memory=wiring.flipped(self.gradient_write))
        request = self.command.payload
        base, length, masks = Signal.like(flow.base), Signal.like(flow.length), self.work.masks
        with m.If(self.command.ready):
            m.d.sync += [
                base.eq(request.gradient_base >> exact_log2(config.lanes)), length.eq(request.length),
                self.tag.eq(request.number),
            ]
        waited = Signal(32)
        first = Signal()  # the first cycle of the active round
        m.d.sync += [waited.eq(Mux(self.alive | ~self.waits, 0, waited + 1)), first.eq(self.taken)]
        m.d.comb += [
            self.taken.eq(self.waits & self.known),
            self.waits.eq(flow.waits),
            self.busy.eq(runner.busy),
            flow.start.eq(runner.start),
            flow.known.eq(self.known),
            flow.base.eq(base),
            flow.stride.eq(self.stride >> exact_log2(config.lanes)),
            flow.length.eq(length),
            flow.work.eq(self.work),
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(Mux(first, masks, 0)),
            runner.done.eq(flow.done),
            runner.bad.eq(self.waits & ~self.known & (waited >= self.timeout)),
            runner.number.eq(self.tag),
        ]
        return m


class ApplyLateFlow(wiring.Component):
    """Datapath of :class:`ApplyLate`, held in reset between commands.

    Parameters
    ----------
    rows, lanes : int
        Rows and lanes of the gradient memory.

    Members
    -------
    start : In(1)
    waits : Out(1)
        High from the cycle after ``start`` until ``known``.
    known : In(1)
    base, stride : In(range(rows))
        First row of slot 0, and distance between slots in rows.
    length : In(range(rows * lanes + 1))
    work : In(work_layout())
        Valid from the cycle after ``known``.
    done : Out(1)
        All results have been written.
    read, write : memory ports
    """

    #: Maximum number of results in flight; they fill a LUT memory.
    depth = 17

    def __init__(self, *, rows, lanes):
        self._rows = rows
        self._lanes = lanes
        super().__init__({
            "start": In(1),
            "waits": Out(1),
            "known": In(1),
            "base": In(range(rows)),
            "stride": In(range(rows)),
            "length": In(range(rows * lanes + 1)),
            "work": In(work_layout()),
            "done": Out(1),
            "read": Out(read_signature(rows, lanes)),
            "write": Out(write_signature(rows, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        work, read, write = self.work, self.read, self.write
        lanes, lane_bits = self._lanes, exact_log2(self._lanes)
        m.submodules.weighting = weighting = Weighting()
        m.submodules.adder = adder = FloatAdder()
        m.submodules.results = results = Queue(shape=32, depth=self.depth)

        # One row of each operand.
        row = data.ArrayLayout(32, lanes)
        late, fresh = Signal(row), Signal(row)
        fed, written = (Signal(range(self._rows * lanes + 1), name=name) for name in ("fed", "written"))
        feeds, second, last_lane = Signal(), Signal(), Signal()
        places = Signal(range(self.depth + 1), init=self.depth)
        writes = write.valid & write.ready
        begin = Signal(range(self._rows))  # first row of the slot being read
        fresh_begin, late_begin = self._begins(m)
        m.d.comb += [
            begin.eq(Mux(second, fresh_begin, late_begin)),
            read.row.eq(begin + (fed >> lane_bits)),
            last_lane.eq(((fed & (lanes - 1)) == lanes - 1) | (fed + 1 == self.length)),
        ]
        m.d.sync += places.eq(places - feeds + writes)
        with m.If(feeds):
            m.d.sync += fed.eq(fed + 1)
        with m.If(read.response):
            with m.If(second):
                m.d.sync += fresh.eq(read.elements)
            with m.Else():
                m.d.sync += late.eq(read.elements)

        lane = fed[:lane_bits] if lane_bits else 0
        m.d.comb += [
            weighting.a.eq(late[lane]), weighting.weight.eq(work.weight),
            adder.a.eq(wait(m, "beside", Mux(work.fresh, fresh[lane], 0), weighting.latency)),
            adder.b.eq(weighting.o),
        ]
        valid = feeds
        for cycle in range(weighting.latency + adder.latency):
            following = Signal(name=f"valid_{cycle + 1}")
            m.d.sync += following.eq(valid)
            valid = following
        m.d.comb += [
            results.i.valid.eq(valid),
            results.i.payload.eq(adder.o),
            results.o.ready.eq(write.ready),
            write.valid.eq(results.o.valid),
            write.row.eq(Mux(work.fresh, fresh_begin, late_begin) + (written >> lane_bits)),
            write.keep.eq(1 << written[:lane_bits]),
            *(element.eq(results.o.payload) for element in write.elements),
        ]
        with m.If(writes):
            m.d.sync += written.eq(written + 1)

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.start):
                    m.next = "Wait"

            with m.State("Wait"):
                m.d.comb += self.waits.eq(1)
                with m.If(self.known):
                    m.next = "Known"

            with m.State("Known"):
                with m.If(work.late & (self.length != 0)):
                    m.next = "Read"
                with m.Else():
                    m.d.comb += self.done.eq(1)

            with m.State("Read"):
                m.d.comb += read.valid.eq(1)
                with m.If(read.ready):
                    m.next = "Answer"

            with m.State("Answer"):
                with m.If(read.response):
                    m.d.sync += second.eq(work.fresh & ~second)
                    m.next = "Elements"
                    with m.If(work.fresh & ~second):
                        m.next = "Read"

            with m.State("Elements"):
                m.d.comb += feeds.eq(places != 0)
                with m.If(feeds & last_lane):
                    m.next = "Read"
                    with m.If(fed + 1 == self.length):
                        m.next = "End"

            with m.State("End"):
                m.d.comb += self.done.eq(written == self.length)
        return m

    def _begins(self, m):
        """First row of the on-time gradient's slot and of the late gradient's slot."""
        begins = []
        for name in ("fresh", "late"):
            begin = Signal(range(self._rows), name=f"{name}_begin")
            m.d.sync += begin.eq(self.base + Mux(self.work[f"{name}_slot"], self.stride, 0))
            begins.append(begin)
        return begins
