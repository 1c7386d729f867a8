"""Command queue of the int16 node: keeps commands and events in memory and processes them word by word."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.engine import BASES, Reach
from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, QUEUE_DEPTH, EventStatus, descriptor_layout
from hdl.control.register_file import queue_status_layout
from hdl.control.registers import RULE, checked_layout

__all__ = ["CommandQueue", "engine_signature", "fields_layout"]

#: How far an operation of an int16 node may reach from each of its base addresses: the permitted combinations.
_FORMS = ([Reach.LENGTH, Reach.LENGTH, None], [Reach.LENGTH, Reach.START, Reach.START])

# Indices of the descriptor words that are read; the rest are unused.
_OPERATION, _GRADIENT, _WEIGHT, _STATE, _LENGTH, _ROOT, _FLAGS, _TAG = range(8)


def fields_layout():
    """Layout of strobes, one for each command field that engines use; each is high while its field is being
    checked."""
    return data.StructLayout(dict.fromkeys(("gradient_base", "weight_base", "length"), 1))


def engine_signature(config):
    """Signature of the interface between the queue and each engine, seen from the queue."""
    return wiring.Signature({
        "word": Out(32),
        "fields": Out(fields_layout()),
        "operation": Out(4),
        "start": Out(1),
        "done": In(1),
        "status": In(EventStatus),
        "detail": In(range(max(config.memory_map.words) + 1)),
    })


class CommandQueue(wiring.Component):
    """Queue, check, hold and start commands one at a time, and queue their events.

    It behaves like :class:`hdl.control.command_queue.CommandQueue` in a full node: the checks and their order, the
    flags and the time-outs are the same. A command stays in memory until its event has been written, and is checked
    word by word as it is read.

    Parameters
    ----------
    config : NodeConfig
        An :class:`~hdl.features.int16.feature.Int16Config`.
    operations : tuple of OperationDescription
        Operations of the node. Each base refers to the same memory in all operations. An operation with a list at
        ``weight_base`` has another list at ``state_base``, and no other operation uses that base.

    Members
    -------
    commands : In(stream of descriptor_layout())
        Command words from the host. An incomplete command is discarded.
    full : Out(1)
        High while ``commands`` is not ready.
    word : Out(32)
        Word of the command being checked.
    fields : Out(fields_layout())
        Which field ``word`` holds, if an engine uses it; repeated when a command is checked again after a wait.
    operation : Out(4)
    start : Out(1)
        High in the last cycle before the command runs.
    done : In(1)
        High in the last cycle of the command.
    status : In(EventStatus)
    detail : In(range(max(config.memory_map.words) + 1))
        Detail of the event, sampled with ``done``: an element count or a job number.
    events : Out(stream of 32 bits)
        Event words to the host.
    rule : In(RULE)
        Optimizer rule.
    link_reset : In(1)
    timeout : In(32)
        Number of cycles for which a command waits for its flags.
    weight_version : In(32)
    set_flags : In(16)
        Flags set by the host in this cycle.
    flags : Out(16)
    last_error : Out(32)
        First word of the latest event with a status other than OK.
    queue_status : Out(queue_status_layout())
    """

    #: Maximum number of waiting commands, and of events; must be a power of two.
    depth = QUEUE_DEPTH

    def __init__(self, *, config, operations):
        self._config = config
        self._operations = tuple(operations)
        for operation in self._operations:
            reaches = [extent and extent.reach for extent in map(operation.extent, BASES)]
            if operation.extents and reaches not in _FORMS:
                raise ValueError(f"Extents of an operation of an int16 node must be gradients and weights, or "
                                 f"gradients and two lists, not {operation.extents!r}")
        super().__init__({
            "commands": In(stream.Signature(descriptor_layout())),
            "full": Out(1),
            **engine_signature(config).members,
            "events": Out(stream.Signature(32)),
            "rule": In(RULE),
            "link_reset": In(1),
            "timeout": In(32),
            "weight_version": In(32),
            "set_flags": In(16),
            "flags": Out(16),
            "last_error": Out(32),
            "queue_status": Out(queue_status_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        config, depth = self._config, self.depth
        # One extra slot holds the running command.
        m.submodules.waiting = waiting = Memory(
            shape=32, depth=2 * depth * DESCRIPTOR_WORDS, init=[], attrs={"no_rw_check": 1})
        m.submodules.ended = ended = Memory(
            shape=32, depth=depth * EVENT_WORDS, init=[], attrs={"no_rw_check": 1})
        put, get = waiting.write_port(), waiting.read_port(transparent_for=())
        store, fetch = ended.write_port(), ended.read_port(transparent_for=())

        index = Signal(range(DESCRIPTOR_WORDS))  # index of the word from the host
        tail, front = Signal(range(2 * depth)), Signal(range(2 * depth))
        level = Signal(range(depth + 1))  # number of waiting commands
        added, removed = Signal(), Signal()
        newest = Signal(range(depth))  # event being written
        number = Signal(range(EVENT_WORDS))  # word of that event
        oldest = Signal(range(depth * EVENT_WORDS))  # next word to be popped
        events = Signal(range(depth + 1))
        queued, popped = Signal(), Signal()
        settled = Signal()  # the event word has been fetched

        field = Signal(range(DESCRIPTOR_WORDS))  # command word read for the next cycle
        memory = Signal(range(3))  # memory of the base being compared: gradient, weight, list of external masks
        room_bits = max(config.memory_map.words).bit_length()
        room = Signal(room_bits)
        status = Signal(5)
        detail = Signal(32)
        cycles = Signal(32)  # cycles spent waiting, and then running
        ran, waited = Signal(), Signal()
        taken, raised, missing = Signal(16), Signal(16), Signal(16)

        settings = Signal(checked_layout())
        m.d.comb += settings.rule.eq(self.rule)
        lists = [operation.code for operation in self._operations
                 if operation.extents and operation.extent("weight_base").reach is Reach.START]
        host_word = self.commands.payload
        at = Mux(host_word.first, 0, index)
        word = self.word
        m.d.comb += [
            self.full.eq(level == depth),
            self.commands.ready.eq(~self.full),
            put.addr.eq(Cat(at, tail)),
            put.data.eq(host_word.data),
            put.en.eq(self.commands.valid & ~self.full),
            added.eq(put.en & host_word.last),
            get.addr.eq(Cat(field, front)),
            word.eq(get.data),
            store.addr.eq(Cat(number, newest)),
            fetch.addr.eq(oldest),
            self.events.payload.eq(fetch.data),
            self.events.valid.eq(settled & (events != 0)),
            popped.eq(self.events.valid & self.events.ready),
            missing.eq(word[:16] & ~self.flags),
            self.queue_status.commands.eq(level),
            self.queue_status.events.eq(events),
        ]
        with m.If(put.en):
            m.d.sync += index.eq(at + 1)
        m.d.sync += [
            tail.eq(tail + added),
            level.eq(level + added - removed),
            newest.eq(newest + queued),
            oldest.eq(oldest + popped),
            settled.eq((events != 0) & ~popped),
            events.eq(events + queued - (popped & oldest[:2].all())),
            self.flags.eq(self.flags & ~taken | raised | self.set_flags),
        ]

        def reject(reason):
            m.d.sync += status.eq(reason)
            m.d.comb += field.eq(_TAG)
            m.next = "Report"

        def compare_flags():
            m.d.comb += field.eq(_FLAGS)
            m.next = "Flags"

        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [cycles.eq(0), ran.eq(0), waited.eq(0)]
                m.d.comb += field.eq(_OPERATION)
                with m.If(level != 0):
                    m.next = "Operation"

            with m.State("Operation"):
                m.d.sync += [self.operation.eq(word), detail.eq(word[:8]), memory.eq(0), status.eq(EventStatus.OK)]
                m.d.comb += field.eq(_GRADIENT)
                m.next = "Base"
                with m.Switch(word[:8]):
                    for operation in self._operations:
                        with m.Case(operation.code):
                            if not operation.extents:
                                compare_flags()
                            if operation.on_ring:
                                with m.If(word[8:] != 1 << 8):  # only port 0, rank 0 and size 1 exist
                                    m.d.sync += detail.eq(word[8:])
                                    m.d.comb += field.eq(_ROOT)
                                    m.next = "Ring"
                            if operation.refused is not None:  # overrides the checks above
                                condition, reason, value = operation.refused(settings)
                                with m.If(condition):
                                    m.d.sync += detail.eq(value)
                                    reject(reason)
                    with m.Default():
                        reject(EventStatus.UNKNOWN_OPERATION)

            with m.State("Ring"):
                m.d.sync += detail[24:].eq(word[8:16])
                reject(EventStatus.BAD_RANK)

            with m.State("Base"):
                capacity = Mux(memory == 0, config.memories.gradient, config.memories.weight)
                m.d.comb += [self.fields.gradient_base.eq(memory == 0), self.fields.weight_base.eq(memory == 1)]
                m.d.sync += [room.eq(capacity - word[:room_bits]), detail.eq(word), memory.eq(memory + 1)]
                m.d.comb += field.eq(_LENGTH)
                m.next = "Length"
                with m.If((word[:5] != 0) | (word > capacity)):
                    reject(EventStatus.BAD_BASE)
                if lists:
                    with m.Elif(Cat(self.operation == code for code in lists).any() & (memory == 1)):
                        m.d.comb += field.eq(_STATE)
                        m.next = "Base"
                    with m.Elif(memory == 2):
                        compare_flags()

            with m.State("Length"):
                m.d.comb += [self.fields.length.eq(1), field.eq(_WEIGHT)]
                m.next = "Base"
                with m.If(word > room):
                    m.d.sync += detail.eq(room)
                    reject(EventStatus.BAD_LENGTH)
                with m.Elif(memory == 2):
                    compare_flags()

            with m.State("Flags"):
                m.d.sync += detail.eq(missing)
                compare_flags()
                with m.If(self.link_reset):
                    m.d.sync += detail.eq(0)
                    reject(EventStatus.LINK_RESET)
                with m.Elif(missing != 0):
                    m.d.comb += self.queue_status.waiting.eq(1)
                    m.d.sync += [waited.eq(1), cycles.eq(cycles + 1)]
                    with m.If(cycles >= self.timeout):
                        m.d.sync += cycles.eq(cycles)
                        reject(EventStatus.WAIT_TIMEOUT)
                with m.Elif(waited):
                    # Settings may have changed during the wait, so check the command again.
                    m.d.sync += waited.eq(0)
                    m.d.comb += field.eq(_OPERATION)
                    m.next = "Operation"
                with m.Else():
                    m.d.comb += [self.start.eq(1), removed.eq(1), taken.eq(word[:16])]
                    m.d.sync += [ran.eq(1), cycles.eq(0)]
                    m.next = "Run"

            with m.State("Run"):
                m.d.comb += self.queue_status.running.eq(1)
                m.d.sync += [cycles.eq(cycles + 1), detail.eq(self.detail)]
                with m.If(self.done):
                    reject(self.status)

            # Write the words of the event.
            with m.State("Report"):
                m.d.comb += [
                    self.queue_status.running.eq(ran), field.eq(_TAG), number.eq(0),
                    store.data.eq(Cat(word[:16], status)),
                ]
                with m.If(events != depth):
                    m.d.comb += store.en.eq(1)
                    m.next = "Detail"
                    with m.If(status != EventStatus.OK):
                        m.d.sync += self.last_error.eq(Cat(word[:16], status))

            with m.State("Detail"):
                m.d.comb += [self.queue_status.running.eq(ran), store.en.eq(1), number.eq(1),
                             store.data.eq(detail)]
                m.next = "Cycles"

            with m.State("Cycles"):
                m.d.comb += [self.queue_status.running.eq(ran), store.en.eq(1), number.eq(2),
                             store.data.eq(cycles), field.eq(_FLAGS)]
                m.next = "Version"

            with m.State("Version"):
                m.d.comb += [self.queue_status.running.eq(ran), store.en.eq(1), number.eq(3),
                             store.data.eq(self.weight_version), queued.eq(1), removed.eq(~ran)]
                m.d.sync += front.eq(front + 1)
                m.next = "Idle"
                with m.If(status == EventStatus.OK):
                    m.d.comb += raised.eq(word[16:])

        return m
