"""Queue of commands, which are checked and held until their flags are set, and of their events."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.command_checker import RULE, CommandChecker, checked_layout
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EVENT_WORDS,
    QUEUE_DEPTH,
    EventStatus,
    command_layout,
    descriptor_layout,
    event_layout,
)
from hdl.control.register_file import queue_status_layout
from hdl.streams.stream import Queue, connect_stream

__all__ = ["CommandQueue"]


class CommandQueue(wiring.Component):
    """Queue commands, start each of them when it may run, and queue their events.

    Commands run strictly one after the other, and their events come in the same order, one per command. A command at
    the head of the queue is first checked (:class:`~hdl.control.command_checker.CommandChecker`); what does not pass
    is not run, and its event says why. It then waits until all flags in ``wait`` are set, is checked once more if it
    had to wait (a setting may have changed), takes those flags, and is offered to the engine. When the engine reports
    ``EventStatus.OK``, the flags in ``signal`` are set. A command whose flags do not come within ``timeout`` cycles
    ends with ``WAIT_TIMEOUT``; the detail is the flags that are missing, and none is taken.

    While ``link_reset`` is held, commands end with ``LINK_RESET`` in place of being started, those that wait for
    flags too: this empties the queue.

    Commands are kept in memory, and come from there word by word to the head of the queue, which is free for the next
    one as soon as the engine has taken a command. ``start`` is valid :attr:`latency` cycles after an empty queue has
    taken the last word of a QUIESCE, and later by the checker's latency less one at most for any other command.

    A flag that is set while it is being taken stays set. While the event queue is full, the next event waits in the
    engine, or here, and nothing is started: no event is lost.

    Parameters
    ----------
    config : NodeConfig
    operations : tuple of OperationDescription
        Operations of the node.
    depth : int
        Commands and events that can be queued; between 1 and 255.

    Members
    -------
    commands : In(stream of descriptor_layout())
        Words of each command from the host. A command without its last word is dropped without a trace.
    full : Out(1)
        ``commands`` is not ready.
    start : Out(stream of command_layout())
        Command to the engine. The payload holds from ``valid`` on, and is not kept after it is taken.
    completions : In(stream of event_layout())
        Events from the engine: exactly one for each command taken.
    events : Out(stream of 32 bits)
        To the host, the words of each event.
    rule : In(RULE)
        The optimizer's.
    packed_state : In(1)
        A word of state holds two elements.
    checked : Out(checked_layout())
        Settings for the command on ``start``, which must run with these: the registers may have changed since.
    link_reset : In(1)
    timeout : In(32)
        Cycles that a command waits for its flags.
    weight_version : In(32)
        Version in events of commands that were not run.
    set_flags : In(16)
        Flags that the host sets in this cycle.
    flags : Out(16)
    last_error : Out(32)
        First word of the latest event that was not OK.
    queue_status : Out(queue_status_layout())
    """

    latency = 3 + DESCRIPTOR_WORDS + 1

    def __init__(self, *, config, operations, depth=QUEUE_DEPTH):
        if not isinstance(depth, int) or not 1 <= depth <= 255:
            raise ValueError(f"Queue depth must be between 1 and 255, not {depth!r}")
        self._config = config
        self._operations = operations
        self._depth = depth
        super().__init__({
            "commands": In(stream.Signature(descriptor_layout())),
            "full": Out(1),
            "start": Out(stream.Signature(command_layout())),
            "completions": In(stream.Signature(event_layout())),
            "events": Out(stream.Signature(32)),
            "rule": In(RULE),
            "packed_state": In(1),
            "checked": Out(checked_layout()),
            "link_reset": In(1),
            "timeout": In(32),
            "weight_version": In(32),
            "set_flags": In(16),
            "flags": Out(16),
            "last_error": Out(32),
            "queue_status": Out(queue_status_layout()),
        })

    @property
    def depth(self):
        return self._depth

    def elaborate(self, platform):
        m = Module()
        m.submodules.waiting = waiting = Memory(
            shape=32, depth=self._depth * DESCRIPTOR_WORDS, init=[], attrs={"no_rw_check": 1})
        m.submodules.checker = checker = CommandChecker(config=self._config, operations=self._operations)
        m.submodules.ended = ended = Queue(shape=32, depth=self._depth * EVENT_WORDS, block=True)
        waiting_write, waiting_read = waiting.write_port(), waiting.read_port()
        head = Signal(command_layout())
        loaded = Signal()  # head is the command whose turn it is
        place = Signal(range(DESCRIPTOR_WORDS))  # of the word that comes from the host
        slots = range(max(self._depth, 2))
        tail, front = Signal(slots), Signal(slots)  # commands, written and read
        loading = Signal(range(DESCRIPTOR_WORDS + 1))  # words that have been read
        level = Signal(range(self._depth + 1))
        added, removed = Signal(), Signal()
        event = Signal(event_layout())  # that which is queued, word by word
        event_place, popped_place = Signal(range(EVENT_WORDS)), Signal(range(EVENT_WORDS))
        events = Signal(range(self._depth + 1))
        queued, popped = Signal(), Signal()  # with its last word
        rejected = Signal(event_layout())
        signal = Signal(16)
        waited = Signal(32)
        taken = Signal(16)
        given = Signal(16)
        missing = Signal(16)

        connect_stream(m, ended.o, self.events)
        word = self.commands.payload
        at = Mux(word.first, 0, place)
        m.d.comb += [
            self.full.eq(level == self._depth),
            self.commands.ready.eq(~self.full),
            waiting_write.addr.eq(Cat(at, tail)),
            waiting_write.data.eq(word.data),
            waiting_write.en.eq(self.commands.valid & self.commands.ready),
            added.eq(waiting_write.en & word.last),
            waiting_read.addr.eq(Cat(loading[:-1], front)),
        ]
        m.d.sync += level.eq(level + added - removed)
        with m.If(waiting_write.en):
            m.d.sync += place.eq(at + 1)
        with m.If(added):
            m.d.sync += tail.eq(_following(tail, self._depth))
        with m.If(~loaded & (level != 0)):
            # A word comes one cycle after it was asked for. Words that nothing reads take no register.
            m.d.sync += loading.eq(loading + 1)
            with m.Switch(loading):
                for n in range(DESCRIPTOR_WORDS):
                    with m.Case(n + 1):
                        m.d.sync += head.as_value()[32 * n:32 * n + 32].eq(waiting_read.data)
            with m.If(loading == DESCRIPTOR_WORDS):
                m.d.sync += [loaded.eq(1), loading.eq(0)]
        with m.If(removed):
            m.d.sync += [loaded.eq(0), front.eq(_following(front, self._depth))]

        m.d.comb += [
            checker.i.payload.eq(head),
            checker.rule.eq(self.rule),
            checker.packed_state.eq(self.packed_state),
            self.start.payload.eq(head),
            self.checked.eq(checker.checked),
            missing.eq(head.wait & ~self.flags),
            self.queue_status.commands.eq(level),
            self.queue_status.events.eq(events),
            event.eq(rejected),
            ended.i.payload.eq(event.as_value().word_select(event_place, 32)),
            queued.eq(ended.i.valid & ended.i.ready & (event_place == EVENT_WORDS - 1)),
            popped.eq(ended.o.valid & ended.o.ready & (popped_place == EVENT_WORDS - 1)),
            rejected.tag.eq(head.tag),
            rejected.weight_version.eq(self.weight_version),
            rejected.cycles.eq(waited),
        ]
        m.d.sync += [
            event_place.eq(event_place + (ended.i.valid & ended.i.ready)),
            popped_place.eq(popped_place + (ended.o.valid & ended.o.ready)),
            events.eq(events + queued - popped),
        ]
        m.d.sync += self.flags.eq(self.flags & ~taken | given | self.set_flags)

        def reject(status, detail):
            m.d.sync += [rejected.status.eq(status), rejected.detail.eq(detail)]
            m.next = "Reject"

        with m.FSM():
            with m.State("Check"):
                m.d.comb += [checker.i.valid.eq(loaded), checker.o.ready.eq(1)]
                with m.If(checker.o.valid):
                    m.next = "Start"
                    with m.If(checker.o.payload.status != EventStatus.OK):
                        reject(checker.o.payload.status, checker.o.payload.detail)
                    with m.Elif(self.link_reset):
                        reject(EventStatus.LINK_RESET, 0)
                    with m.Elif(missing != 0):
                        m.next = "Wait"

            with m.State("Wait"):
                m.d.comb += self.queue_status.waiting.eq(1)
                with m.If(self.link_reset | (missing == 0)):
                    m.next = "Check"
                with m.Elif(waited >= self.timeout):
                    reject(EventStatus.WAIT_TIMEOUT, missing)
                with m.Else():
                    m.d.sync += waited.eq(waited + 1)

            with m.State("Start"):
                m.d.comb += self.start.valid.eq(1)
                with m.If(self.start.ready):
                    m.d.comb += [removed.eq(1), taken.eq(head.wait)]
                    m.d.sync += [signal.eq(head.signal), waited.eq(0)]
                    m.next = "Run"

            with m.State("Run"):
                m.d.comb += [
                    self.queue_status.running.eq(1),
                    event.eq(self.completions.payload),
                    ended.i.valid.eq(self.completions.valid),
                    self.completions.ready.eq(queued),
                ]
                with m.If(queued):
                    with m.If(self.completions.payload.status == EventStatus.OK):
                        m.d.comb += given.eq(signal)
                    m.next = "Check"

            with m.State("Reject"):
                m.d.comb += ended.i.valid.eq(1)
                with m.If(queued):
                    m.d.comb += removed.eq(1)
                    m.d.sync += waited.eq(0)
                    m.next = "Check"

        with m.If(queued & (event.status != EventStatus.OK)):
            m.d.sync += self.last_error.eq(event.as_value()[:32])

        return m


def _following(index, depth):
    return Mux(index == depth - 1, 0, index + 1)
