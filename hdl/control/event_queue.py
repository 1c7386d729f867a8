"""Queue of a node's events, ordered by the end of its commands."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import check_queues
from hdl.control.protocol import EVENT_WORDS, EventStatus, event_layout
from hdl.streams.stream import Queue, connect_stream

__all__ = ["EventQueue"]


class EventQueue(wiring.Component):
    """Collect the events of all command queues in one queue, word by word.

    An event takes four cycles, from the first cycle in which it is offered, if the queue is not full and no other
    event is being stored; it is accepted with its last word. Events of lower-numbered queues have priority, and
    events of commands that were not run come last. Each input's ``ready`` depends combinationally on all ``valid``.

    Parameters
    ----------
    queues : int
        Number of command queues, 1 to 3.
    depth : int
        Capacity in events, 1 to 255.

    Members
    -------
    completions : In(array of streams of event_layout())
        Events from engines; ``queue`` is replaced by the queue's number.
    rejected : In(stream of event_layout())
        Events of commands that were not run.
    events : Out(stream of 32 bits)
        Words of the events, for the host.
    level : Out(range(depth + 1))
        Number of complete events, including the one that the host is reading.
    last_error : Out(32)
        First word of the latest event with a status other than OK.
    """

    def __init__(self, *, queues, depth):
        check_queues(queues)
        if not isinstance(depth, int) or not 1 <= depth <= 255:
            raise ValueError(f"Queue depth must be between 1 and 255, not {depth!r}")
        self._queues = queues
        self._depth = depth
        super().__init__({
            "completions": In(stream.Signature(event_layout())).array(queues),
            "rejected": In(stream.Signature(event_layout())),
            "events": Out(stream.Signature(32)),
            "level": Out(range(depth + 1)),
            "last_error": Out(32),
        })

    @property
    def depth(self):
        return self._depth

    def elaborate(self, platform):
        m = Module()
        m.submodules.ended = ended = Queue(shape=32, depth=self._depth * EVENT_WORDS, block=True)
        sources = [*self.completions, self.rejected]
        index, popped_index = Signal(range(EVENT_WORDS)), Signal(range(EVENT_WORDS))
        held = Signal()  # an event has been selected and is being written
        kept = Signal(range(len(sources)))
        source = Signal(range(len(sources)))
        word = Signal(32)
        first, bad = Signal(32), Signal()  # the event's first word, and whether it reports an error
        queued, popped = Signal(), Signal()  # an event's last word enters or leaves the queue

        connect_stream(m, ended.o, self.events)
        m.d.comb += source.eq(kept)
        with m.If(~held):
            for n in reversed(range(len(sources))):
                with m.If(sources[n].valid):
                    m.d.comb += source.eq(n)
        with m.Switch(source):
            for n, event in enumerate(sources):
                with m.Case(n):
                    m.d.comb += [
                        word.eq(event.payload.as_value().word_select(index, 32)), ended.i.valid.eq(event.valid),
                        bad.eq(event.payload.status != EventStatus.OK),
                    ]
                    if n < self._queues:
                        with m.If(index == 0):
                            m.d.comb += word[-len(event.payload.queue):].eq(n)
        # An event is offered until its last word is stored, so that `ready` depends only on registers.
        m.d.comb += [
            ended.i.payload.eq(word),
            queued.eq(held & ended.i.ready & (index == EVENT_WORDS - 1)),
            *(event.ready.eq(queued & (kept == n)) for n, event in enumerate(sources)),
            popped.eq(ended.o.valid & ended.o.ready & (popped_index == EVENT_WORDS - 1)),
        ]
        m.d.sync += [
            held.eq(ended.i.valid & ~queued),
            kept.eq(source),
            index.eq(index + (ended.i.valid & ended.i.ready)),
            popped_index.eq(popped_index + (ended.o.valid & ended.o.ready)),
            self.level.eq(self.level + queued - popped),
        ]
        with m.If(index == 0):
            m.d.sync += first.eq(word)
        with m.If(queued & bad):
            m.d.sync += self.last_error.eq(first)
        return m
