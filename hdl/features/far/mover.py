"""Engine that moves activations to a far memory and back."""

from types import SimpleNamespace

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.features.far.port import far_signature
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.stream import Queue, connect_stream

__all__ = ["OUTSTANDING", "Mover", "counts_layout"]

OUTSTANDING = 32
"""Maximum number of rows that are read from the far memory and not yet written to the near one."""


def counts_layout():
    """Return the per-cycle increments of the counters, keyed by register name."""
    return data.StructLayout({"command_cycles": 1, "stall_memory": 1})


class Mover(wiring.Component):
    """Run MOVE_OUT and MOVE_IN: copy ``length`` elements between the activation memory, starting at ``weight_base``,
    and the far memory, starting at ``state_base``.

    A row takes one cycle in either direction if neither memory stalls and the far memory answers within about
    :data:`OUTSTANDING` cycles, since this is the maximum number of pending rows. A MOVE_OUT ends when the far memory
    has taken its last row, and a MOVE_IN when the near memory has.

    Cycles spent waiting for the far memory to accept a request or to answer are counted. When the count reaches
    ``timeout``, the command ends with FAR_TIMEOUT, and the detail is the number of elements moved by then. Answers
    that arrive after the end of their command are dropped. The next MOVE_IN makes no request until all of them have
    arrived; ``link_reset`` sets their number to 0.

    Parameters
    ----------
    config : NodeConfig
        Configuration with a far memory.

    Members
    -------
    command : In(stream of command_layout())
        MOVE_OUT or MOVE_IN; checked beforehand, see :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
        One event for each command. The detail is the number of elements moved.
    link_reset : In(1)
        Abort a command, possibly half-way through.
    timeout : In(32)
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    activation_read, activation_write : memory ports
    far : Out(far_signature(rows, lanes))
        ``valid`` and the signals of its request are registers.
    """

    def __init__(self, *, config):
        if not config.far_words:
            raise ValueError(f"Node must have a far memory, not {config!r}")
        self._config = config
        near, far, lanes = config.compute.activations // config.lanes, config.far_words // config.lanes, config.lanes
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "timeout": In(32),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "activation_read": Out(read_signature(near, lanes)),
            "activation_write": Out(write_signature(near, lanes)),
            "far": Out(far_signature(far, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, elements = self._config.lanes, self._config.compute.activations
        lane_bits, rows = exact_log2(lanes), elements // lanes
        m.submodules.runner = runner = CommandRunner(failure=EventStatus.FAR_TIMEOUT, most=lanes)
        reader = RowReader(rows=rows, lanes=lanes, elements=elements, ahead=False)
        writer = RowWriter(rows=rows, lanes=lanes, elements=elements)
        for name, unit in (("reader", reader), ("writer", writer)):
            m.submodules[name] = ResetInserter(runner.reset)(unit)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.activation_read))
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.activation_write))

        request, far = self.command.payload, self.far
        job = Signal(data.StructLayout(
            {"near": range(rows), "far": far.row.shape(), "length": range(elements + 1), "back": 1}))
        with m.If(self.command.ready):
            m.d.sync += [
                job.near.eq(request.weight_base >> lane_bits), job.far.eq(request.state_base >> lane_bits),
                job.length.eq(request.length), job.back.eq(request.operation == Operation.MOVE_IN)]
        for unit in (reader, writer):
            m.d.comb += [unit.job.payload.row.eq(job.near), unit.job.payload.count.eq(job.length)]
        m.d.comb += [reader.job.valid.eq(runner.start & ~job.back), writer.job.valid.eq(runner.start & job.back)]

        taken = Signal()
        m.d.comb += taken.eq(far.valid & far.ready)
        owed = self._answers(m, job, runner, writer, taken)
        ended = self._requests(m, job, runner, reader.o, owed)
        silent, idle = Signal(), Signal(32)
        m.d.comb += silent.eq(~taken & ~far.response & (far.valid | (owed.rows != 0)))
        m.d.sync += idle.eq(Mux(silent & ~runner.reset, idle + 1, 0))
        port = writer.port
        progress = Signal(range(lanes + 1))
        m.d.comb += progress.eq(Mux(job.back, sum(Mux(port.valid & port.ready, port.keep, 0)),
                                    sum(Mux(taken, far.keep, 0))))
        m.d.comb += [
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(progress),
            runner.done.eq(Mux(job.back, writer.done, ended)),
            runner.bad.eq(silent & (idle >= self.timeout)),
            runner.number.eq(runner.event.payload.detail),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq((self.activation_read.valid & ~self.activation_read.ready)
                                       | (port.valid & ~port.ready)),
        ]
        return m

    def _answers(self, m, job, runner, writer, taken):
        """Write far-memory answers to the near memory; return the numbers of pending rows, and of rows that may still
        be requested."""
        lanes, far = self._config.lanes, self.far
        m.submodules.queue = queue = ResetInserter(runner.reset)(
            Queue(shape=data.ArrayLayout(32, lanes), depth=OUTSTANDING, block=False))
        rows, stale = Signal(range(OUTSTANDING + 1)), Signal(range(OUTSTANDING + 1))  # stale: rows of ended commands
        places = Signal(range(OUTSTANDING + 1))  # rows that may be requested
        left = Signal.like(job.length)
        following = Signal.like(rows)
        beat = writer.i
        m.d.comb += [
            following.eq(Mux(self.link_reset, 0, rows + (taken & ~far.write) - (far.response & (rows != 0)))),
            queue.i.valid.eq(far.response & (rows != 0) & (stale == 0)),
            *(queue.i.payload[n].eq(far.answer[n]) for n in range(lanes)),
            beat.valid.eq(job.back & queue.o.valid), queue.o.ready.eq(beat.ready & job.back),
            beat.payload.elements.eq(queue.o.payload), beat.payload.last.eq(left <= lanes),
            *(beat.payload.keep[n].eq(left > n) for n in range(lanes)),
        ]
        m.d.sync += rows.eq(following)
        with m.If(runner.reset):
            m.d.sync += [stale.eq(following), left.eq(job.length)]
        with m.Else():
            m.d.sync += stale.eq(Mux(self.link_reset, 0, stale - (far.response & (stale != 0))))
            with m.If(beat.valid & beat.ready):
                m.d.sync += left.eq(left - lanes)
        return SimpleNamespace(rows=rows, stale=stale, places=places, leaves=beat.valid & beat.ready)

    def _requests(self, m, job, runner, beat, owed):
        """Offer rows of the near memory, or request rows; return whether a MOVE_OUT's last row is taken."""
        lanes, far = self._config.lanes, self.far
        row, left = Signal.like(far.row), Signal.like(job.length)
        free, asks, goes, ending, ended = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(~far.valid | far.ready), beat.ready.eq(free & ~job.back),
            asks.eq(free & job.back & (left != 0) & (owed.places != 0) & (owed.stale == 0)),
            goes.eq(asks | (beat.valid & beat.ready)),
        ]
        with m.If(runner.reset):
            m.d.sync += [row.eq(job.far), left.eq(job.length), owed.places.eq(OUTSTANDING), far.valid.eq(0),
                         ending.eq(0), ended.eq(0)]
        with m.Else():
            m.d.sync += [ended.eq(ending & far.ready), owed.places.eq(owed.places - asks + owed.leaves)]
            with m.If(free):
                m.d.sync += [
                    far.valid.eq(goes), far.write.eq(~job.back), far.row.eq(row), far.keep.eq(beat.payload.keep),
                    *(far.elements[n].eq(beat.payload.elements[n]) for n in range(lanes)),
                    ending.eq(beat.valid & beat.ready & beat.payload.last)]
            with m.If(goes):
                m.d.sync += [row.eq(row + 1), left.eq(Mux(left > lanes, left - lanes, 0))]
        return ended
