"""Driver for one node: registers, memories, commands and events; see docs/protocol.md.

Every call exists in two forms. ``device.read_memory(...)`` waits for the answer; ``device.submit_read_memory(...)``
only sends the request and returns a :class:`~host.driver.transport.Pending`, with a ``result()`` that waits. A node
serves its requests in order; different nodes serve requests in parallel if all are submitted before the first wait.

Example
-------
::

    device = Device(transport, NodeConfig(), name="node 0")
    device.connect()
    device.write_register("LEARNING_RATE", 0.05)
    device.write_memory(Space.GRADIENT, 0, gradients)
    device.push(Command(operation=Operation.FUSED_UPDATE, rank=0, size=4, length=gradients.size, tag=7))
    event = device.pop_event(timeout=1_000_000)
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from hdl.config import Configuration
from hdl.control.program_layouts import program_header_layout
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EDIT_WORDS,
    EVENT_WORDS,
    PING_WORDS,
    RESPONSE,
    RUN_WORDS,
    Opcode,
    Space,
    Status,
    header_layout,
)
from hdl.control.registers import COUNTERS, IDENTIFIER, REGISTERS, Kind, Register, register
from hdl.control.tenancy import PRIVILEGED
from host.driver.command import Command, Event, ProgramRun
from host.driver.elements import element_format
from host.driver.errors import REFUSALS, ConfigurationError, DeviceTimeoutError, ProtocolError
from host.driver.trace import TraceRecord, records
from host.driver.transport import Pending, Request, Transport
from host.driver.words import Words, bits_of, field_values, fields, from_bits, pack, places, to_bits

__all__ = ["Device"]

P = ParamSpec("P")
T = TypeVar("T")

_LOAD, _IDLE = places(program_header_layout()), places(program_header_layout(banks=2))
_HEADER = places(header_layout())

TIMEOUT = 1_000_000
"""Maximum cycles for an answer, in addition to the cycles of the request itself."""

PACKET_WORDS = 16_384
"""Payload words of the largest packet; longer transfers use several packets."""


def _waits(submit: Callable[Concatenate[Any, P], Pending[T]]) -> Callable[Concatenate["Device", P], T]:
    """Derive the blocking call from the call that only sends the request."""
    def call(self: "Device", *arguments: P.args, **options: P.kwargs) -> T:
        pending: Pending[T] = getattr(self, submit.__name__)(*arguments, **options)
        return pending.result()

    call.__name__, call.__doc__ = submit.__name__.removeprefix("submit_"), submit.__doc__
    return call


class Device:
    """Driver of one node; ``name`` appears in messages.

    Parameters
    ----------
    config : Configuration
        Configuration that the node was built with.
    timeout : int
        Maximum number of node clock cycles to wait for an answer, excluding the request's own cycles.
    tenant : int or None
        Sender of the requests to a node with tenants: 0 for the privileged host, or a tenant. None if the transport
        adds the sender, as in a tenant's own driver.
    """

    latest_run: int = 0  # number of the latest run started on the node; 0 if none was started

    def __init__(self, transport: Transport, config: Configuration, *, name: str = "node",
                 timeout: int = TIMEOUT, tenant: int | None = PRIVILEGED) -> None:
        if timeout < 1:
            raise ValueError(f"Timeout must be at least 1 cycle, not {timeout!r}")
        self.transport = transport
        self.config = config
        self._integers = element_format(config).integers
        self.name = name
        self._timeout = timeout
        asks = config.has("tenants") and tenant is not None
        self._asks = [np.array([tenant], np.uint32)] if asks else []
        self._privileged = not config.has("tenants") or tenant == int(PRIVILEGED)
        self._tenant = tenant if asks and tenant else int(PRIVILEGED)
        self._outstanding: deque[Request] = deque()
        self._tag = 0

    def room(self, name: str) -> int:
        """Number of words in a memory space that the sender may use; 0 if the space does not exist."""
        return int(self.config.memory_map[name].words) if name in self.config.memory_map else 0

    @property
    def privileged(self) -> bool:
        """Whether the sender may write privileged registers."""
        return self._privileged

    def named(self, command: Command) -> Command:
        """Return the command with the sending tenant as its owner, unless it already has an owner."""
        return dataclasses.replace(command, tenant=self._tenant) if self._tenant and not command.tenant else command

    def close(self) -> None:
        """Close the transport."""
        self.transport.close()

    def connect(self) -> None:
        """Check that a node responds and has the expected configuration.

        Raises ``ConfigurationError`` if a different design answers, or a node with a different configuration.
        """
        identifier, configuration = self._read_registers(register("ID"), 2, lambda words: words.tolist()).result()
        if identifier != IDENTIFIER:
            raise ConfigurationError(f"{self.name}: register ID must be 0x{IDENTIFIER:08x}, not 0x{identifier:08x}: "
                                     f"this is no gradring node")
        if configuration != self.config.hash:
            raise ConfigurationError(
                f"{self.name}: configuration hash must be 0x{self.config.hash:08x}, that of {self.config}, not "
                f"0x{configuration:08x}: rebuild the node, or set the driver up with the node's configuration")

    # Requests and responses.

    def _submit(self, opcode: Opcode, asked: str, *, count: int, words: Sequence[Words], answer: int,
                patience: int = 0) -> Request:
        header = opcode << _HEADER["opcode"][0] | self._tag << _HEADER["tag"][0] | count << _HEADER["count"][0]
        request = Request(opcode, self._tag, asked, answer, self._timeout + patience)
        self._tag = (self._tag + 1) % 256
        self.transport.send(np.concatenate([*self._asks, np.array([header], np.uint32), *words]))
        self._outstanding.append(request)
        return request

    def _ask(self, opcode: Opcode, asked: str, combine: Callable[[Words], T], *, count: int, words: Sequence[Words],
             answer: int, patience: int = 0) -> Pending[T]:
        """Send a request; ``combine`` builds the answer from the payload of the response."""
        request = self._submit(opcode, asked, count=count, words=words, answer=answer, patience=patience)
        return Pending(self.complete, [request], lambda payloads: combine(payloads[0]))

    def complete(self, request: Request) -> None:
        """Receive responses in order, up to the response to this request."""
        while not request.done:
            first = self._outstanding[0]
            try:
                response = self.transport.receive(first.patience)
            except TimeoutError as error:
                raise DeviceTimeoutError(
                    f"{self.name}: no response to {first.asked} in {first.patience} cycles\n{error}") from error
            self._outstanding.popleft()
            self._settle(first, response)

    def _settle(self, request: Request, response: Words) -> None:
        """Check a response against its request and complete the request."""
        def mismatch(what: str) -> ProtocolError:
            return ProtocolError(f"{self.name}: response to {request.asked} {what}; the transport has lost or "
                                 f"changed words, open it again")

        if response.size < 2:
            request.error = mismatch(f"must have at least 2 words, not {response.size}")
            return
        header = fields(_HEADER, int(response[0]))
        opcode, tag, count = header["opcode"], header["tag"], header["count"]
        payload = response[2:]
        if opcode != request.opcode | RESPONSE:
            request.error = mismatch(f"must have opcode 0x{request.opcode | RESPONSE:02x}, not 0x{opcode:02x}")
        elif tag != request.tag:
            request.error = mismatch(f"must have tag {request.tag}, not {tag}")
        elif count != payload.size:
            request.error = mismatch(f"must have the {count} payload words of its header, not {payload.size}")
        elif response[1] in REFUSALS:
            status = next(status for status in REFUSALS if status == response[1])
            kind, advice = REFUSALS[status]
            written = f" after {payload[0]} words were written" if payload.size else ""
            request.error = kind(f"{self.name}: {request.asked} was refused with {status.name}{written}; {advice}")
        elif response[1] == Status.EMPTY and opcode == Opcode.POP_EVENT | RESPONSE:
            request.payload = payload
        elif response[1] != Status.OK:
            request.error = mismatch(f"must have another status than {response[1]}")
        elif count != request.answer:
            request.error = mismatch(f"must have {request.answer} payload words, not {count}")
        else:
            request.payload = payload

    # Ping.

    def submit_ping(self, words: Words) -> Pending[Words]:
        """Send up to 64 words, which the node echoes."""
        if words.size > PING_WORDS:
            raise ValueError(f"Ping must be of at most {PING_WORDS} words, not {words.size!r}")
        return self._ask(Opcode.PING, f"a ping of {words.size} words", lambda payload: payload, count=words.size,
                         words=[words.astype(np.uint32)], answer=words.size)

    ping = _waits(submit_ping)

    # Registers.

    def _read_registers(self, first: Register, count: int, combine: Callable[[Words], T]) -> Pending[T]:
        what = f"register {first.name}" if count == 1 else f"{count} registers from {first.name} on"
        return self._ask(Opcode.READ_REGISTER, f"a read of {what}", combine, count=count,
                         words=[np.array([first.address], np.uint32)], answer=count)

    def submit_read_register(self, name: str) -> "Pending[int | float]":
        """Read a register: a float if its kind is float32, otherwise a 32-bit integer.

        On a node for 16-bit integers, signed 32-bit integers replace floats. A name that is not in
        :data:`hdl.control.registers.REGISTERS` raises a ``KeyError`` that lists the valid names.
        """
        entry = register(name)
        return self._read_registers(entry, 1, lambda words: from_bits(entry, words, integers=self._integers))

    read_register = _waits(submit_read_register)

    def submit_write_register(self, name: str, value: float) -> Pending[None]:
        """Write a register. A float32 register accepts a float, which is rounded to binary32; on a node for 16-bit
        integers, it accepts a signed integer.

        Raises ``ReadOnlyError`` if the register cannot be written, ``TypeError`` or ``ValueError`` if it cannot hold
        the value, and ``KeyError`` if it does not exist.
        """
        entry = register(name)
        bits = to_bits(entry, value, integers=self._integers)
        return self._ask(Opcode.WRITE_REGISTER, f"a write of {value!r} to register {name}", _nothing, count=1,
                         words=[np.array([entry.address, bits], np.uint32)], answer=1)

    write_register = _waits(submit_write_register)

    def read_fields(self, name: str) -> dict[str, int]:
        """Read a bitfield register and return its fields."""
        entry = register(name)
        if entry.kind is not Kind.BITFIELD:
            raise ValueError(f"Register must be of kind bitfield, not {entry.name} of kind {entry.kind.value}")
        return field_values(name, int(self.read_register(name)))

    def submit_counters(self) -> Pending[dict[str, int]]:
        """Read all counters, keyed by name; each has 32 bits and wraps around."""
        return self.submit_read_bits(COUNTERS[0].name, COUNTERS[-1].name)

    counters = _waits(submit_counters)

    def submit_read_bits(self, first: str, last: str) -> Pending[dict[str, int]]:
        """Read consecutive registers in one request; return their bits, keyed by name."""
        entries = REGISTERS[register(first).address:register(last).address + 1]
        return self._read_registers(entries[0], len(entries), lambda words: {
            entry.name: bits for entry, bits in zip(entries, words.tolist(), strict=True)})

    def submit_write_bits(self, first: str, bits: Sequence[int]) -> Pending[None]:
        """Write bits to consecutive registers in one request."""
        return self._ask(Opcode.WRITE_REGISTER, f"a write of {len(bits)} registers from {first} on", _nothing,
                         count=len(bits), words=[np.array([register(first).address, *bits], np.uint32)], answer=1)

    # Memories.

    def _memory_name(self, space: int) -> str:
        """Name of a memory space for messages, even if the node does not have it."""
        titles = {memory.number: memory.title for memory in self.config.memory_map}
        title: str = titles.get(space, f"state plane {space - Space.STATE}")
        return title.removesuffix(" memory")

    def submit_read_memory(self, space: int, address: int, count: int) -> Pending[Words]:
        """Read ``count`` elements of a :class:`Space` as bits, starting at ``address``; state plane p is
        ``Space.STATE + p``.

        Raises ``BadAddressError`` if the memory does not exist or is too small.
        """
        requests = [
            self._submit(Opcode.READ_MEMORY, f"a read of {name}", count=size, words=[access], answer=size,
                         patience=size)
            for _, size, access, name in self._packets(space, address, count)]
        return Pending(self.complete, requests, lambda payloads: np.concatenate([np.empty(0, np.uint32), *payloads]))

    read_memory = _waits(submit_read_memory)

    def submit_write_memory(self, space: int, address: int, elements: NDArray[Any]) -> Pending[None]:
        """Write a one-dimensional array of bits (uint32) or numbers (float32), starting at ``address``; see
        :meth:`submit_read_memory`.

        Raises ``BadAddressError`` if the memory does not exist or is too small; in a transfer of several packets, the
        packets that fit are still written.
        """
        words = bits_of(elements)
        requests = [
            self._submit(Opcode.WRITE_MEMORY, f"a write to {name}", count=size,
                         words=[access, words[first:first + size]], answer=1, patience=size)
            for first, size, access, name in self._packets(space, address, words.size)]
        return Pending(self.complete, requests, _nothing)

    def _packets(self, space: int, address: int, count: int) -> Iterator[tuple[int, int, Words, str]]:
        """Yield offset, size and access word of each packet of a transfer, and its name for messages."""
        if not 0 <= space < 16:
            raise ValueError(f"Memory space must be between 0 and 15, not {space!r}")
        if address < 0 or count < 0 or address + count > 1 << 28:
            raise ValueError(f"Memory range must lie between 0 and {1 << 28}, not {count!r} elements from "
                             f"{address!r} on")
        name = self._memory_name(space)
        for offset in range(0, count, PACKET_WORDS):
            first, size = address + offset, min(PACKET_WORDS, count - offset)
            yield (offset, size, np.array([space << 28 | first], np.uint32),
                   f"{size} elements of {name} memory from {first} on")

    write_memory = _waits(submit_write_memory)

    # Commands and events.

    def submit_push(self, command: Command) -> Pending[None]:
        """Queue a command; errors in the command are reported by its event.

        Raises ``QueueFullError`` if the queue is full; pop an event first.
        """
        return self._ask(Opcode.PUSH_COMMAND, f"a push of {command}", _nothing, count=DESCRIPTOR_WORDS,
                         words=[command.words()], answer=0)

    push = _waits(submit_push)

    def submit_pop_event(self, timeout: int) -> "Pending[Event | None]":
        """Take the next event, or return ``None`` if none arrives within ``timeout`` cycles.

        The node answers no other request while it waits. See :meth:`Event.check`.
        """
        if not 0 <= timeout < 1 << 32:
            raise ValueError(f"Timeout must be a number of 32 bits, not {timeout!r}")
        return self._ask(Opcode.POP_EVENT, f"a wait of {timeout} cycles for an event",
                         lambda payload: self._event(payload) if payload.size else None, count=EVENT_WORDS,
                         words=[np.array([timeout], np.uint32)], answer=EVENT_WORDS, patience=timeout)

    pop_event = _waits(submit_pop_event)

    # Programs.

    def submit_load_program(self, queue: int, commands: Sequence[Command], *, slot: int = 0, model: int = 0,
                            idle: bool = False) -> Pending[None]:
        """Replace the commands of a queue's program from a slot to its end.

        Raises ``ProgramTooLongError`` if the commands do not fit into the program memory, and ``ProgramRunningError``
        if a program is running.

        Parameters
        ----------
        queue : int
            0 computes, 1 communicates.
        commands : sequence of Command
            Commands; loading none at slot 0 empties the program.
        model : int
            Number of the program, to be passed to :meth:`run`; the number of the latest load applies to all queues.
        idle : bool
            Whether to load the idle bank of a node with two banks, which is possible while a program runs.
        """
        header = pack(_IDLE if idle else _LOAD, {"queue": queue, "slot": slot, "model": model, "idle": idle},
                      "Program's")
        count = DESCRIPTOR_WORDS * len(commands)
        return self._ask(
            Opcode.LOAD_PROGRAM, f"a load of {len(commands)} commands from slot {slot} of queue {queue} on", _nothing,
            count=count, words=[header, *(command.words() for command in commands)], answer=1, patience=count)

    load_program = _waits(submit_load_program)

    def submit_edit(self, edit: Words, name: str) -> Pending[None]:
        """Send the words of an EDIT, which the node acknowledges; ``name`` is used in messages."""
        return self._ask(Opcode.EDIT, name, _nothing, count=EDIT_WORDS, words=[edit], answer=0)

    def submit_run(self, run: ProgramRun) -> Pending[None]:
        """Start the programs of all queues; each command reports one event per pass.

        A node can store only a few events, and starts a command only if it has room for another event. Raises
        ``ProgramNotLoadedError`` if no program or a different one is loaded, and ``ProgramRunningError`` if a program
        is already running.
        """
        self.latest_run = run.number
        return self._ask(Opcode.RUN, f"a run of {run.passes} passes of program {run.model}", _nothing,
                         count=RUN_WORDS, words=[run.words()], answer=0)

    run = _waits(submit_run)

    def trace(self, since: int | None = None) -> list[TraceRecord]:
        """Read the start and end of the latest commands, in the order of the node's records.

        A node keeps 256 records; records that it overwrites during the read are missing. ``since`` is the value of
        register TRACE_POINTER before the first record to return; the node must not add records during this call.

        Raises ``TraceError`` if the node has written more records since then than it keeps.
        """
        space = self.config.memory_map["trace"]
        if since is None:
            words = self.read_memory(space.number, 0, space.words)
            return records(words, int(self.read_register("TRACE_POINTER")), since)
        pointer = int(self.read_register("TRACE_POINTER"))
        first, count = 2 * since % space.words, 2 * (pointer - since)
        if not 0 <= count <= space.words - first:  # the records wrap around, or exceed the memory
            first, count = 0, space.words
        words = np.zeros(space.words, np.uint32)
        if count:
            words[first:first + count] = self.read_memory(space.number, first, count)
        return records(words, pointer, since)

    def _event(self, words: Words) -> Event:
        try:
            return Event.from_words(words)
        except ValueError as error:
            raise ProtocolError(f"{self.name}: event {words.tolist()} is not one that this driver knows ({error}); "
                                f"check that driver and node are of the same version") from None


def _nothing(payloads: object) -> None:
    return None
