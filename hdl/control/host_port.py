"""Host port of a node: request packets in, response packets out."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control import protocol
from hdl.control.program_layouts import program_header_layout, program_status_layout, program_word_layout
from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, PING_WORDS, RESPONSE, RUN_WORDS, Opcode, Status
from hdl.control.register_file import RegisterBus
from hdl.control.registers import registers_of
from hdl.control.requester import Requester, capacities
from hdl.control.sequencer import run_layout
from hdl.control.tenancy import asked_layout, found_layout
from hdl.memory_map import MAX_SPACES
from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["HostPort"]


class HostPort(wiring.Component):
    """Serve the host's requests one at a time; docs/protocol.md describes the packets.

    Every request gets exactly one response, and a packet error does not affect the next packet: words after an error
    are dropped up to the word with ``last``. A request is checked before it has any effect, except for the packet
    length of a write, which is written as its words arrive; the response gives their number.

    A memory burst is requested :attr:`latency` cycles after the first word of its packet. Memories are read and
    written at one word per cycle. ``i.ready``, ``o.valid`` and ``o.payload`` are registers, and no combinational path
    leads from one port to another. An int16 node has no such registers: requests and responses pass through
    combinationally.

    Parameters
    ----------
    config : NodeConfig
        Sizes of the memories.

    Members
    -------
    i : In(stream of word_layout())
        Request packets.
    o : Out(stream of word_layout())
        Response packets.
    bus : Out(RegisterBus())
    memory_read : Out(signature of request: Out(stream of access_layout()), data: In(stream of word_layout()))
        The node answers each request with its ``count`` words; ``last`` is ignored. The range has been checked.
    memory_write : Out(signature of request: Out(stream of access_layout()), data: Out(stream of word_layout()))
        Each request is followed by its words, with ``last`` on the last one. There are ``count`` words, or fewer if
        the packet was short. When the node takes the word with ``last``, all words must have been written, or must
        take effect before any later read of the memory.
    commands : Out(stream of descriptor_layout())
        Words of commands. A packet that is too short or too long leaves a command without its last word.
    commands_full : In(1)
        The command queue is full.
    events : In(stream of 32 bits)
        Words of events.
    program : Out(stream of program_word_layout()), with two queues
        Headers and words of programs, which are never stalled. No program runs meanwhile, unless the words are for
        the idle bank. It has been checked that the queue exists in the node and that every command has a slot.
    run : Out(stream of run_layout()), with two queues
        Runs of a loaded model, only while no program is running.
    program_status : In(program_status_layout()), with two queues
    banks : Out(BanksSignature()), with two banks of programs; runs then begin two cycles later
    running, busy, asked, found : In or Out, with tenants
        Ports of :class:`~hdl.control.requester.Requester`, which defines the rights of a tenant.
    """

    latency = 7

    def __init__(self, *, config):
        self._config = config
        self._programs = config.queues > 1
        words = stream.Signature(word_layout())
        accesses = stream.Signature(protocol.access_layout())
        super().__init__({
            "i": In(words),
            "o": Out(words),
            "bus": Out(RegisterBus(len(registers_of(config)))),
            "memory_read": Out(wiring.Signature({"request": Out(accesses), "data": In(words)})),
            "memory_write": Out(wiring.Signature({"request": Out(accesses), "data": Out(words)})),
            "commands": Out(stream.Signature(protocol.descriptor_layout())),
            "commands_full": In(1),
            "events": In(stream.Signature(32)),
            **({"program": Out(stream.Signature(program_word_layout())), "run": Out(stream.Signature(run_layout())),
                "program_status": In(program_status_layout())} if config.queues > 1 else {}),
            **({} if config.programs is None else config.programs.port_members()),
            **({"running": In(2), "busy": In(1), "asked": Out(asked_layout()), "found": In(found_layout())}
               if config.has("tenants") else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.echo = echo = Memory(shape=32, depth=PING_WORDS, init=[], attrs={"no_rw_check": 1})
        echo_write = echo.write_port()
        echo_read = echo.read_port()
        word, reply = self.i, self.o
        if self._config.pipelined_port:
            m.submodules.requests = requests = SkidBuffer(shape=word_layout())
            m.submodules.responses = responses = SkidBuffer(shape=word_layout())
            connect_stream(m, self.i, requests.i)
            connect_stream(m, responses.o, self.o)
            word, reply = requests.o, responses.i

        header = Signal(protocol.header_layout())
        address = Signal(32)
        self.ended = ended = Signal()  # the word with `last` has been taken
        taken = Signal(16)  # number of payload words received so far
        dropped = Signal()  # the command is dropped because the queue is full
        end = Signal(33)
        rooms = capacities(self._config)
        capacity = Signal(range(max(rooms) + 1))
        outside, status = Signal(), Signal(Status)
        self.size = size = Signal(16)  # number of payload words of the response
        sent = Signal(16)  # number of payload words sent
        left = Signal(16)  # payload words left in the request, later in the response
        settled = Signal()  # the memory for PING has had a cycle for reading its current address
        fetched = Signal()  # the register to be sent has been read
        take, send, final, registers = (Signal(name=name) for name in ("take", "send", "final", "registers"))
        access = Signal(protocol.access_layout())
        loads = Signal()  # the request loads a program

        m.d.comb += [
            take.eq(word.valid & word.ready),
            send.eq(reply.valid & reply.ready),
            final.eq(left == 1),
            registers.eq((header.opcode == Opcode.READ_REGISTER) | (header.opcode == Opcode.WRITE_REGISTER)),
            access.eq(Cat(address, header.count)),
            self.memory_read.request.payload.eq(access),
            self.memory_write.request.payload.eq(access),
            self.memory_write.data.payload.data.eq(word.payload.data),
            self.memory_write.data.payload.last.eq(word.payload.last | final),
            self.commands.payload.data.eq(word.payload.data),
            self.commands.payload.first.eq(taken[:exact_log2(DESCRIPTOR_WORDS)] == 0),
            self.commands.payload.last.eq(final),
            # At most one of `taken` and `sent` is nonzero, so `|` adds them.
            self.bus.address.eq(address[:16] + (taken | sent)),
            self.bus.write_data.eq(word.payload.data),
            echo_write.addr.eq(taken),
            echo_write.data.eq(word.payload.data),
            echo_read.addr.eq(sent),
        ]
        m.d.sync += [settled.eq(~send), fetched.eq((fetched | self.bus.done) & ~send)]
        if self._programs:
            banked = self._config.has_banks
            asked, run = Signal(program_header_layout(banks=self._config.programs.banks)), Signal(run_layout())
            second = Signal(32)  # second word of a request to run
            third = Signal(32) if banked else word.payload.data
            m.d.comb += [
                loads.eq(header.opcode == Opcode.LOAD_PROGRAM),
                asked.eq(address),
                run.eq(Cat(address, second, third)),
                self.program.payload.data.eq(word.payload.data),
                self.run.payload.eq(run),
            ]
            busy = self.program_status.running
            wrong = ~self.program_status.loaded | (self.program_status.model != run.model)
            if banked:
                m.d.comb += [self.banks.edit.eq(Cat(address, third)), self.banks.run.eq(run)]
        with m.If(take):
            m.d.sync += ended.eq(word.payload.last)
        requester, begin, over = None, "Opcode", address == 0  # the wait for an event is over
        if self._config.has("tenants"):
            m.submodules.requester = requester = Requester(config=self._config)
            m.d.comb += [
                requester.opcode.eq(header.opcode), requester.place.eq(address), requester.word.eq(word.payload.data),
                requester.address.eq(self.bus.address), requester.request.eq(self.bus.request),
                requester.left.eq(left), requester.running.eq(self.running), requester.busy.eq(self.busy),
                requester.found.eq(self.found), self.asked.eq(requester.asked), access.address.eq(requester.moved)]
            begin, over = "Tenant", over | requester.over

        def respond(words=0):
            m.d.sync += size.eq(words)
            m.next = "Header"

        # A tenant gets the same status for an address beyond its window as for one beyond the memory.
        beyond = Mux(requester.bounded, requester.beyond, Status.BAD_ADDRESS) if requester else Status.BAD_ADDRESS

        def refuse(reason):
            m.d.sync += status.eq(reason)
            m.next = "Drain"

        def expect_end(following):
            """Count a payload word of the request; the last word must be at the position given in the header."""
            m.d.sync += [taken.eq(taken + 1), left.eq(left - 1)]
            with m.If(word.payload.last != final):
                refuse(Status.BAD_LENGTH)
            with m.Elif(final):
                following()

        with m.FSM() as self.states:  # an attribute because formal specifications read it
            # Each of these states takes one header word.
            for name, following in (("Tenant", "Opcode"), ("Opcode", "Dispatch"))[0 if requester else 1:]:
                with m.State(name):
                    m.d.comb += word.ready.eq(1)
                    m.d.sync += [
                        header.eq(word.payload.data), status.eq(Status.OK), size.eq(0), taken.eq(0), sent.eq(0)]
                    with m.If(take):
                        m.next = following
                        if name == "Tenant":
                            m.d.comb += requester.take.eq(1)
                            with m.If(word.payload.last):
                                m.next = "Dispatch"

            with m.State("Dispatch"):
                m.d.sync += left.eq(header.count)
                with m.Switch(header.opcode):
                    with m.Case(Opcode.PING):
                        with m.If((header.count > PING_WORDS) | (ended != (header.count == 0))):
                            refuse(Status.BAD_LENGTH)
                        with m.Elif(ended):
                            respond()
                        with m.Else():
                            m.next = "Ping"
                    with m.Case(Opcode.PUSH_COMMAND):
                        with m.If((header.count != DESCRIPTOR_WORDS) | ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Else():
                            m.d.sync += dropped.eq(self.commands_full)
                            m.next = "Descriptor"
                    with m.Case(Opcode.POP_EVENT):
                        with m.If((header.count != EVENT_WORDS) | ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Else():
                            m.next = "Address"
                    if self._programs:
                        with m.Case(Opcode.LOAD_PROGRAM):
                            m.d.sync += size.eq(1)
                            m.next = "Address"
                            with m.If(header.count[:exact_log2(DESCRIPTOR_WORDS)].any() | ended):
                                refuse(Status.BAD_LENGTH)
                        with m.Case(Opcode.RUN):
                            m.next = "Address"
                            with m.If((header.count != RUN_WORDS) | ended):
                                refuse(Status.BAD_LENGTH)
                        if banked:
                            with m.Case(Opcode.EDIT):
                                m.next = "Address"
                                with m.If((header.count != protocol.EDIT_WORDS) | ended):
                                    refuse(Status.BAD_LENGTH)
                    with m.Case(Opcode.READ_REGISTER, Opcode.READ_MEMORY):
                        with m.If((header.count == 0) | ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Else():
                            m.next = "Address"
                    with m.Case(Opcode.WRITE_REGISTER, Opcode.WRITE_MEMORY):
                        # In every case, the response gives the number of words written.
                        m.d.sync += size.eq(1)
                        with m.If((header.count == 0) | ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Else():
                            m.next = "Address"
                    with m.Default():
                        refuse(Status.UNKNOWN_OPCODE)
                if requester:
                    with m.If(requester.foreign):
                        refuse(Status.FOREIGN_TENANT)

            with m.State("Ping"):
                m.d.comb += word.ready.eq(1)
                with m.If(take):
                    m.d.comb += echo_write.en.eq(1)
                    expect_end(lambda: respond(header.count))

            with m.State("Descriptor"):
                # The last word completes the command, so it is passed on only if the packet has the right length.
                goes = ~dropped & (word.payload.last == final)
                m.d.comb += [self.commands.valid.eq(word.valid & goes), word.ready.eq(self.commands.ready | ~goes)]
                with m.If(take):
                    def push():
                        respond()
                        with m.If(dropped):
                            refuse(Status.QUEUE_FULL)
                    expect_end(push)

            with m.State("Address"):
                m.d.comb += word.ready.eq(1)
                m.d.sync += address.eq(word.payload.data)
                with m.If(take):
                    m.next = "Range"

            with m.State("Range"):
                first = Mux(registers, address, address[:28])
                space = Mux(registers, MAX_SPACES, address[28:])
                if self._programs:
                    first = Mux(loads, asked.slot << exact_log2(DESCRIPTOR_WORDS), first)
                    space = Mux(loads, MAX_SPACES + 1, space)
                room = Array(rooms)[space]
                if requester:
                    m.d.comb += requester.asks.eq(1)
                    room = Mux(loads, rooms[-1], requester.room) if self._programs else requester.room
                m.d.sync += [end.eq(first + header.count), capacity.eq(room)]
                m.next = "Compare"

            with m.State("Compare"):
                m.d.sync += outside.eq(end > capacity)
                m.next = "Access"

            with m.State("Access"):
                with m.Switch(header.opcode):
                    with m.Case(Opcode.POP_EVENT):
                        m.next = "Event"
                        with m.If(~ended):
                            refuse(Status.BAD_LENGTH)
                    with m.Case(Opcode.READ_REGISTER, Opcode.READ_MEMORY):
                        with m.If(~ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Elif(outside):
                            refuse(beyond)
                        with m.Elif(registers):
                            respond(header.count)
                        with m.Else():
                            m.next = "Read-Memory"
                    if self._programs:
                        with m.Case(Opcode.LOAD_PROGRAM):
                            with m.If(ended != (header.count == 0)):
                                refuse(Status.BAD_LENGTH)
                            with m.Elif(asked.queue >= self._config.queues):
                                refuse(Status.BAD_ADDRESS)
                            with m.Elif(outside):
                                refuse(Status.TOO_LONG)
                            with m.Elif(busy & ~asked.idle if banked else busy):
                                refuse(Status.BUSY)
                            with m.Else():
                                m.next = "Load-Header"
                        with m.Case(Opcode.RUN):
                            with m.If(ended):
                                refuse(Status.BAD_LENGTH)
                            with m.Elif(busy):
                                refuse(Status.BUSY)
                            if not banked:
                                with m.Elif(wrong):
                                    refuse(Status.NOT_LOADED)
                            with m.Else():
                                m.d.sync += left.eq(RUN_WORDS - 1)
                                m.next = "Run"
                        if banked:
                            with m.Case(Opcode.EDIT):
                                m.d.sync += left.eq(protocol.EDIT_WORDS - 1)
                                m.next = "Run"
                                with m.If(ended):
                                    refuse(Status.BAD_LENGTH)
                    with m.Default():
                        with m.If(ended):
                            refuse(Status.BAD_LENGTH)
                        with m.Elif(outside):
                            refuse(beyond)
                        if self._programs:
                            with m.Elif(~registers & (address[28:] == self._config.memory_map["trace"].number)):
                                refuse(Status.READ_ONLY)
                        with m.Elif(registers):
                            m.next = "Write-Registers"
                        with m.Else():
                            m.next = "Write-Memory"

            with m.State("Event"):
                m.d.sync += [address.eq(address - 1), *([left.eq(left - 1)] if requester else [])]  # cycles to wait
                with m.If(self.events.valid):
                    respond(EVENT_WORDS)
                with m.Elif(over):
                    refuse(Status.EMPTY)

            with m.State("Read-Memory"):
                m.d.comb += self.memory_read.request.valid.eq(1)
                with m.If(self.memory_read.request.ready):
                    respond(header.count)

            with m.State("Write-Registers"):
                m.d.comb += [self.bus.request.eq(word.valid & ~self.bus.done),
                             self.bus.write.eq(requester.permits if requester else 1)]
                wrong, reason = ~self.bus.writable, Status.READ_ONLY
                if requester:
                    wrong, reason = wrong | ~requester.permits, Mux(requester.permits, reason, requester.reason)
                with m.If(self.bus.done):
                    with m.If(wrong):
                        refuse(reason)
                    with m.Else():
                        m.d.comb += word.ready.eq(1)
                        expect_end(lambda: respond(1))

            with m.State("Write-Memory"):
                m.d.comb += self.memory_write.request.valid.eq(1)
                with m.If(self.memory_write.request.ready):
                    m.next = "Write-Words"

            with m.State("Write-Words"):
                m.d.comb += [self.memory_write.data.valid.eq(word.valid), word.ready.eq(self.memory_write.data.ready)]
                with m.If(take):
                    expect_end(lambda: respond(1))

            if self._programs:
                self._config.programs.request_states(
                    m, self, header, address, word, second, third, status, take, final, respond, refuse, expect_end)

            with m.State("Drain"):
                m.d.comb += word.ready.eq(~ended)
                with m.If(ended):
                    m.next = "Header"

            with m.State("Header"):
                m.d.comb += [
                    reply.valid.eq(1), reply.payload.data.eq(Cat(size, header.tag, header.opcode | RESPONSE))]
                m.d.sync += left.eq(size)
                with m.If(reply.ready):
                    m.next = "Status"

            with m.State("Status"):
                m.d.comb += [reply.valid.eq(1), reply.payload.data.eq(status), reply.payload.last.eq(size == 0)]
                with m.If(reply.ready):
                    m.next = "Payload"
                    with m.If(size == 0):
                        m.next = begin

            with m.State("Payload"):
                m.d.comb += reply.payload.last.eq(final)
                with m.Switch(header.opcode):
                    with m.Case(Opcode.PING):
                        m.d.comb += [reply.valid.eq(settled), reply.payload.data.eq(echo_read.data)]
                    with m.Case(Opcode.READ_REGISTER):
                        m.d.comb += [
                            self.bus.request.eq(~fetched & ~self.bus.done),
                            reply.valid.eq(fetched),
                            reply.payload.data.eq(self.bus.read_data),
                        ]
                    with m.Case(Opcode.READ_MEMORY):
                        m.d.comb += [
                            reply.valid.eq(self.memory_read.data.valid),
                            reply.payload.data.eq(self.memory_read.data.payload.data),
                            self.memory_read.data.ready.eq(reply.ready),
                        ]
                    with m.Case(Opcode.POP_EVENT):
                        m.d.comb += [
                            reply.valid.eq(self.events.valid),
                            reply.payload.data.eq(self.events.payload),
                            self.events.ready.eq(reply.ready),
                        ]
                    with m.Default():
                        m.d.comb += [reply.valid.eq(1), reply.payload.data.eq(taken)]
                with m.If(send):
                    m.d.sync += [sent.eq(sent + 1), left.eq(left - 1)]
                    with m.If(final):
                        m.next = begin

        return m
