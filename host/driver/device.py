"""Driver of one node: registers, memories, commands and events, over any transport.

The transport alone knows whether the node is Verilated, simulated in Python or on a board.
docs/protocol.md describes the packets.

Every call exists twice. ``device.read_memory(...)`` waits for the answer; ``device.submit_read_memory(...)`` only
sends the request, and gives a :class:`~host.driver.transport.Pending` whose ``result()`` waits. A node serves its
requests in order, so submitting to several nodes first and waiting afterwards lets them all work at the same time.

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

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdl.config import NodeConfig
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EVENT_WORDS,
    PING_WORDS,
    RESPONSE,
    Opcode,
    Space,
    Status,
    header_layout,
)
from hdl.control.registers import COUNTERS, IDENTIFIER, Kind, Register, register
from host.driver.command import Command, Event
from host.driver.errors import REFUSALS, ConfigurationError, DeviceError, DeviceTimeoutError, ProtocolError
from host.driver.transport import Pending, Request, Transport
from host.driver.words import Words, fields, places

__all__ = ["Device"]

_HEADER = places(header_layout())

PACKET_WORDS = 16_384
"""Payload words of the largest packet: longer transfers take several."""

TIMEOUT = 1_000_000
"""Cycles that an answer may take beyond what was asked for."""


class Device:
    """The driver of one node.

    Parameters
    ----------
    transport : Transport
        The way to the node.
    config : NodeConfig
        Configuration that the node was built with; see :meth:`connect`.
    name : str
        Name of the node in messages.
    timeout : int
        Cycles of the node's clock that an answer may take, in addition to the cycles of the request itself.
    """

    def __init__(self, transport: Transport, config: NodeConfig, *, name: str = "node",
                 timeout: int = TIMEOUT) -> None:
        if timeout < 1:
            raise ValueError(f"Timeout must be at least 1 cycle, not {timeout!r}")
        self._transport = transport
        self._config = config
        self._name = name
        self._timeout = timeout
        self._outstanding: deque[Request] = deque()
        self._tag = 0

    @property
    def config(self) -> NodeConfig:
        return self._config

    @property
    def name(self) -> str:
        return self._name

    @property
    def transport(self) -> Transport:
        return self._transport

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def connect(self) -> None:
        """Check that a node answers and that it has this configuration.

        Raises
        ------
        ConfigurationError
            Another design answers, or a node of another configuration.
        """
        identifier, configuration = self._read_registers(register("ID"), 2).result().tolist()
        if identifier != IDENTIFIER:
            raise ConfigurationError(f"{self._name}: register ID must be 0x{IDENTIFIER:08x}, not 0x{identifier:08x}: "
                                     f"this is no gradring node")
        if configuration != self._config.hash:
            raise ConfigurationError(
                f"{self._name}: configuration hash must be 0x{self._config.hash:08x}, that of {self._config}, not "
                f"0x{configuration:08x}: rebuild the node, or set the driver up with the node's configuration")

    # Requests and responses.

    def _submit(self, opcode: Opcode, asked: str, *, count: int, words: Sequence[Words], answer: int,
                patience: int = 0) -> Request:
        header = opcode << _HEADER["opcode"][0] | self._tag << _HEADER["tag"][0] | count << _HEADER["count"][0]
        request = Request(opcode, self._tag, asked, answer, self._timeout + patience)
        self._tag = (self._tag + 1) % 256
        self._transport.send(np.concatenate([np.array([header], np.uint32), *words]))
        self._outstanding.append(request)
        return request

    def complete(self, request: Request) -> None:
        """Take responses in their order, up to the response to this request."""
        while not request.done:
            first = self._outstanding[0]
            try:
                response = self._transport.receive(first.patience)
            except TimeoutError as error:
                raise DeviceTimeoutError(
                    f"{self._name}: no response to {first.asked} in {first.patience} cycles\n{error}") from error
            self._outstanding.popleft()
            self._settle(first, response)

    def _settle(self, request: Request, response: Words) -> None:
        """Check a response against its request, and settle the request."""
        def mismatch(what: str) -> ProtocolError:
            return ProtocolError(f"{self._name}: response to {request.asked} {what}; the transport has lost or "
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
            request.error = self._refusal(request, Status(response[1]), payload)
        elif response[1] == Status.EMPTY and opcode == Opcode.POP_EVENT | RESPONSE:
            request.payload = payload
        elif response[1] != Status.OK:
            request.error = mismatch(f"must have another status than {response[1]}")
        elif count != request.answer:
            request.error = mismatch(f"must have {request.answer} payload words, not {count}")
        else:
            request.payload = payload

    def _refusal(self, request: Request, status: Status, payload: Words) -> DeviceError:
        kind, advice = REFUSALS[status]
        written = f" after {payload[0]} words were written" if payload.size else ""
        return kind(f"{self._name}: {request.asked} was refused with {status.name}{written}; {advice}")

    # Ping.

    def submit_ping(self, words: Words) -> Pending[Words]:
        """See :meth:`ping`."""
        if words.size > PING_WORDS:
            raise ValueError(f"Ping must be of at most {PING_WORDS} words, not {words.size!r}")
        request = self._submit(Opcode.PING, f"a ping of {words.size} words", count=words.size,
                               words=[words.astype(np.uint32)], answer=words.size)
        return Pending(self, [request], lambda payloads: payloads[0])

    def ping(self, words: Words) -> Words:
        """Have the node echo up to 64 words."""
        return self.submit_ping(words).result()

    # Registers.

    def _read_registers(self, first: Register, count: int) -> Pending[Words]:
        what = f"register {first.name}" if count == 1 else f"{count} registers from {first.name} on"
        request = self._submit(Opcode.READ_REGISTER, f"a read of {what}", count=count,
                               words=[np.array([first.address], np.uint32)], answer=count)
        return Pending(self, [request], lambda payloads: payloads[0])

    def submit_read_register(self, name: str) -> "Pending[int | float]":
        """See :meth:`read_register`."""
        entry = register(name)
        pending = self._read_registers(entry, 1)
        integers = bool(self._config.reduced)
        return Pending(self, pending._requests, lambda payloads: _from_bits(entry, payloads[0], integers=integers))

    def read_register(self, name: str) -> int | float:
        """Read a register: a float if its kind is float32, else a number of 32 bits. A node of 16-bit integers
        has signed numbers of 32 bits in place of floats.

        Parameters
        ----------
        name : str
            One of :data:`hdl.control.registers.REGISTERS`; a ``KeyError`` lists them.
        """
        return self.submit_read_register(name).result()

    def submit_write_register(self, name: str, value: float) -> Pending[None]:
        """See :meth:`write_register`."""
        entry = register(name)
        bits = _to_bits(entry, value, integers=bool(self._config.reduced))
        request = self._submit(Opcode.WRITE_REGISTER, f"a write of {value!r} to register {name}", count=1,
                               words=[np.array([entry.address, bits], np.uint32)], answer=1)
        return Pending(self, [request], _nothing)

    def write_register(self, name: str, value: float) -> None:
        """Set a register.

        Parameters
        ----------
        name : str
            One of :data:`hdl.control.registers.REGISTERS`; a ``KeyError`` lists them.
        value : int or float
            A float is rounded to binary32, and is for registers of kind float32 only. On a node of 16-bit integers
            these registers take signed integers.

        Raises
        ------
        ReadOnlyError
            The register cannot be written.
        TypeError, ValueError
            The register cannot hold the value.
        """
        self.submit_write_register(name, value).result()

    def read_fields(self, name: str) -> dict[str, int]:
        """Read the fields of a register of kind bitfield."""
        entry = register(name)
        if entry.kind is not Kind.BITFIELD:
            raise ValueError(f"Register must be of kind bitfield, not {entry.name} of kind {entry.kind.value}")
        value = int(self.read_register(name))
        return {field.name: value >> field.bit & (1 << field.width) - 1 for field in entry.fields}

    def submit_counters(self) -> Pending[dict[str, int]]:
        """See :meth:`counters`."""
        pending = self._read_registers(COUNTERS[0], len(COUNTERS))
        names = [entry.name for entry in COUNTERS]
        return Pending(self, pending._requests,
                       lambda payloads: dict(zip(names, payloads[0].tolist(), strict=True)))

    def counters(self) -> dict[str, int]:
        """Read all counters by name; each has 32 bits and wraps."""
        return self.submit_counters().result()

    # Memories.

    def submit_read_memory(self, space: int, address: int, count: int) -> Pending[Words]:
        """See :meth:`read_memory`."""
        _check_range(space, address, count)
        requests = [
            self._submit(Opcode.READ_MEMORY, f"a read of {_range(space, start, size)}", count=size,
                         words=[_access(space, start)], answer=size, patience=size)
            for start, size in _packets(address, count)
        ]
        return Pending(self, requests, lambda payloads: np.concatenate([np.empty(0, np.uint32), *payloads]))

    def read_memory(self, space: int, address: int, count: int) -> Words:
        """Read elements of a memory, as bits.

        Parameters
        ----------
        space : int
            :class:`Space`; state plane p is ``Space.STATE + p``.
        address, count : int
            First element, and number of elements.

        Raises
        ------
        BadAddressError
            The memory does not exist, or is smaller.
        """
        return self.submit_read_memory(space, address, count).result()

    def submit_write_memory(self, space: int, address: int, elements: NDArray[Any]) -> Pending[None]:
        """See :meth:`write_memory`."""
        elements = np.asarray(elements)
        if elements.dtype not in (np.uint32, np.float32) or elements.ndim != 1:
            raise TypeError(f"Elements must be one row of uint32 or float32, not {elements.dtype} of shape "
                            f"{elements.shape!r}")
        _check_range(space, address, elements.size)
        words = np.ascontiguousarray(elements).view(np.uint32)
        requests = [
            self._submit(Opcode.WRITE_MEMORY, f"a write to {_range(space, start, size)}", count=size,
                         words=[_access(space, start), words[start - address:start - address + size]], answer=1,
                         patience=size)
            for start, size in _packets(address, words.size)
        ]
        return Pending(self, requests, _nothing)

    def write_memory(self, space: int, address: int, elements: NDArray[Any]) -> None:
        """Set elements of a memory.

        Parameters
        ----------
        space : int
            :class:`Space`; state plane p is ``Space.STATE + p``.
        address : int
            First element.
        elements : array of uint32 or float32, one dimension
            Bits, or numbers whose bits are written.

        Raises
        ------
        BadAddressError
            The memory does not exist, or is smaller. In a transfer of several packets, the packets that fit are
            written.
        """
        self.submit_write_memory(space, address, elements).result()

    # Commands and events.

    def submit_push(self, command: Command) -> Pending[None]:
        """See :meth:`push`."""
        request = self._submit(Opcode.PUSH_COMMAND, f"a push of {command}", count=DESCRIPTOR_WORDS,
                               words=[command.words()], answer=0)
        return Pending(self, [request], _nothing)

    def push(self, command: Command) -> None:
        """Queue a command. Its event tells of any error in it.

        Raises
        ------
        QueueFullError
            The queue is full; pop an event first.
        """
        self.submit_push(command).result()

    def submit_pop_event(self, timeout: int) -> "Pending[Event | None]":
        """See :meth:`pop_event`."""
        if not 0 <= timeout < 1 << 32:
            raise ValueError(f"Timeout must be a number of 32 bits, not {timeout!r}")
        asked = f"a wait of {timeout} cycles for an event"
        request = self._submit(Opcode.POP_EVENT, asked, count=EVENT_WORDS, words=[np.array([timeout], np.uint32)],
                               answer=EVENT_WORDS, patience=timeout)
        return Pending(self, [request], lambda payloads: self._event(payloads[0]) if payloads[0].size else None)

    def pop_event(self, timeout: int) -> Event | None:
        """Take the next event, after at most ``timeout`` cycles of waiting; ``None`` if none has come by then.

        The node answers no other request meanwhile. See :meth:`Event.check`.
        """
        return self.submit_pop_event(timeout).result()

    def _event(self, words: Words) -> Event:
        try:
            return Event.from_words(words)
        except ValueError as error:
            raise ProtocolError(f"{self._name}: event {words.tolist()} is not one that this driver knows ({error}); "
                                f"check that driver and node are of the same version") from None


def _nothing(payloads: list[Words]) -> None:
    return None


def _check_range(space: int, address: int, count: int) -> None:
    if not 0 <= space < 16:
        raise ValueError(f"Memory space must be between 0 and 15, not {space!r}")
    if address < 0 or count < 0 or address + count > 1 << 28:
        raise ValueError(f"Memory range must lie between 0 and {1 << 28}, not {count!r} elements from {address!r} on")


def _packets(address: int, count: int) -> list[tuple[int, int]]:
    """First element and number of elements of each packet of a transfer."""
    return [(start, min(PACKET_WORDS, address + count - start))
            for start in range(address, address + count, PACKET_WORDS)]


def _range(space: int, address: int, count: int) -> str:
    name = Space(space).name.lower() if space < Space.STATE else f"state plane {space - Space.STATE}"
    return f"{count} elements of {name} memory from {address} on"


def _access(space: int, address: int) -> Words:
    return np.array([space << 28 | address], np.uint32)


def _to_bits(entry: Register, value: float, *, integers: bool) -> int:
    signed = entry.kind is Kind.FLOAT32
    if signed and not integers:
        return int(np.float32(value).view(np.uint32))
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"Value of register {entry.name} must be an integer, not {value!r}")
    least = -(1 << entry.width - 1) if signed else 0
    if not least <= value < least + (1 << entry.width):
        kind = "signed number" if signed else "number"
        raise ValueError(f"Value of register {entry.name} must be a {kind} of {entry.width} bits, not {value!r}")
    bits: int = int(value) & (1 << entry.width) - 1
    return bits


def _from_bits(entry: Register, payload: Words, *, integers: bool) -> int | float:
    if entry.kind is not Kind.FLOAT32:
        return int(payload[0])
    return int(payload.view(np.int32)[0]) if integers else float(payload.view(np.float32)[0])
