"""The way of a command: queued, checked, held until its flags are set, run; and the events that come of it."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EVENT_WORDS,
    EventStatus,
    Operation,
    command_layout,
    descriptor_layout,
    event_layout,
)
from hdl.control.registers import queue_status_layout
from hdl.optimizer.rules import MOST_PLANES, Rule, planes_used
from hdl.streams.stream import Queue, connect_stream

__all__ = ["CommandChecker", "CommandQueue", "checked_layout", "verdict_layout"]


def verdict_layout():
    """What is wrong with a command: an :class:`~hdl.control.protocol.EventStatus`, and the value it is about."""
    return data.StructLayout({"status": 8, "detail": 32})


def checked_layout():
    """Settings that a command is checked with, and must run with: those that decide what memory it uses."""
    return data.StructLayout({"rule": Rule, "packed_state": 1})


class CommandChecker(wiring.Component):
    """Compare a command with the node it is meant for.

    The first of these that does not hold is the verdict; fields that an operation does not use are not looked at.

    - The node has the operation (``UNKNOWN_OPERATION``; the detail is the operation). QUIESCE is not checked further.
    - For FUSED_UPDATE, the node has the planes that the rule needs (``BAD_RULE``; the detail is the rule).
    - Unless the operation is MASK, SPARSIFY or INFER, which do not use the ring, ``port`` is 0, 1 ≤ ``size`` ≤
      ``nodes_max``, ``rank`` < ``size``, and for BROADCAST ``root`` < ``size`` (``BAD_RANK``; the detail is rank,
      size, port and root, from the lowest byte on).
    - For each memory that the operation uses (FUSED_UPDATE: gradient, weight and, if the rule has state or the node
      has masters, state; ALL_REDUCE, REDUCE_SCATTER, MASK: gradient; ALL_GATHER, BROADCAST, INFER: weight;
      SPARSIFY: gradient and weight), its base is a multiple of 32 not beyond the end of the memory (``BAD_BASE``; the
      detail is the base), and ``length`` fits behind it (``BAD_LENGTH``; the detail is the length that would have
      fitted). For MASK, weight and state base are then compared in the same way with the end of the weight memory;
      the length of INFER is not one of the weight memory.

    State is kept for one block only, of at most ceil(ceil(length / 32) / size) groups of 32 elements. The room R
    behind the base, twice as many elements as words if state is packed and the node has no masters, which lie at the
    same places and never are, is a whole number of groups too, so that it is enough exactly if ``length`` ≤ R ·
    ``size``: every node of a ring comes to the same verdict, and nothing has to be divided.

    A verdict takes :attr:`latency` cycles at most, from the first in which the command is there to that in which both
    are taken, together: ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    config : NodeConfig
        Sizes of the memories, and of the largest ring.

    Members
    -------
    i : In(stream of command_layout())
    o : Out(stream of verdict_layout())
    rule : In(Rule)
        The optimizer's.
    packed_state : In(1)
        A word of state holds two elements.
    checked : Out(checked_layout())
        Rule and form of state that the verdict is about, from the command's first cycle to that of the next one.
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            "i": In(stream.Signature(command_layout())),
            "o": Out(stream.Signature(verdict_layout())),
            "rule": In(Rule),
            "packed_state": In(1),
            "checked": Out(checked_layout()),
        })

    @property
    def latency(self):
        return 16 + self._config.nodes_max.bit_length()

    def elaborate(self, platform):
        m = Module()
        config = self._config
        command = self.i.payload
        verdict = self.o.payload

        # One memory after the other goes through the same registers: 0 gradient, 1 weight, 2 state.
        bases = Array([command.gradient_base, command.weight_base, command.state_base])
        capacities = Array([config.gradient_words, config.weight_words, config.state_words])
        room_bits = max(config.gradient_words, config.weight_words, config.state_words).bit_length()
        memory = Signal(range(3))
        used = Signal(3)
        listed = Signal()  # second and third base are both of the weight memory, and have no length
        base = Signal(32)
        capacity = Signal(room_bits)
        factor = Signal(range(config.nodes_max + 1))
        addend = Signal(room_bits + len(factor) + 1)
        fitting = Signal(room_bits + len(factor) + 1)

        def conclude(status, detail=0):
            m.d.sync += [self.o.valid.eq(1), verdict.status.eq(status), verdict.detail.eq(detail)]
            m.next = "Verdict"

        def proceed():
            """Go on with the next memory."""
            with m.If(memory == 2):
                conclude(EventStatus.OK)
            with m.Else():
                m.d.sync += memory.eq(memory + 1)
                m.next = "Fetch"

        planes = planes_used(self.rule, MOST_PLANES)

        with m.FSM():
            with m.State("Operation"):
                m.d.sync += [memory.eq(0), listed.eq(command.operation == Operation.MASK)]
                with m.If(self.i.valid):
                    m.d.sync += [self.checked.rule.eq(self.rule), self.checked.packed_state.eq(self.packed_state)]
                    m.next = "Ring"
                    with m.Switch(command.operation):
                        with m.Case(Operation.QUIESCE):
                            conclude(EventStatus.OK)
                        with m.Case(Operation.FUSED_UPDATE):
                            m.d.sync += used.eq(
                                Const(0b111, 3) if config.has_master else Cat(Const(0b11, 2), planes.any()))
                            with m.If(planes[config.state_planes:].any()):
                                conclude(EventStatus.BAD_RULE, self.rule)
                        with m.Case(Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
                            m.d.sync += used.eq(0b001)
                        with m.Case(Operation.ALL_GATHER, Operation.BROADCAST):
                            m.d.sync += used.eq(0b010)
                        if config.masking:
                            with m.Case(Operation.MASK):
                                m.d.sync += used.eq(0b111)
                                m.next = "Fetch"
                        if config.error_feedback:
                            with m.Case(Operation.SPARSIFY):
                                m.d.sync += used.eq(0b011)
                                m.next = "Fetch"
                        if config.quantization:
                            with m.Case(Operation.INFER):
                                m.d.sync += [used.eq(0b010), listed.eq(1)]
                                m.next = "Fetch"
                        with m.Default():
                            conclude(EventStatus.UNKNOWN_OPERATION, command.operation)

            with m.State("Ring"):
                outside = (
                    (command.port != 0) | (command.size > config.nodes_max) | (command.rank >= command.size)
                    | ((command.operation == Operation.BROADCAST) & (command.root >= command.size))
                )
                m.next = "Fetch"
                with m.If(outside):
                    conclude(EventStatus.BAD_RANK, Cat(command.rank, command.size, command.port, command.root))

            with m.State("Fetch"):
                m.d.sync += [
                    base.eq(bases[memory]),
                    capacity.eq(Mux(listed & (memory == 2), config.weight_words, capacities[memory])),
                    factor.eq(Mux(memory == 2, command.size, 1)),
                    fitting.eq(0),
                ]
                with m.If((used >> memory)[0]):
                    m.next = "Base"
                with m.Else():
                    proceed()

            with m.State("Base"):
                room = (capacity - base[:room_bits])[:room_bits]
                if config.has_master:
                    m.d.sync += addend.eq(room)
                else:
                    m.d.sync += addend.eq(Mux((memory == 2) & self.checked.packed_state, room.shift_left(1), room))
                m.next = "Multiply"
                with m.If((base[:5] != 0) | (base > capacity)):
                    conclude(EventStatus.BAD_BASE, base)
                with m.Elif(listed & (memory != 0)):
                    proceed()

            with m.State("Multiply"):
                m.d.sync += [addend.eq(addend << 1), factor.eq(factor >> 1)]
                with m.If(factor[0]):
                    m.d.sync += fitting.eq(fitting + addend)
                with m.If(factor == 0):
                    m.next = "Length"

            with m.State("Length"):
                with m.If(command.length > fitting):
                    conclude(EventStatus.BAD_LENGTH, fitting)
                with m.Else():
                    proceed()

            with m.State("Verdict"):
                m.d.comb += self.i.ready.eq(self.o.ready)
                with m.If(self.o.ready):
                    m.d.sync += self.o.valid.eq(0)
                    m.next = "Operation"

        return m


class CommandQueue(wiring.Component):
    """Queue commands, start each of them when it may run, and queue their events.

    Commands run strictly one after the other, and their events come in the same order, one per command. A command at
    the head of the queue is first checked (:class:`CommandChecker`); what does not pass is not run, and its event
    says why. It then waits until all flags in ``wait`` are set, is checked once more if it had to wait (a setting may
    have changed), takes those flags, and is offered to the engine. When the engine reports ``EventStatus.OK``, the
    flags in ``signal`` are set. A command whose flags do not come within ``timeout`` cycles ends with
    ``WAIT_TIMEOUT``; the detail is the flags that are missing, and none is taken.

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
    depth : int
        Commands and events that can be queued; between 1 and 255.

    Members
    -------
    commands : In(stream of descriptor_layout())
        From the host, the words of each command. Without its last word it is none, and leaves nothing behind.
    full : Out(1)
        ``commands`` is not ready.
    start : Out(stream of command_layout())
        To the engine. Payload holds from ``valid`` on, and is not kept after it is taken.
    completions : In(stream of event_layout())
        From the engine: exactly one event for each command taken.
    events : Out(stream of 32 bits)
        To the host, the words of each event.
    rule : In(Rule)
        The optimizer's.
    packed_state : In(1)
        A word of state holds two elements.
    checked : Out(checked_layout())
        Of the command on ``start``, which must run with these: the registers may have changed since.
    link_reset : In(1)
    timeout : In(32)
        Cycles that a command waits for its flags.
    weight_version : In(32)
        For events of commands that were not run.
    set_flags : In(16)
        Flags that the host sets in this cycle.
    flags : Out(16)
    last_error : Out(32)
        First word of the latest event that was not OK.
    queue_status : Out(queue_status_layout())
    """

    latency = 3 + DESCRIPTOR_WORDS + 1

    def __init__(self, *, config, depth=8):
        if not isinstance(depth, int) or not 1 <= depth <= 255:
            raise ValueError(f"Queue depth must be between 1 and 255, not {depth!r}")
        self._config = config
        self._depth = depth
        super().__init__({
            "commands": In(stream.Signature(descriptor_layout())),
            "full": Out(1),
            "start": Out(stream.Signature(command_layout())),
            "completions": In(stream.Signature(event_layout())),
            "events": Out(stream.Signature(32)),
            "rule": In(Rule),
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
        m.submodules.checker = checker = CommandChecker(config=self._config)
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
            # A word comes one cycle after it was asked for; what is there in the first cycle is shifted out again.
            m.d.sync += [head.eq(Cat(head.as_value()[32:], waiting_read.data)), loading.eq(loading + 1)]
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
